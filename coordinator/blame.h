// Whose fault it is when a step does not come back: by counters, walking from stage 0, so that a
// healthy stage is never blamed for waiting (docs/architecture.md, "Failure").
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "layercake/v1/control.pb.h"

namespace layercake::coordinator {

enum class Culprit { kSession, kStage, kLink, kCoordinator };

struct Verdict {
  Culprit culprit = Culprit::kCoordinator;
  int stage = -1;        // kSession, kStage: that stage; kLink: the sending stage
  std::string evidence;  // the counters that say so
};

// `counters` of every stage from its latest heartbeat, in chain order. Pure.
Verdict Blame(uint64_t plans_sent, absl::Span<const v1::StageCounters> counters);

}  // namespace layercake::coordinator
