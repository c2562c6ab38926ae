// A child process with which nothing takes longer than allowed: for measurements of what happens
// when processes stop and die.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/testing/piped_child.h"
#include "base/unique_fd.h"

namespace layercake::testing {

// Returns after `duration`.
void PauseFor(absl::Duration duration, const base::Clock& clock);

// Lines to its standard input, lines from its standard output. Ends with this object, by SIGKILL.
//
// Thread rule: one thread.
class BoundedProcess {
 public:
  // Program and arguments. A program that cannot be started reads as one that has ended. `clock`
  // outlives this.
  BoundedProcess(std::vector<std::string> words, const base::Clock& clock);
  BoundedProcess(const BoundedProcess&) = delete;
  BoundedProcess& operator=(const BoundedProcess&) = delete;
  ~BoundedProcess();

  // False when it has ended.
  bool Write(const std::string& line);
  // The next line; nothing when none came in time, or it has ended.
  std::optional<std::string> ReadLine(absl::Duration limit);
  // SIGSTOP, SIGCONT, SIGKILL.
  void Signal(int number) const;
  // Until the kernel has ended it, with all that it had; it is reaped then. Nothing: not in time.
  std::optional<absl::Duration> AwaitEnd(absl::Duration limit);

 private:
  const base::Clock& clock_;
  base::PipedChild child_;  // pid -1: none, or reaped
  base::UniqueFd pidfd_;
  std::string read_;  // what came behind the last line
};

// Of a child's main: it ends with its parent, and after `limit` in any case.
void EndWithParent(absl::Duration limit);

}  // namespace layercake::testing
