#include "transport/channel_rig.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace layercake::transport {
namespace {

// In test equipment: what cannot go wrong, or the test cannot go on.
template <typename T>
T ValueOrExit(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

template <typename Channel>
absl::Status AwaitConnected(ChannelEnd& end, const Channel& channel) {
  absl::Status status = absl::DeadlineExceededError("the channel did not connect");
  end.Await([&] {
    if (!channel.connected() && channel.status().ok()) return false;
    status = channel.status();
    return true;
  });
  return status;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = std::filesystem::temp_directory_path() / "layercake-test-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    std::perror("make a temporary folder");
    std::exit(1);
  }
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

ChannelEnd::ChannelEnd(const base::Clock& clock)
    : loop_(ValueOrExit(base::EventLoop::Create(clock))), thread_([this] { loop_->Run(); }) {}

ChannelEnd::~ChannelEnd() {
  loop_->Stop();
  thread_.join();
}

void ChannelEnd::Run(const std::function<void()>& task) {
  absl::Notification done;
  const bool posted = loop_->Post([&] {
    task();
    done.Notify();
  });
  if (!posted) std::abort();
  done.WaitForNotification();
}

bool ChannelEnd::Await(std::function<bool()> condition, absl::Duration timeout) {
  auto waiter = std::make_shared<Waiter>();
  waiter->condition = std::move(condition);
  Run([&] {
    waiters_.push_back(waiter);
    AskWaiters();
  });
  const bool met = waiter->met.WaitForNotificationWithTimeout(timeout);
  Run([&] { waiters_.remove(waiter); });
  return met;
}

ChannelContext ChannelEnd::context() {
  ChannelContext context;
  context.executor = loop_.get();
  context.watcher = loop_.get();
  context.on_ready = [this] { AskWaiters(); };
  return context;
}

void ChannelEnd::AskWaiters() {
  for (const std::shared_ptr<Waiter>& waiter : waiters_) {
    if (!waiter->met.HasBeenNotified() && waiter->condition()) waiter->met.Notify();
  }
}

std::string TestKindName(TestKind kind) {
  switch (kind) {
    case TestKind::kLocal:
      return "Local";
    case TestKind::kPinnedHost:
      return "PinnedHost";
    case TestKind::kUcxTcp:
      return "UcxTcp";
    case TestKind::kUcxSharedMemory:
      return "UcxSharedMemory";
    case TestKind::kCudaIpc:
      return "CudaIpc";
  }
  return "";
}

UcxOptions TestUcxOptions(TestKind kind) {
  UcxOptions options;
  options.tls = kind == TestKind::kUcxTcp ? "tcp" : "posix,sysv,cma";
  return options;
}

std::unique_ptr<TestFactories> MakeTestFactories(TestKind kind, const base::Clock& clock) {
  auto made = std::make_unique<TestFactories>();
  switch (kind) {
    case TestKind::kLocal:
      made->sender = std::make_unique<LocalChannelFactory>(made->hub);
      made->receiver = std::make_unique<LocalChannelFactory>(made->hub);
      break;
    case TestKind::kPinnedHost:
      for (auto* factory : {&made->sender, &made->receiver}) {
        PinnedHostOptions options;
        options.socket_folder = made->folder.path();
        *factory = std::make_unique<PinnedHostChannelFactory>(std::move(options));
      }
      break;
    case TestKind::kCudaIpc:
      made->sender =
          std::make_unique<CudaIpcChannelFactory>(made->sender_memory, made->folder.path());
      made->receiver =
          std::make_unique<CudaIpcChannelFactory>(made->receiver_memory, made->folder.path());
      break;
    case TestKind::kUcxTcp:
    case TestKind::kUcxSharedMemory:
      made->sender_worker = ValueOrExit(UcxWorker::Create(clock, TestUcxOptions(kind)));
      made->receiver_worker = ValueOrExit(UcxWorker::Create(clock, TestUcxOptions(kind)));
      made->sender = std::make_unique<UcxChannelFactory>(*made->sender_worker);
      made->receiver = std::make_unique<UcxChannelFactory>(*made->receiver_worker);
      break;
  }
  return made;
}

namespace {
// memcpy takes no null pointer, not even for no bytes.
void CopyBytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
}  // namespace

absl::Status WritePayload(kernels::PeerMemory* memory, const SendSlot& slot,
                          absl::string_view payload, uint32_t section_bytes) {
  if (payload.empty()) return absl::OkStatus();
  const auto* const bytes = reinterpret_cast<const std::byte*>(payload.data());
  if (slot.memory.space == kernels::MemorySpace::kHost) {
    CopyBytes(slot.memory.address, bytes, payload.size());
    return absl::OkStatus();
  }
  CopyBytes(slot.section.address, bytes, section_bytes);
  return memory->CopyIn(bytes + section_bytes, slot.memory, payload.size() - section_bytes);
}

absl::StatusOr<std::string> ReadPayload(kernels::PeerMemory* memory, const ReceivedFrame& frame) {
  const kernels::Buffer sections = frame.sections();
  const kernels::Buffer body = frame.body();
  std::string payload(sections.bytes + body.bytes, '\0');
  CopyBytes(payload.data(), sections.address, sections.bytes);
  auto* const to = reinterpret_cast<std::byte*>(payload.data()) + sections.bytes;
  if (body.space == kernels::MemorySpace::kHost) {
    CopyBytes(to, body.address, body.bytes);
    return payload;
  }
  LC_RETURN_IF_ERROR(memory->CopyOut(body, to, body.bytes));
  return payload;
}

ChannelOptions PeerTestOptions() {
  return {.ring = {.term = 7, .epoch = 3},
          .geometry = {.plan_slots = 4,
                       .plan_slot_bytes = 4096,
                       .activation_slots = 4,
                       .activation_slot_bytes = 64 << 10},
          .peer = "the other process"};
}

ChannelRig::ChannelRig(ChannelFactory& sender_factory, ChannelFactory& receiver_factory,
                       const ChannelOptions& channel_options, const base::Clock& clock)
    : sender_end(clock),
      receiver_end(clock),
      options(channel_options),
      sender_factory_(sender_factory),
      receiver_factory_(receiver_factory) {}

ChannelRig::~ChannelRig() {
  DestroySender();
  DestroyReceiver();
}

absl::Status ChannelRig::Connect() {
  LC_RETURN_IF_ERROR(CreateReceiver());
  LC_RETURN_IF_ERROR(ConnectSender(offer));
  LC_RETURN_IF_ERROR(AwaitConnected(sender_end, *sender));
  return AwaitConnected(receiver_end, *receiver);
}

absl::Status ChannelRig::CreateReceiver() {
  absl::Status status;
  receiver_end.Run([&] {
    auto made = receiver_factory_.CreateReceiver(options, receiver_end.context());
    status = made.status();
    if (made.ok()) receiver = *std::move(made);
    if (receiver != nullptr) offer = receiver->offer();
  });
  return status;
}

absl::Status ChannelRig::ConnectSender(const std::string& to) {
  absl::Status status;
  sender_end.Run([&] {
    auto made = sender_factory_.Connect(to, options, sender_end.context());
    status = made.status();
    if (made.ok()) sender = *std::move(made);
  });
  return status;
}

void ChannelRig::DestroySender() {
  sender_end.Run([this] { sender = nullptr; });
}

void ChannelRig::DestroyReceiver() {
  receiver_end.Run([this] { receiver = nullptr; });
}

}  // namespace layercake::transport
