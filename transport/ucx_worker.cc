#include "transport/ucx_worker.h"

#include <ucs/debug/log_def.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"
#include "transport/little_endian.h"
#include "transport/ucx_loop.h"

namespace layercake::transport {
namespace {

constexpr uint16_t kHelloVersion = 1;

// UCX prints on standard output by default, where answers go.
ucs_log_func_rc_t ForwardLog(const char*, unsigned, const char*, ucs_log_level_t level,
                             const ucs_log_component_config_t*, const char* format,
                             va_list values) {
  std::array<char, 512> line{};
  va_list copy;
  va_copy(copy, values);
  vsnprintf(line.data(), line.size(), format, copy);
  va_end(copy);
  // Its warnings are about settings that a transport does not know; what an error means for a
  // channel is in the channel's status.
  if (level <= UCS_LOG_LEVEL_ERROR) {
    spdlog::warn("UCX: {}", line.data());
  } else {
    spdlog::debug("UCX: {}", line.data());
  }
  return UCS_LOG_FUNC_RC_STOP;
}

void ForwardLogOnce() {
  static const bool forwarded = [] {
    ucs_log_push_handler(&ForwardLog);  // of the process: UCX has one list
    return true;
  }();
  static_cast<void>(forwarded);
}

struct ConfigRelease {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};

absl::StatusOr<std::unique_ptr<ucp_config_t, ConfigRelease>> MakeConfig(const UcxOptions& options) {
  ucp_config_t* raw = nullptr;
  const ucs_status_t read = ucp_config_read(nullptr, nullptr, &raw);
  if (read != UCS_OK) return UcxError("read the configuration of UCX", read);
  std::unique_ptr<ucp_config_t, ConfigRelease> config(raw);
  const std::array<std::pair<const char*, std::string>, 4> settings = {{
      {"TLS", options.tls},
      // Without it, endpoints with error handling leave shared memory (posix and sysv, which take
      // the setting from their common part) for TCP, unsaid.
      {"MM_ERROR_HANDLING", "y"},
      {"KEEPALIVE_INTERVAL", absl::StrCat(absl::ToInt64Milliseconds(options.keepalive), "ms")},
      // One lane: frames arrive in the order sent, which the receiver insists on.
      {"MAX_EAGER_LANES", "1"},
  }};
  for (const auto& [name, value] : settings) {
    const ucs_status_t set = ucp_config_modify(config.get(), name, value.c_str());
    if (set != UCS_OK) {
      return UcxError(absl::StrCat("set UCX's ", name, " to \"", value, "\""), set);
    }
  }
  return config;
}

}  // namespace

std::array<std::byte, kUcxHelloBytes> EncodeUcxHello(const UcxHello& hello) {
  std::array<std::byte, kUcxHelloBytes> bytes{};
  StoreLittleEndian(bytes.data(), kHelloVersion);
  StoreLittleEndian(bytes.data() + 2, hello.sender_token);
  StoreLittleEndian(bytes.data() + 10, hello.ring.term);
  StoreLittleEndian(bytes.data() + 18, hello.ring.epoch);
  std::memcpy(bytes.data() + 22, hello.secret.data(), hello.secret.size());
  return bytes;
}

absl::StatusOr<UcxHello> DecodeUcxHello(absl::Span<const std::byte> bytes) {
  if (bytes.size() != kUcxHelloBytes) {
    return absl::DataLossError(
        absl::StrCat("refuse the greeting of a ucx channel: it has ", bytes.size(), " bytes"));
  }
  const auto version = LoadLittleEndian<uint16_t>(bytes.data());
  if (version != kHelloVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the peer's ucx greeting has version ",
                                                      version, ", this worker's ", kHelloVersion));
  }
  UcxHello hello;
  hello.sender_token = LoadLittleEndian<uint64_t>(bytes.data() + 2);
  hello.ring.term = LoadLittleEndian<uint64_t>(bytes.data() + 10);
  hello.ring.epoch = LoadLittleEndian<uint32_t>(bytes.data() + 18);
  std::memcpy(hello.secret.data(), bytes.data() + 22, hello.secret.size());
  return hello;
}

absl::Status UcxLoop::Initialise() {
  ForwardLogOnce();
  LC_ASSIGN_OR_RETURN(const auto config, MakeConfig(options_));
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
  parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  const ucs_status_t made = ucp_init(&parameters, config.get(), &context_);
  if (made != UCS_OK) {
    context_ = nullptr;
    return UcxError(absl::StrCat("start UCX with the transports \"", options_.tls,
                                 "\" (ucx_info -d lists those of this machine)"),
                    made);
  }
  LC_RETURN_IF_ERROR(InitialiseWorker());
  absl::MutexLock lock(&mutex_);
  accepting_ = true;
  return absl::OkStatus();
}

absl::Status UcxLoop::InitialiseWorker() {
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SINGLE;
  const ucs_status_t made = ucp_worker_create(context_, &parameters, &worker_);
  if (made != UCS_OK) {
    worker_ = nullptr;
    return UcxError("create a UCX worker", made);
  }
  const ucs_status_t got = ucp_worker_get_efd(worker_, &event_fd_);
  if (got != UCS_OK) return UcxError("get the event descriptor of a UCX worker", got);
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  const ucs_status_t queried = ucp_worker_query(worker_, &attributes);
  if (queried != UCS_OK) return UcxError("ask for the address of a UCX worker", queried);
  address_.assign(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
  ucp_worker_release_address(worker_, attributes.address);
  if (attributes.max_am_header < kMaxHeaderBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("UCX over \"", options_.tls, "\" carries headers of ",
                     attributes.max_am_header, " bytes; ", kMaxHeaderBytes, " are needed"));
  }
  for (size_t i = 0; i < handlers_.size(); ++i) {
    handlers_[i] = {.loop = this, .kind = static_cast<UcxMessageKind>(i + 1)};
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
    handler.id = static_cast<unsigned>(handlers_[i].kind);
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = &UcxLoop::OnActiveMessage;
    handler.arg = &handlers_[i];
    const ucs_status_t set = ucp_worker_set_am_recv_handler(worker_, &handler);
    if (set != UCS_OK) return UcxError("set a message handler of a UCX worker", set);
  }
  return absl::OkStatus();
}

UcxWorker::UcxWorker(std::unique_ptr<UcxLoop> loop) : loop_(std::move(loop)) {}
UcxWorker::~UcxWorker() = default;

void UcxWorker::PollUntil(base::Instant until) { loop_->PollUntil(until); }

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const base::Clock& clock,
                                                             const UcxOptions& options) {
  LC_ASSIGN_OR_RETURN(std::unique_ptr<UcxLoop> loop, UcxLoop::Create(clock, options));
  return std::unique_ptr<UcxWorker>(new UcxWorker(std::move(loop)));
}

}  // namespace layercake::transport
