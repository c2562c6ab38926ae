#include <time.h>

#include "base/clock.h"

namespace layercake::base {
namespace {

timespec ReadClock(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);  // cannot fail for these two ids
  return now;
}

}  // namespace

Instant SystemClock::Now() const {
  return Instant::FromStart(absl::DurationFromTimespec(ReadClock(CLOCK_MONOTONIC)));
}

absl::Time SystemClock::WallNow() const {
  return absl::TimeFromTimespec(ReadClock(CLOCK_REALTIME));
}

}  // namespace layercake::base
