#include "base/signal_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/posix_error.h"

namespace layercake::base {
namespace {

// A handler gets nothing but the number, so what it looks at is the process's. Pipes stay open for
// the next watch: a handler that is just running must not write into a file of another kind.
struct Slot {
  std::atomic<uint64_t> wanted{0};  // bit n: signal n
  std::atomic<int> write_end{-1};
  int read_end = -1;  // under the mutex, then the watch's
  bool taken = false;
};
constexpr size_t kMostWatches = 64;
std::array<Slot, kMostWatches> slots;

struct Handled {
  int watches = 0;
  struct sigaction before = {};
};
absl::Mutex mutex(absl::kConstInit);
std::array<Handled, 64> handled ABSL_GUARDED_BY(mutex);

constexpr uint64_t Bit(int number) { return uint64_t{1} << number; }

void Note(int number) {
  const int error = errno;
  const auto byte = static_cast<unsigned char>(number);
  for (const Slot& slot : slots) {
    if ((slot.wanted.load() & Bit(number)) == 0) continue;
    // A full pipe says enough already.
    [[maybe_unused]] const ssize_t written = write(slot.write_end.load(), &byte, sizeof(byte));
  }
  errno = error;
}

absl::StatusOr<int> TakeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].taken) continue;
    if (slots[i].read_end < 0) {
      int ends[2];
      if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) return PosixError("create a pipe", errno);
      slots[i].read_end = ends[0];
      slots[i].write_end.store(ends[1]);
    }
    slots[i].taken = true;
    return static_cast<int>(i);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("more than ", kMostWatches, " watch signals in this process"));
}

// Whether the signal is handled now: not where it is to stay ignored, nor after an error before
// that.
absl::Status Handle(int number, bool* handles) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
  Handled& of_number = handled[static_cast<size_t>(number)];
  *handles = false;
  if (of_number.watches == 0) {
    if (sigaction(number, nullptr, &of_number.before) != 0) {
      return PosixError("ask for a signal", errno);
    }
    if (number == SIGHUP && of_number.before.sa_handler == SIG_IGN) {
      return absl::OkStatus();
    }
    struct sigaction action = {};
    action.sa_handler = Note;
    action.sa_flags = SA_RESTART;
    if (sigaction(number, &action, nullptr) != 0) return PosixError("handle a signal", errno);
  }
  ++of_number.watches;
  *handles = true;
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  const int error = pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  return error == 0 ? absl::OkStatus() : PosixError("unblock a signal", error);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SignalWatch>> SignalWatch::Create(absl::Span<const int> signals) {
  std::unique_ptr<SignalWatch> watch;  // takes back what was done, without the lock
  {
    absl::MutexLock lock(&mutex);
    const absl::StatusOr<int> slot = TakeSlot();
    if (!slot.ok()) return slot.status();
    watch = absl::WrapUnique(new SignalWatch(*slot));
  }
  watch->Take();  // what came for the one before
  for (const int number : signals) {
    absl::MutexLock lock(&mutex);
    bool handles = false;
    const absl::Status status = Handle(number, &handles);
    if (handles) watch->handled_.push_back(number);
    if (!status.ok()) return status;
    if (handles) slots[static_cast<size_t>(watch->slot_)].wanted.fetch_or(Bit(number));
  }
  return watch;
}

SignalWatch::~SignalWatch() {
  absl::MutexLock lock(&mutex);
  Slot& slot = slots[static_cast<size_t>(slot_)];
  slot.wanted.store(0);
  for (const int number : handled_) {
    Handled& of_number = handled[static_cast<size_t>(number)];
    if (--of_number.watches == 0) sigaction(number, &of_number.before, nullptr);
  }
  slot.taken = false;
}

int SignalWatch::fd() const { return slots[static_cast<size_t>(slot_)].read_end; }

std::vector<int> SignalWatch::Take() {
  std::vector<int> numbers;
  std::array<unsigned char, 64> bytes;
  for (;;) {
    const ssize_t got = read(fd(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return numbers;
    numbers.insert(numbers.end(), bytes.begin(), bytes.begin() + got);
  }
}

}  // namespace layercake::base
