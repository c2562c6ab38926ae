// One process's UCX: a context, a worker, and the one thread that touches them.
//
// Other threads leave commands in a bounded mailbox and wake the thread; what happens on the wire
// comes back through the links (ucx_link.h), which wake their executors. The thread sleeps in the
// worker's event descriptor, but when it is asked to look for what is about to come.
// Thread rule: Create and the destructor from one thread; the rest, PollUntil among it, from any.
// Outlives its channels.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/event_poll.h"

namespace layercake::transport {

class UcxLoop;  // the thread's side (ucx_loop.h)

struct UcxOptions {
  // UCX's own names: "all", "tcp", "posix,sysv,cma", "rc,ud", ...
  std::string tls = "all";
  // How often UCX asks an idle peer for a sign of life. Over shared memory a dead peer is seen
  // after about two of these; TCP and RDMA see a reset at once.
  absl::Duration keepalive = absl::Seconds(1);
  // What the destructor grants to say goodbye before everything is torn down.
  absl::Duration shutdown_grace = absl::Seconds(1);
  size_t max_commands = 1 << 16;
};

class UcxWorker final : public base::EventPoll {
 public:
  // Unavailable or InvalidArgument when UCX has none of `options.tls` here.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const base::Clock& clock,
                                                           const UcxOptions& options);
  ~UcxWorker() override;

  // While there are channels: the thread looks for messages and commands instead of sleeping.
  void PollUntil(base::Instant until) override;

  // For channels of this worker.
  UcxLoop& loop() { return *loop_; }

 private:
  explicit UcxWorker(std::unique_ptr<UcxLoop> loop);

  std::unique_ptr<UcxLoop> loop_;
};

}  // namespace layercake::transport
