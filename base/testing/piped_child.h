// A child process with its standard input and output at hand.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace layercake::base {

struct PipedChild {
  pid_t pid = -1;   // -1: it could not be started, and reads as one that has ended
  UniqueFd input;   // a socket, so that writes can do without SIGPIPE
  UniqueFd output;  // a pipe
};

// Program and arguments; the caller reaps it.
PipedChild StartPipedChild(std::vector<std::string> words);

// A line to its standard input; false when it has ended.
bool WriteLine(const PipedChild& child, const std::string& line);

}  // namespace layercake::base
