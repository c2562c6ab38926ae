// Signals as a file descriptor, whatever other threads do.
//
// A signal for the process goes to any thread that does not block it. Libraries start threads that
// block nothing; under a signalfd such a thread would take the signal, and die of it or, where a
// shell started the program in the background with SIGINT ignored, drop it. A handler sees the
// signal in every thread.
//
// Thread rule: one object in a process at a time, used by one thread.
#pragma once

#include <signal.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"

namespace layercake::base {

class SignalWatch {
 public:
  // Handles the signals until it is destroyed, also those that the program was started with as
  // ignored or blocked; but a SIGHUP that was ignored stays so (nohup). FailedPrecondition while
  // another one lives.
  static absl::StatusOr<std::unique_ptr<SignalWatch>> Create(absl::Span<const int> signals);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Readable when a signal came.
  int fd() const { return read_end_.get(); }
  // The numbers of those that came, in order; more than a pipe holds at once are dropped.
  std::vector<int> Take();

 private:
  SignalWatch() = default;

  UniqueFd read_end_, write_end_;
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace layercake::base
