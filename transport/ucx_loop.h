// The thread that owns a UcxWorker's UCX objects, and what a channel shares with it. Only ucx_*.cc
// include this.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/executor.h"
#include "transport/frame.h"
#include "transport/offer.h"
#include "transport/ready_signal.h"
#include "transport/ucx_worker.h"

namespace layercake::transport {

// The one place where a ucs_status_t becomes an absl::Status. Unavailable: the peer is gone or was
// never there.
absl::Status UcxError(absl::string_view attempt, ucs_status_t status);

// Active message ids. Every header starts with the token of the link that it is for (u64); what
// follows is little-endian too.
enum class UcxMessageKind : unsigned {
  kHello = 1,   // sender -> receiver: UcxHello; payload: the sender's worker address
  kAnswer = 2,  // receiver -> sender: code u8 (UcxAnswer), the receiver's session token u64
  kFrame = 3,   // sender -> receiver: slot u32, frame header (64 bytes); payload: the frame's
  kCredit = 4,  // receiver -> sender: lane u8, slot u32
  kBye = 5,     // either way: this end closes
};

struct UcxHello {
  uint64_t sender_token = 0;
  RingId ring;
  Secret secret{};
};
inline constexpr size_t kUcxHelloBytes = 38;  // version u16, then the fields in order
std::array<std::byte, kUcxHelloBytes> EncodeUcxHello(const UcxHello& hello);
// DataLoss: another length. FailedPrecondition: another version.
absl::StatusOr<UcxHello> DecodeUcxHello(absl::Span<const std::byte> bytes);

// A receiver is greeted by the token in its offer. From its welcome on it listens to its session
// token only, which it tells the one sender that it welcomed.
enum class UcxAnswer : uint8_t { kWelcome = 1, kNoSuchReceiver = 2, kNotThisOffer = 3 };

struct UcxMessage {
  UcxMessageKind kind = UcxMessageKind::kBye;
  absl::Span<const std::byte> header;  // behind the token
  void* payload = nullptr;             // bytes, or a descriptor when rendezvous
  size_t payload_bytes = 0;
  bool rendezvous = false;
  ucp_ep_h reply = nullptr;  // of a greeting
};

class UcxLoop;

// One end of a channel, shared by the channel's object and the loop.
// Thread rule: methods before "Loop's thread" from any thread.
class UcxLink : public std::enable_shared_from_this<UcxLink> {
 public:
  // `memory` holds the slots and is registered with UCX while the link is open.
  UcxLink(std::string peer, absl::Span<std::byte> memory, std::shared_ptr<ReadySignal> signal);
  virtual ~UcxLink() = default;

  // Latches the first failure and wakes the channel.
  void Fail(absl::Status status);
  absl::Status failure() const;
  bool connected() const;

  uint64_t token() const { return token_; }
  const std::string& peer() const { return peer_; }

  // Loop's thread.

  // False: a rendezvous payload was not taken and is to be dropped.
  virtual bool OnMessage(UcxLoop& loop, const UcxMessage& message) = 0;

 protected:
  void SetConnected();
  // Loop's thread. By which token messages other than a greeting are for this end; none at first.
  void AcceptMessagesFor(uint64_t token) { message_token_ = token; }
  void SendTo(uint64_t peer_token) { peer_token_ = peer_token; }
  void Wake() { signal_->Raise(); }

 private:
  friend class UcxLoop;

  const std::string peer_;
  const uint64_t token_;  // random: only the peer knows it
  const absl::Span<std::byte> memory_;
  const std::shared_ptr<ReadySignal> signal_;

  mutable absl::Mutex failure_mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(failure_mutex_);
  bool connected_ ABSL_GUARDED_BY(failure_mutex_) = false;

  // Loop's thread.
  ucp_ep_h endpoint_ = nullptr;
  bool endpoint_failed_ = false;  // UCX said so: nothing can be sent any more
  ucp_mem_h registration_ = nullptr;
  uint64_t peer_token_ = 0;
  uint64_t message_token_ = 0;
  size_t operations_ = 0;  // requests under way
  bool closing_ = false;
};

// Thread rule: Create, the destructor, Post, PollUntil, Announce and address() from any thread; the
// rest from tasks posted and from the links, on the loop's thread.
class UcxLoop {
 public:
  using Done = absl::AnyInvocable<void(ucs_status_t)>;

  static absl::StatusOr<std::unique_ptr<UcxLoop>> Create(const base::Clock& clock,
                                                         const UcxOptions& options);
  // Says goodbye on every link for at most shutdown_grace, then tears everything down and joins.
  ~UcxLoop();

  // False when the mailbox is full or the loop has ended.
  [[nodiscard]] bool Post(base::Task task);
  // As UcxWorker says.
  void PollUntil(base::Instant until);
  // Of this worker, for offers.
  const std::string& address() const { return address_; }

  // Any thread: messages for the link's token reach it from now on, also those that come before the
  // loop runs a command posted now.
  void Announce(std::shared_ptr<UcxLink> link);
  // Loop's thread: the same for a second token.
  void AddToken(const std::shared_ptr<UcxLink>& link, uint64_t token);
  // Registers an announced link's memory.
  absl::Status Open(const std::shared_ptr<UcxLink>& link);
  // Opens the way to the peer. The peer's end shows as the link's failure.
  absl::Status Connect(UcxLink& link, absl::string_view address, uint64_t peer_token);
  // `payload` stays until `done`, which also tells a failure to send. Needs Connect.
  void Send(UcxLink& link, UcxMessageKind kind, absl::Span<const std::byte> header,
            absl::Span<const std::byte> payload, Done done);
  // Lands the rendezvous payload `descriptor` in `to` after the current message was handled.
  void Receive(UcxLink& link, void* descriptor, absl::Span<std::byte> to, Done done);
  // Says goodbye and forgets the link as soon as UCX has let go of its memory.
  void Close(const std::shared_ptr<UcxLink>& link);
  // Answers a greeting without opening a way to its sender.
  void RefuseHello(const UcxMessage& hello, UcxAnswer answer);
  // From inside a link's OnMessage: `task` runs when UCX has returned.
  void AfterProgress(base::Task task) { after_progress_.push_back(std::move(task)); }

 private:
  struct Operation;
  struct Handler {
    UcxLoop* loop = nullptr;
    UcxMessageKind kind = UcxMessageKind::kBye;
  };
  static constexpr size_t kMaxHeaderBytes = 96;

  UcxLoop(const base::Clock& clock, const UcxOptions& options);
  absl::Status Initialise();
  absl::Status InitialiseWorker();
  void Run();
  void RunCommands();
  void AddAnnounced() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Progress();
  void Sleep();
  // Asked to look for messages, with no command to run first.
  bool Looking() const;
  void KeepAlive();
  void TearDown();
  bool Stopping() const;

  static ucs_status_t OnActiveMessage(void* handler, const void* header, size_t header_bytes,
                                      void* payload, size_t payload_bytes,
                                      const ucp_am_recv_param_t* parameters);
  static void OnEndpointError(void* link, ucp_ep_h endpoint, ucs_status_t status);
  static void OnSendDone(void* request, ucs_status_t status, void* operation);
  static void OnReceiveDone(void* request, ucs_status_t status, size_t bytes, void* operation);

  Operation* StartOperation(UcxLink* link, Done done);
  // `request` is what UCX returned: null, an error, or a request whose callback comes.
  void Follow(ucs_status_ptr_t request, Operation* operation);
  void Finish(Operation* operation, ucs_status_t status);
  void StartReceive(UcxLink& link, void* descriptor, absl::Span<std::byte> to, Done done);
  void CloseEndpoint(UcxLink& link);
  void ForgetIfIdle(UcxLink& link);
  void Unregister(UcxLink& link);

  const base::Clock& clock_;
  const UcxOptions options_;
  std::string address_;

  mutable absl::Mutex mutex_;
  std::deque<base::Task> commands_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<UcxLink>> announced_ ABSL_GUARDED_BY(mutex_);
  bool accepting_ ABSL_GUARDED_BY(mutex_) = false;  // the worker is there to be signalled
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_links_ ABSL_GUARDED_BY(mutex_) = false;  // as of the last turn
  base::Instant poll_until_ ABSL_GUARDED_BY(mutex_);

  // Loop's thread.
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::array<Handler, 5> handlers_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<UcxLink>> links_;
  absl::flat_hash_set<Operation*> operations_;
  std::deque<base::Task> after_progress_;  // what may not be done inside a UCX callback
  base::Instant next_keepalive_;
  base::Instant give_up_ = base::Instant::Infinite();

  std::thread thread_;
};

}  // namespace layercake::transport
