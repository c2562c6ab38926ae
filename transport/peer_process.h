// A process at the other end of a test, with pipes to its standard input and output.
//
// Thread rule: one thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/testing/piped_child.h"

namespace layercake::transport {

class PeerProcess {
 public:
  // Program and arguments. A program that cannot be started reads as one that ended.
  explicit PeerProcess(std::vector<std::string> words);
  PeerProcess(PeerProcess&& other) noexcept : child_(std::move(other.child_)) {
    other.child_.pid = -1;
  }
  ~PeerProcess() { Kill(); }

  // False when it has ended.
  bool Write(const std::string& line) const;
  // Empty when it has ended.
  std::string ReadLine() const;
  // And reaps: UCX takes a process that waits to be reaped for a living one.
  void Kill();

 private:
  base::PipedChild child_;
};

}  // namespace layercake::transport
