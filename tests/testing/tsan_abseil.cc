// Tells ThreadSanitizer about Abseil's locks. The distribution's Abseil is not compiled with the
// sanitizer, which therefore sees no order between two threads that hold one absl::Mutex in turn.
// Linked into the tests of a thread-sanitized build, these definitions come before the shared
// library's, call them, and say what they order.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace {

constexpr useconds_t kLookAgainUs = 200;

#define LC_TEXT_INNER_(x) #x
#define LC_TEXT_(x) LC_TEXT_INNER_(x)

// The library's own function; `rest` is its mangled name behind the inline namespace.
template <typename Function>
Function* Library(const char* rest, bool is_const = false) {
  const std::string space = LC_TEXT_(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string name = std::string(is_const ? "_ZNK" : "_ZN") + "4absl" +
                           std::to_string(space.size()) + space + rest;
  void* const found = dlsym(RTLD_NEXT, name.c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "no %s in the shared libraries: %s\n", name.c_str(), dlerror());
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

void absl::Mutex::Lock() {
  static auto* const library = Library<void(Mutex*)>("5Mutex4LockEv");
  library(this);
  __tsan_acquire(this);
}

void absl::Mutex::Unlock() {
  static auto* const library = Library<void(Mutex*)>("5Mutex6UnlockEv");
  __tsan_release(this);
  library(this);
}

// The library lets any thread that unlocks the mutex evaluate the conditions of those who wait, out
// of the sanitizer's sight. Here each waits for its own condition, looking again and again.
void absl::Mutex::Await(const Condition& condition) {
  while (!condition.Eval()) {
    Unlock();
    usleep(kLookAgainUs);
    Lock();
  }
}

bool absl::Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  const Time deadline = absl::Now() + timeout;
  bool met = condition.Eval();
  while (!met && absl::Now() < deadline) {
    Unlock();
    usleep(kLookAgainUs);
    Lock();
    met = condition.Eval();
  }
  return met;
}

void absl::CondVar::Wait(Mutex* mutex) {
  static auto* const library = Library<void(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  library(this, mutex);
  __tsan_acquire(mutex);
}

void absl::Notification::Notify() {
  static auto* const library = Library<void(Notification*)>("12Notification6NotifyEv");
  __tsan_release(this);
  library(this);
}

void absl::Notification::WaitForNotification() const {
  static auto* const library =
      Library<void(const Notification*)>("12Notification19WaitForNotificationEv", true);
  library(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool absl::Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static auto* const library = Library<bool(const Notification*, Duration)>(
      "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE", true);
  const bool notified = library(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}
