#include "stage_worker/recent_steps.h"

#include <algorithm>
#include <array>
#include <bit>

namespace layercake::stage_worker {

void RecentSteps::Add(uint64_t step, int rows, double seconds) {
  while (!entries_.empty() && entries_.front().step + kOldest < step) entries_.pop_front();
  if (entries_.size() == kMost) DropOne();
  const auto above = static_cast<uint32_t>(std::max(rows, 1) - 1);
  const auto size = static_cast<int>(std::bit_width(above));
  entries_.push_back({.step = step, .size = size, .seconds = seconds});
}

void RecentSteps::DropOne() {
  std::array<int, 33> counts{};
  for (const Entry& entry : entries_) ++counts[static_cast<size_t>(entry.size)];
  const int most = *std::max_element(counts.begin(), counts.end());
  entries_.erase(std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return counts[static_cast<size_t>(entry.size)] == most;
  }));
}

void RecentSteps::AppendTo(v1::StageCounters& counters) const {
  for (const Entry& entry : entries_) {
    v1::StepTime* const time = counters.add_recent_steps();
    time->set_step(entry.step);
    time->set_seconds(entry.seconds);
  }
}

}  // namespace layercake::stage_worker
