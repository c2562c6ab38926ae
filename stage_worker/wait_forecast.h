// When something that a stage waits for again and again is to be expected: the time of the last few
// waits says it. So a thread can sleep through most of a wait and be awake when it ends. Pure.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "base/clock.h"

namespace layercake::stage_worker {

class WaitForecast {
 public:
  // From `begin`, some time before the end of a wait like the last ones, until `end`, some time
  // after it. No longer than kMaxLead + kMaxLag.
  struct Window {
    base::Instant begin;
    base::Instant end;
  };
  // A timer's slack (50 us) and a wake-up from deep sleep (100 us in a virtual machine), and more.
  static constexpr absl::Duration kMinLead = absl::Microseconds(300);
  static constexpr absl::Duration kMaxLead = absl::Microseconds(500);
  static constexpr absl::Duration kMinLag = absl::Microseconds(200);
  static constexpr absl::Duration kMaxLag = absl::Microseconds(500);

  // A wait took so long.
  void Record(absl::Duration wait);
  // Of a wait that began at `since`. Nothing while too little is known, or where waits last so long
  // that their end cannot be told to within the window.
  std::optional<Window> Expect(base::Instant since) const;

 private:
  static constexpr size_t kKept = 5;
  static constexpr absl::Duration kLongest = absl::Milliseconds(100);

  std::deque<absl::Duration> waits_;  // the latest last
};

}  // namespace layercake::stage_worker
