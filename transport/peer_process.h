// A process at the other end of a test, with pipes to its standard input and output.
//
// Thread rule: one thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace layercake::transport {

class PeerProcess {
 public:
  // Program and arguments. A program that cannot be started reads as one that ended.
  explicit PeerProcess(std::vector<std::string> words);
  PeerProcess(PeerProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        input_(std::move(other.input_)),
        output_(std::move(other.output_)) {}
  ~PeerProcess() { Kill(); }

  // False when it has ended.
  bool Write(const std::string& line) const;
  // Empty when it has ended.
  std::string ReadLine() const;
  // And reaps: UCX takes a process that waits to be reaped for a living one.
  void Kill();

 private:
  pid_t pid_ = -1;
  base::UniqueFd input_;
  base::UniqueFd output_;
};

}  // namespace layercake::transport
