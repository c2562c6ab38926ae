// Lines from a descriptor, for a thread that somebody else may have to get out of its read.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace layercake::cli {

// ReadLine from one thread; Stop from any.
class LineInput {
 public:
  // `fd` stays open as long as this lives.
  static absl::StatusOr<std::unique_ptr<LineInput>> Create(int fd);

  // The next line without its end; the last one may lack it. nullopt at the end of the input, after
  // Stop, and when the input cannot be read. A line of more than 16 MiB is cut there.
  std::optional<std::string> ReadLine();
  // ReadLine returns nullopt from now on.
  void Stop();

 private:
  LineInput(int fd, base::UniqueFd stopped);
  bool ReadMore();

  const int fd_;
  const base::UniqueFd stopped_;  // eventfd
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace layercake::cli
