#include "base/signal_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "base/posix_error.h"

namespace layercake::base {
namespace {

// A handler gets nothing but the number.
std::atomic<int> write_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void Note(int number) {
  const int error = errno;
  const auto byte = static_cast<unsigned char>(number);
  // A full pipe says enough already.
  [[maybe_unused]] const ssize_t written =
      write(write_fd.load(std::memory_order_relaxed), &byte, sizeof(byte));
  errno = error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SignalWatch>> SignalWatch::Create(absl::Span<const int> signals) {
  int ends[2];
  if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) return PosixError("create a pipe", errno);
  auto watch = absl::WrapUnique(new SignalWatch());
  watch->read_end_.Reset(ends[0]);
  watch->write_end_.Reset(ends[1]);
  int nobody = -1;
  if (!write_fd.compare_exchange_strong(nobody, ends[1])) {
    watch->write_end_.Reset();
    return absl::FailedPreconditionError("signals are watched already");
  }
  for (const int number : signals) {
    struct sigaction before = {};
    if (sigaction(number, nullptr, &before) != 0) return PosixError("ask for a signal", errno);
    if (number == SIGHUP && before.sa_handler == SIG_IGN) continue;
    struct sigaction action = {};
    action.sa_handler = Note;
    action.sa_flags = SA_RESTART;
    if (sigaction(number, &action, nullptr) != 0) return PosixError("handle a signal", errno);
    watch->before_.emplace_back(number, before);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    if (const int error = pthread_sigmask(SIG_UNBLOCK, &one, nullptr); error != 0) {
      return PosixError("unblock a signal", error);
    }
  }
  return watch;
}

SignalWatch::~SignalWatch() {
  if (!write_end_.valid()) return;
  for (const auto& [number, action] : before_) sigaction(number, &action, nullptr);
  write_fd.store(-1, std::memory_order_relaxed);
}

std::vector<int> SignalWatch::Take() {
  std::vector<int> numbers;
  std::array<unsigned char, 64> bytes;
  for (;;) {
    const ssize_t got = read(read_end_.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return numbers;
    numbers.insert(numbers.end(), bytes.begin(), bytes.begin() + got);
  }
}

}  // namespace layercake::base
