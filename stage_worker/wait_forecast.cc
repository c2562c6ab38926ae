#include "stage_worker/wait_forecast.h"

#include <algorithm>
#include <vector>

namespace layercake::stage_worker {

void WaitForecast::Record(absl::Duration wait) {
  waits_.push_back(std::max(wait, absl::ZeroDuration()));
  if (waits_.size() > kKept) waits_.pop_front();
}

std::optional<WaitForecast::Window> WaitForecast::Expect(base::Instant since) const {
  if (waits_.size() < kKept) return std::nullopt;
  // The median: a prompt between decodes makes no difference.
  std::vector<absl::Duration> sorted(waits_.begin(), waits_.end());
  std::nth_element(sorted.begin(), sorted.begin() + kKept / 2, sorted.end());
  const absl::Duration wait = sorted[kKept / 2];
  if (wait > kLongest) return std::nullopt;
  return Window{.begin = since + wait - std::clamp(wait / 20, kMinLead, kMaxLead),
                .end = since + wait + std::clamp(wait / 5, kMinLag, kMaxLag)};
}

}  // namespace layercake::stage_worker
