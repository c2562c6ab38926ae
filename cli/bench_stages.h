// What each stage of a chain did between two answers of GetStatus. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "layercake/v1/inference.pb.h"

namespace layercake::cli {

// Figures that nobody measured are 0.
struct StageFigures {
  int stage = 0;
  double busy = 0;               // share of the time
  double step_milliseconds = 0;  // of the device, per step
  // Weights of the stage over the time of a step, as if a step read all of them once; in shares of
  // the speed at which the device copies (reads plus writes).
  double weight_gigabytes_per_second = 0;
  double copy_share = 0;
  // From the stage before, when it is on the same host: from the commit of an activation until all
  // of it was received, and the bytes that went in that time.
  double hop_microseconds = 0;
  double hop_gigabytes_per_second = 0;
  std::string transport;  // kind of the channel from the stage before
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;
  uint64_t buffer_bytes = 0;
};

// Counters come with heartbeats. True when every stage has reported within the last `seconds`.
bool AllReportedWithin(const v1::GetStatusResponse& status, double seconds);

// Between a report of every stage before the work and one after it; the work took `seconds`.
std::vector<StageFigures> StageFiguresBetween(const v1::GetStatusResponse& before,
                                              const v1::GetStatusResponse& after, double seconds);

// The heading, and a line per stage, of a run with so many streams. "-" stands for what nobody
// measured.
std::string StageTableHeading();
std::string FormatStageFigures(int streams, absl::Span<const StageFigures> stages);

}  // namespace layercake::cli
