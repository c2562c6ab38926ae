// The two ends of the way back from the last stage to the first: what each step sampled, in the
// order of the steps, for rows that were planned before their token was known. One frame for each
// step that samples anything: a v1.StepFeedback on the plan lane.
//
// Thread rule: the step thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "layercake/v1/control.pb.h"
#include "stage_worker/plan_check.h"
#include "stage_worker/sampled_tokens.h"
#include "stage_worker/stage_limits.h"
#include "transport/channel.h"

namespace layercake::stage_worker {

// Slots for the feedback of as many steps as may be in flight, each of all sequences. The
// activation lane is there for form.
transport::ChannelGeometry FeedbackGeometry(const v1::Assignment& assignment);

// The request of an Assignment, for tokens, which are host data: cuda_ipc becomes pinned_host.
std::string FeedbackTransport(const std::string& transport);

// The last stage's end.
class FeedbackWriter {
 public:
  // `channel` outlives it.
  FeedbackWriter(transport::ChannelSender& channel, const StageLimits& limits)
      : channel_(channel), limits_(limits) {}

  // A step has ended.
  void Add(const StepPlan& plan, absl::Span<const v1::SequenceResult> results);
  // Sends what the channel takes. Its error, or one of a feedback that does not fit a slot.
  absl::Status Flush();
  // The first step whose feedback waits for a slot; 0: none does.
  uint64_t waiting_step() const { return waiting_.empty() ? 0 : waiting_.front().step(); }
  transport::TransportKind kind() const { return channel_.kind(); }

 private:
  transport::ChannelSender& channel_;
  const StageLimits limits_;
  std::deque<v1::StepFeedback> waiting_;  // as many as steps are in flight
};

// The first stage's end.
class FeedbackReader {
 public:
  // `channel` outlives it.
  FeedbackReader(transport::ChannelReceiver& channel, const StageLimits& limits)
      : channel_(channel), limits_(limits) {}

  // A step was taken: its feedback comes after that of the steps before.
  void Expect(const StepPlan& plan);
  // Takes what has come. FailedPrecondition: the feedback of another ring, of a step that is not
  // the next (a repeat, a gap) or of other sequences. DataLoss: it cannot be read. InvalidArgument:
  // a token beyond the vocabulary.
  absl::Status Poll();
  // Sets the tokens of a step that is about to begin. False while one is missing.
  bool Fill(StepPlan& plan);
  // The step that a step's tokens are waited for from; 0 when all are here.
  uint64_t MissingStep(const StepPlan& plan) const { return sampled_.MissingStep(plan); }
  transport::TransportKind kind() const { return channel_.kind(); }

 private:
  struct Expected {
    uint64_t step = 0;
    std::vector<uint64_t> sequences;
  };
  absl::Status Take(const transport::ReceivedFrame& frame, const std::string& serialized);

  transport::ChannelReceiver& channel_;
  const StageLimits limits_;
  std::deque<Expected> expected_;  // of steps in flight
  SampledTokens sampled_;          // of the latest max_in_flight steps
};

}  // namespace layercake::stage_worker
