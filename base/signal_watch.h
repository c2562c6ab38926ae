// Signals as a file descriptor, whatever other threads do.
//
// A signal for the process goes to any thread that does not block it. Libraries start threads that
// block nothing; under a signalfd such a thread would take the signal, and die of it or, where a
// shell started the program in the background with SIGINT ignored, drop it. A handler sees the
// signal in every thread.
//
// Thread rule: each object is used by one thread; several may watch side by side, and each sees
// every signal that it asked for.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace layercake::base {

class SignalWatch {
 public:
  // Handles the signals until the last watch of each is destroyed, also those that the program was
  // started with as ignored or blocked; but a SIGHUP that was ignored stays so (nohup).
  // ResourceExhausted beyond 64 watches at a time.
  static absl::StatusOr<std::unique_ptr<SignalWatch>> Create(absl::Span<const int> signals);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Readable when a signal came.
  int fd() const;
  // The numbers of those that came, in order; more than a pipe holds at once are dropped.
  std::vector<int> Take();

 private:
  explicit SignalWatch(int slot) : slot_(slot) {}

  const int slot_;
  std::vector<int> handled_;
};

}  // namespace layercake::base
