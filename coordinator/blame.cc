#include "coordinator/blame.h"

#include "absl/strings/str_cat.h"

namespace layercake::coordinator {

Verdict Blame(uint64_t plans_sent, absl::Span<const v1::StageCounters> counters) {
  for (size_t i = 0; i < counters.size(); ++i) {
    const v1::StageCounters& stage = counters[i];
    const int number = static_cast<int>(i);
    if (i == 0 && plans_sent > stage.plans_seen()) {
      return {Culprit::kSession, 0,
              absl::StrCat(plans_sent, " plans sent, ", stage.plans_seen(), " seen by stage 0")};
    }
    if (stage.steps_begun() > stage.steps_done()) {
      return {Culprit::kStage, number,
              absl::StrCat("stage ", number, " began ", stage.steps_begun(), " steps and finished ",
                           stage.steps_done())};
    }
    if (i + 1 < counters.size() && stage.steps_done() > counters[i + 1].activations_seen()) {
      return {Culprit::kLink, number,
              absl::StrCat("stage ", number, " finished ", stage.steps_done(), " steps and stage ",
                           number + 1, " saw ", counters[i + 1].activations_seen())};
    }
  }
  // Every stage has done all that it began, and the first one holds back: its next step lacks a
  // token that the last one sampled.
  if (counters.size() > 1 && counters[0].plans_seen() > counters[0].steps_begun()) {
    return {Culprit::kLink, static_cast<int>(counters.size()) - 1,
            absl::StrCat("every stage finished ", counters[0].steps_begun(), " steps and stage 0, ",
                         "which saw ", counters[0].plans_seen(), " plans, lacks a token")};
  }
  return {Culprit::kCoordinator, -1, "no stage's counters stand out"};
}

}  // namespace layercake::coordinator
