// Tells an executor's thread when a file descriptor can be read.
#pragma once

#include "absl/status/status.h"
#include "base/executor.h"

namespace layercake::base {

// Used from the executor's thread only.
class FdWatcher {
 public:
  virtual ~FdWatcher() = default;
  // Runs `on_readable` on the executor's thread whenever `fd` is readable (level triggered: it
  // must read, or it runs again). The caller keeps `fd` open until Unwatch. A hang-up counts as
  // readable.
  virtual absl::Status Watch(int fd, Task on_readable) = 0;
  // After this the task never runs again; it may be called from inside the task.
  virtual void Unwatch(int fd) = 0;
};

}  // namespace layercake::base
