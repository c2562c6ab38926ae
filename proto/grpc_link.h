// Both ends of Control.Session over gRPC, as the Link that the state machines know. The queues, the
// order and the end of a link are the same at both ends (proto/link_core.h); only the calls into
// gRPC differ.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "base/executor.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/server_callback.h"
#include "layercake/v1/control.grpc.pb.h"
#include "proto/link.h"
#include "proto/protocol_version.h"

namespace layercake {

struct GrpcLinkOptions {
  // Bounds of the send queue. A queue that holds fewer messages and bytes takes one more message.
  size_t max_send_messages = 4096;
  size_t max_send_bytes = kMaxControlMessageBytes;
  // Messages that wait for the executor; beyond, the link stops reading and the peer's queue fills.
  size_t max_receive_messages = 256;
  // How long Close() lets queued messages go out before it cancels the call.
  absl::Duration close_flush = absl::Seconds(5);
};

// Dials the coordinator. Owns the channel and sees every call over it to its end: gRPC 1.51 must
// not lose the last reference to a channel on one of its own threads, which is where calls end.
// Thread rule: Connect from any thread. Destroyed on a thread that is not gRPC's, after its links;
// that waits for calls that are still closing, GrpcLinkOptions::close_flush at most, so that last
// words are sent before a process ends.
class SessionDialer {
 public:
  explicit SessionDialer(std::shared_ptr<grpc::Channel> channel);
  ~SessionDialer();
  SessionDialer(const SessionDialer&) = delete;
  SessionDialer& operator=(const SessionDialer&) = delete;

  // The worker's end of a new Session; the channel need not be connected yet. Never blocks: a
  // coordinator that cannot be reached shows as on_closed(Unavailable). on_closed carries the
  // status that the coordinator closed with. Close() with a reason that is not OK sends it as a
  // Goodbye, since only servers can end a call with a status.
  // `executor` outlives the link.
  std::unique_ptr<WorkerLink> Connect(base::Executor& executor,
                                      const GrpcLinkOptions& options = {});

  // For GetModelHeader and ReadTensor over the same connection.
  v1::Control::Stub& stub() { return *stub_; }

 private:
  // Shared with the calls.
  struct Calls;

  const std::unique_ptr<v1::Control::Stub> stub_;  // owns the channel
  const std::shared_ptr<Calls> calls_;
};

// The coordinator's end of one accepted call: the reactor to hand to gRPC and the link over it.
// `on_done` runs on a gRPC thread when the call is over and nothing of it is used any more.
// `executor` outlives the link.
struct AcceptedSession {
  grpc::ServerBidiReactor<v1::FromWorker, v1::ToWorker>* reactor;  // frees itself
  std::unique_ptr<CoordinatorLink> link;
};
AcceptedSession AcceptCoordinatorLink(grpc::CallbackServerContext* context,
                                      base::Executor& executor, absl::AnyInvocable<void()> on_done,
                                      const GrpcLinkOptions& options = {});

}  // namespace layercake
