#include "cli/line_input.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/posix_error.h"

namespace layercake::cli {
namespace {

constexpr size_t kMaxLineBytes = size_t{16} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<LineInput>> LineInput::Create(int fd) {
  base::UniqueFd stopped(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stopped.valid()) return base::PosixError("create an eventfd", errno);
  return std::unique_ptr<LineInput>(new LineInput(fd, std::move(stopped)));
}

LineInput::LineInput(int fd, base::UniqueFd stopped) : fd_(fd), stopped_(std::move(stopped)) {}

void LineInput::Stop() { eventfd_write(stopped_.get(), 1); }

std::optional<std::string> LineInput::ReadLine() {
  size_t searched = 0;
  for (;;) {
    const size_t end = buffer_.find('\n', searched);
    if (end != std::string::npos || buffer_.size() >= kMaxLineBytes) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end == std::string::npos ? end : end + 1);
      return line;
    }
    searched = buffer_.size();
    if (!ReadMore()) {
      if (buffer_.empty()) return std::nullopt;
      return std::exchange(buffer_, {});
    }
  }
}

// False at the end; what is in the buffer is then the last line.
bool LineInput::ReadMore() {
  if (ended_) return false;
  std::array<pollfd, 2> ready{{{.fd = stopped_.get(), .events = POLLIN, .revents = 0},
                               {.fd = fd_, .events = POLLIN, .revents = 0}}};
  int count = 0;
  do {
    count = poll(ready.data(), ready.size(), /*timeout=*/-1);
  } while (count < 0 && errno == EINTR);
  if (count < 0 || ready[0].revents != 0) {
    ended_ = true;
    buffer_.clear();
    return false;
  }
  std::array<char, 4096> bytes;
  const ssize_t got = read(fd_, bytes.data(), bytes.size());
  if (got <= 0) {
    ended_ = true;
    return false;
  }
  buffer_.append(bytes.data(), static_cast<size_t>(got));
  return true;
}

}  // namespace layercake::cli
