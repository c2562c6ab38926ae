// The step times that a heartbeat carries. What the coordinator learns from them is what steps of
// each size cost; where hundreds of decodes follow each prompt, the latest alone would hardly ever
// show what its chunks took.
//
// Thread rule: one thread. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "layercake/v1/control.pb.h"

namespace layercake::stage_worker {

// Of the latest steps, some of each size (by powers of two).
class RecentSteps {
 public:
  static constexpr size_t kMost = 32;  // enough for a fit, a kilobyte at most
  static constexpr uint64_t kOldest =
      512;  // steps ago; the coordinator keeps the shapes of twice that

  // Steps come in order.
  void Add(uint64_t step, int rows, double seconds);
  // Adds them to recent_steps, ascending.
  void AppendTo(v1::StageCounters& counters) const;

 private:
  struct Entry {
    uint64_t step = 0;
    int size = 0;  // rows' power of two
    double seconds = 0;
  };
  // Of the size that has most, the oldest.
  void DropOne();

  std::deque<Entry> entries_;
};

}  // namespace layercake::stage_worker
