// Monotonic time. Every deadline in Layercake is an Instant; wall time is for logs and templates.
#pragma once

#include <compare>

#include "absl/time/time.h"

namespace layercake::base {

// A point on a Clock's monotonic axis. Only differences mean anything.
class Instant {
 public:
  constexpr Instant() = default;
  static constexpr Instant FromStart(absl::Duration since_start) { return Instant(since_start); }
  static constexpr Instant Infinite() { return Instant(absl::InfiniteDuration()); }

  constexpr absl::Duration since_start() const { return since_start_; }

  friend constexpr auto operator<=>(Instant a, Instant b) {
    return a.since_start_ < b.since_start_   ? std::strong_ordering::less
           : b.since_start_ < a.since_start_ ? std::strong_ordering::greater
                                             : std::strong_ordering::equal;
  }
  friend constexpr bool operator==(Instant a, Instant b) {
    return a.since_start_ == b.since_start_;
  }
  friend Instant operator+(Instant a, absl::Duration d) { return Instant(a.since_start_ + d); }
  friend Instant operator-(Instant a, absl::Duration d) { return Instant(a.since_start_ - d); }
  friend absl::Duration operator-(Instant a, Instant b) { return a.since_start_ - b.since_start_; }

 private:
  constexpr explicit Instant(absl::Duration since_start) : since_start_(since_start) {}
  absl::Duration since_start_ = absl::ZeroDuration();
};

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() const = 0;
  // Wall time: log lines, certificates, strftime_now in chat templates. Never for a deadline.
  virtual absl::Time WallNow() const = 0;
};

// The machine's CLOCK_MONOTONIC and CLOCK_REALTIME.
class SystemClock final : public Clock {
 public:
  Instant Now() const override;
  absl::Time WallNow() const override;
};

}  // namespace layercake::base
