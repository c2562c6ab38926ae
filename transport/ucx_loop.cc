#include "transport/ucx_loop.h"

#include <poll.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"
#include "transport/little_endian.h"

namespace layercake::transport {
namespace {

constexpr size_t kTokenBytes = 8;
// A turn of the loop looks at its mailbox after so many turns of UCX at the latest.
constexpr int kProgressTurns = 64;
// UCX looks at its keep-alive timer in one of 32 turns only: so many make sure of it.
constexpr int kKeepaliveTurns = 33;

void FailStopped(UcxLink& link) {
  link.Fail(absl::UnavailableError(
      absl::StrCat("the UCX worker that served the channel to ", link.peer(), " has stopped")));
}

}  // namespace

// A request that UCX has under way. Lives until UCX calls back, or until the worker is destroyed.
struct UcxLoop::Operation {
  UcxLoop* loop = nullptr;
  std::shared_ptr<UcxLink> link;  // its memory stays as long as UCX may touch it
  std::array<std::byte, kMaxHeaderBytes> header{};
  Done done;
};

absl::Status UcxError(absl::string_view attempt, ucs_status_t status) {
  const std::string message = absl::StrCat(attempt, ": ", ucs_status_string(status), " (UCX ",
                                           static_cast<int>(status), ")");
  switch (status) {
    case UCS_OK:
      return absl::OkStatus();
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_CANCELED:
    case UCS_ERR_SHMEM_SEGMENT:  // of a process that is gone, or not to be reached from here
      return absl::UnavailableError(message);
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
      return absl::ResourceExhaustedError(message);
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      return absl::InvalidArgumentError(message);
    case UCS_ERR_NO_DEVICE:
      return absl::FailedPreconditionError(message);
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
      return absl::UnimplementedError(message);
    default:
      return absl::InternalError(message);
  }
}

UcxLink::UcxLink(std::string peer, absl::Span<std::byte> memory,
                 std::shared_ptr<ReadySignal> signal)
    : peer_(std::move(peer)),
      token_(base::EntropySeed()),
      memory_(memory),
      signal_(std::move(signal)) {}

void UcxLink::Fail(absl::Status status) {
  {
    absl::MutexLock lock(&failure_mutex_);
    if (!failure_.ok()) return;
    failure_ = std::move(status);
  }
  Wake();
}

absl::Status UcxLink::failure() const {
  absl::MutexLock lock(&failure_mutex_);
  return failure_;
}

bool UcxLink::connected() const {
  absl::MutexLock lock(&failure_mutex_);
  return connected_;
}

void UcxLink::SetConnected() {
  {
    absl::MutexLock lock(&failure_mutex_);
    connected_ = true;
  }
  Wake();
}

UcxLoop::UcxLoop(const base::Clock& clock, const UcxOptions& options)
    : clock_(clock), options_(options) {}

absl::StatusOr<std::unique_ptr<UcxLoop>> UcxLoop::Create(const base::Clock& clock,
                                                         const UcxOptions& options) {
  std::unique_ptr<UcxLoop> loop(new UcxLoop(clock, options));
  absl::Notification initialised;
  absl::Status status;
  // UCX's worker is made by the thread that will use it (UCS_THREAD_MODE_SINGLE).
  loop->thread_ = std::thread([&initialised, &status, loop = loop.get()] {
    const absl::Status mine = loop->Initialise();
    status = mine;
    initialised.Notify();
    if (mine.ok()) loop->Run();
    loop->TearDown();
  });
  initialised.WaitForNotification();
  if (!status.ok()) return status;  // the destructor joins
  return loop;
}

UcxLoop::~UcxLoop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (accepting_) ucp_worker_signal(worker_);
  }
  thread_.join();
}

bool UcxLoop::Post(base::Task task) {
  absl::MutexLock lock(&mutex_);
  if (!accepting_ || commands_.size() >= options_.max_commands) return false;
  commands_.push_back(std::move(task));
  // Under the mutex: TearDown takes it before the worker goes. It writes an eventfd, no more.
  if (commands_.size() == 1) ucp_worker_signal(worker_);
  return true;
}

void UcxLoop::PollUntil(base::Instant until) {
  const bool ahead = clock_.Now() < until;
  absl::MutexLock lock(&mutex_);
  const bool sleeps = poll_until_ < until;
  poll_until_ = until;
  if (ahead && sleeps && has_links_ && accepting_) ucp_worker_signal(worker_);
}

bool UcxLoop::Looking() const {
  const base::Instant now = clock_.Now();
  absl::MutexLock lock(&mutex_);
  return now < poll_until_ && has_links_ && commands_.empty() && !stopping_;
}

bool UcxLoop::Stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

void UcxLoop::Run() {
  for (;;) {
    RunCommands();
    bool busy = true;
    for (int turn = 0; busy && turn < kProgressTurns; ++turn) busy = Progress();
    if (Stopping()) {
      if (give_up_ == base::Instant::Infinite()) {
        give_up_ = clock_.Now() + options_.shutdown_grace;
        const auto links = links_;  // Close changes the map
        for (const auto& [token, link] : links) {
          FailStopped(*link);
          Close(link);
        }
      }
      if (links_.empty() || clock_.Now() >= give_up_) return;
    }
    if (busy) continue;
    Sleep();
    KeepAlive();
  }
}

void UcxLoop::RunCommands() {
  std::deque<base::Task> commands;
  {
    absl::MutexLock lock(&mutex_);
    // With the commands: one of them may close the link.
    AddAnnounced();
    has_links_ = !links_.empty();
    commands.swap(commands_);
  }
  for (base::Task& command : commands) command();
}

bool UcxLoop::Progress() {
  const bool progressed = ucp_worker_progress(worker_) != 0;
  const bool more = !after_progress_.empty();
  while (!after_progress_.empty()) {
    base::Task task = std::move(after_progress_.front());
    after_progress_.pop_front();
    task();
  }
  return progressed || more;
}

void UcxLoop::Sleep() {
  while (Looking()) {
    if (Progress()) return;
    std::this_thread::yield();  // as EventLoop does
  }
  // Busy when something came since the last progress, a signal included.
  if (ucp_worker_arm(worker_) != UCS_OK) return;
  // Never longer than to the next keep-alive, whatever else wakes or does not.
  const absl::Duration left =
      std::max(std::min(next_keepalive_, give_up_) - clock_.Now(), absl::ZeroDuration());
  const int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
  pollfd event{.fd = event_fd_, .events = POLLIN, .revents = 0};
  poll(&event, 1, timeout_ms);
}

void UcxLoop::KeepAlive() {
  const base::Instant now = clock_.Now();
  if (now < next_keepalive_) return;
  next_keepalive_ = now + options_.keepalive / 2;
  for (int turn = 0; turn < kKeepaliveTurns; ++turn) Progress();
}

void UcxLoop::TearDown() {
  {
    absl::MutexLock lock(&mutex_);
    accepting_ = false;
  }
  RunCommands();  // a link closed meanwhile
  for (const auto& [token, link] : links_) {
    FailStopped(*link);
    CloseEndpoint(*link);
  }
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  for (const auto& [token, link] : links_) Unregister(*link);
  if (context_ != nullptr) ucp_cleanup(context_);
  // What UCX never called back for can no longer be called back for.
  for (Operation* const operation : operations_) delete operation;
  operations_.clear();
  after_progress_.clear();
  links_.clear();
}

void UcxLoop::Announce(std::shared_ptr<UcxLink> link) {
  absl::MutexLock lock(&mutex_);
  announced_.push_back(std::move(link));
}

void UcxLoop::AddToken(const std::shared_ptr<UcxLink>& link, uint64_t token) {
  links_.emplace(token, link);
}

void UcxLoop::AddAnnounced() {
  for (std::shared_ptr<UcxLink>& link : announced_) links_.emplace(link->token(), std::move(link));
  announced_.clear();
}

absl::Status UcxLoop::Open(const std::shared_ptr<UcxLink>& link) {
  ucp_mem_map_params_t parameters{};
  parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  parameters.address = link->memory_.data();
  parameters.length = link->memory_.size();
  const ucs_status_t mapped = ucp_mem_map(context_, &parameters, &link->registration_);
  if (mapped != UCS_OK) {
    return UcxError(absl::StrCat("register a ring of ", link->memory_.size(), " bytes with UCX"),
                    mapped);
  }
  return absl::OkStatus();
}

absl::Status UcxLoop::Connect(UcxLink& link, absl::string_view address, uint64_t peer_token) {
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = &UcxLoop::OnEndpointError;
  parameters.err_handler.arg = &link;
  const ucs_status_t created = ucp_ep_create(worker_, &parameters, &link.endpoint_);
  if (created != UCS_OK) {
    link.endpoint_ = nullptr;
    return UcxError(absl::StrCat("open a UCX endpoint to ", link.peer(), " over ", options_.tls),
                    created);
  }
  link.peer_token_ = peer_token;
  return absl::OkStatus();
}

void UcxLoop::OnEndpointError(void* link_pointer, ucp_ep_h, ucs_status_t status) {
  UcxLink& link = *static_cast<UcxLink*>(link_pointer);
  link.endpoint_failed_ = true;
  const absl::Status error = UcxError("use its UCX connection", status);
  link.Fail(absl::UnavailableError(
      absl::StrCat(link.peer(), " is gone from the ucx channel: ", error.message())));
}

UcxLoop::Operation* UcxLoop::StartOperation(UcxLink* link, Done done) {
  auto* const operation = new Operation;
  operation->loop = this;
  operation->done = std::move(done);
  if (link != nullptr) {
    operation->link = link->shared_from_this();
    ++link->operations_;
  }
  operations_.insert(operation);
  return operation;
}

void UcxLoop::Follow(ucs_status_ptr_t request, Operation* operation) {
  if (UCS_PTR_IS_PTR(request)) return;  // a callback comes
  Finish(operation, UCS_PTR_STATUS(request));
}

void UcxLoop::Finish(Operation* operation, ucs_status_t status) {
  operations_.erase(operation);
  const std::unique_ptr<Operation> owned(operation);
  if (operation->link == nullptr) return;
  --operation->link->operations_;
  operation->done(status);
  // Not here: UCX may be the caller, and its registrations are not to change under it.
  if (operation->link->closing_) {
    AfterProgress([this, link = operation->link] { ForgetIfIdle(*link); });
  }
}

void UcxLoop::Send(UcxLink& link, UcxMessageKind kind, absl::Span<const std::byte> header,
                   absl::Span<const std::byte> payload, Done done) {
  if (link.endpoint_ == nullptr) return done(UCS_ERR_NOT_CONNECTED);
  Operation* const operation = StartOperation(&link, std::move(done));
  StoreLittleEndian(operation->header.data(), link.peer_token_);
  std::copy(header.begin(), header.end(), operation->header.begin() + kTokenBytes);
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  if (kind != UcxMessageKind::kFrame) parameters.flags = UCP_AM_SEND_FLAG_EAGER;
  // A refusal goes back the way the greeting came.
  if (kind == UcxMessageKind::kHello) parameters.flags |= UCP_AM_SEND_FLAG_REPLY;
  parameters.cb.send = &UcxLoop::OnSendDone;
  parameters.user_data = operation;
  Follow(ucp_am_send_nbx(link.endpoint_, static_cast<unsigned>(kind), operation->header.data(),
                         kTokenBytes + header.size(), payload.data(), payload.size(), &parameters),
         operation);
}

void UcxLoop::OnSendDone(void* request, ucs_status_t status, void* operation) {
  ucp_request_free(request);
  auto* const mine = static_cast<Operation*>(operation);
  mine->loop->Finish(mine, status);
}

void UcxLoop::Receive(UcxLink& link, void* descriptor, absl::Span<std::byte> to, Done done) {
  AfterProgress(
      [this, held = link.shared_from_this(), descriptor, to, done = std::move(done)]() mutable {
        StartReceive(*held, descriptor, to, std::move(done));
      });
}

void UcxLoop::StartReceive(UcxLink& link, void* descriptor, absl::Span<std::byte> to, Done done) {
  if (link.endpoint_ == nullptr) {
    ucp_am_data_release(worker_, descriptor);
    return done(UCS_ERR_CANCELED);
  }
  Operation* const operation = StartOperation(&link, std::move(done));
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.recv_am = &UcxLoop::OnReceiveDone;
  parameters.user_data = operation;
  Follow(ucp_am_recv_data_nbx(worker_, descriptor, to.data(), to.size(), &parameters), operation);
}

void UcxLoop::OnReceiveDone(void* request, ucs_status_t status, size_t, void* operation) {
  ucp_request_free(request);
  auto* const mine = static_cast<Operation*>(operation);
  mine->loop->Finish(mine, status);
}

ucs_status_t UcxLoop::OnActiveMessage(void* handler, const void* header, size_t header_bytes,
                                      void* payload, size_t payload_bytes,
                                      const ucp_am_recv_param_t* parameters) {
  const auto& [loop, kind] = *static_cast<Handler*>(handler);
  const absl::Span<const std::byte> all(static_cast<const std::byte*>(header), header_bytes);
  if (all.size() < kTokenBytes) return UCS_OK;
  const UcxMessage message{.kind = kind,
                           .header = all.subspan(kTokenBytes),
                           .payload = payload,
                           .payload_bytes = payload_bytes,
                           .rendezvous = (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0,
                           .reply = (parameters->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0
                                        ? parameters->reply_ep
                                        : nullptr};
  const auto token = LoadLittleEndian<uint64_t>(all.data());
  auto link = loop->links_.find(token);
  if (link == loop->links_.end()) {
    absl::MutexLock lock(&loop->mutex_);
    loop->AddAnnounced();
    link = loop->links_.find(token);
  }
  if (link == loop->links_.end() || link->second->closing_) {
    // From an older ring, or for a receiver that is gone: only a greeting deserves an answer.
    if (kind == UcxMessageKind::kHello) loop->RefuseHello(message, UcxAnswer::kNoSuchReceiver);
    return UCS_OK;
  }
  const std::shared_ptr<UcxLink> held = link->second;
  if (kind != UcxMessageKind::kHello && token != held->message_token_) return UCS_OK;
  const bool taken = held->OnMessage(*loop, message);
  return message.rendezvous && taken ? UCS_INPROGRESS : UCS_OK;
}

void UcxLoop::RefuseHello(const UcxMessage& message, UcxAnswer answer) {
  const absl::StatusOr<UcxHello> hello = DecodeUcxHello(message.header);
  if (!hello.ok() || message.reply == nullptr) return;
  Operation* const operation = StartOperation(nullptr, {});
  StoreLittleEndian(operation->header.data(), hello->sender_token);
  operation->header[kTokenBytes] = static_cast<std::byte>(answer);
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.cb.send = &UcxLoop::OnSendDone;
  parameters.user_data = operation;
  Follow(ucp_am_send_nbx(message.reply, static_cast<unsigned>(UcxMessageKind::kAnswer),
                         operation->header.data(), kTokenBytes + 1, nullptr, 0, &parameters),
         operation);
}

void UcxLoop::CloseEndpoint(UcxLink& link) {
  if (link.endpoint_ == nullptr) return;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  Operation* const operation = StartOperation(&link, [](ucs_status_t) {});
  parameters.cb.send = &UcxLoop::OnSendDone;
  parameters.user_data = operation;
  Follow(ucp_ep_close_nbx(std::exchange(link.endpoint_, nullptr), &parameters), operation);
}

void UcxLoop::Close(const std::shared_ptr<UcxLink>& link) {
  if (link->closing_) return;
  link->closing_ = true;
  if (link->endpoint_ != nullptr && !link->endpoint_failed_) {
    Send(*link, UcxMessageKind::kBye, {}, {}, [this, held = link](ucs_status_t) {
      AfterProgress([this, held] { CloseEndpoint(*held); });
    });
    return;
  }
  CloseEndpoint(*link);
  AfterProgress([this, held = link] { ForgetIfIdle(*held); });
}

void UcxLoop::ForgetIfIdle(UcxLink& link) {
  if (!link.closing_ || link.operations_ > 0 || link.endpoint_ != nullptr) return;
  Unregister(link);
  links_.erase(link.message_token_);
  links_.erase(link.token());
}

void UcxLoop::Unregister(UcxLink& link) {
  if (link.registration_ == nullptr) return;
  const ucs_status_t unmapped = ucp_mem_unmap(context_, std::exchange(link.registration_, nullptr));
  if (unmapped != UCS_OK) {
    spdlog::warn("cannot unregister a ring with UCX: {}", ucs_status_string(unmapped));
  }
}

}  // namespace layercake::transport
