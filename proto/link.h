// One end of a Session: ordered messages to one peer. The seam between the state machines and gRPC
// (or the simulator).
#pragma once

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "layercake/v1/control.pb.h"

namespace layercake {

// Thread rule: used on one executor; the callbacks run there too, never inside a call to the link.
template <class Out, class In>
class Link {
 public:
  struct Callbacks {
    absl::AnyInvocable<void(In)> on_message;
    // Once, as the last call: the peer or the network ended the Session (Unavailable), or it sent
    // what may not be sent (InvalidArgument). Not called after Close.
    absl::AnyInvocable<void(absl::Status)> on_closed;
  };

  virtual ~Link() = default;
  // Before anything else; messages that came earlier are delivered in order.
  virtual void Start(Callbacks callbacks) = 0;
  // Queues the message. ResourceExhausted when the bounded queue is full (the peer does not read),
  // Unavailable after the end.
  virtual absl::Status Send(const Out& message) = 0;
  // Ends the Session; the peer sees `reason`. Queued messages are sent first, within a bound.
  // Idempotent. No callback runs afterwards.
  virtual void Close(absl::Status reason) = 0;
};

// The coordinator's end and the worker's end.
using CoordinatorLink = Link<v1::ToWorker, v1::FromWorker>;
using WorkerLink = Link<v1::FromWorker, v1::ToWorker>;

}  // namespace layercake
