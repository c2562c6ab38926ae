// The heart of a stage worker: plans and activations in, activations or sampled tokens out.
//
//   plan (Session or plan lane) -> checked -> sent downstream at once -> queued
//   activation + free device + downstream slot -> step begins -> done -> Commit, or the result
//
// A plan may run ahead of a token that an earlier step samples. The last stage finds it when the
// step begins, since it ran that step itself; the first one waits until the last one has said it
// (feedback.h). The order of the steps stays that of the plans.
//
// An event-driven state machine: it never blocks, it is told what changed, and every wait has a
// deadline, a name and a report. The first failure is latched: nothing is computed or sent after
// it, and whoever owns the loop hears of it once.
//
// Several steps may be submitted to the device at a time (kMaxSubmitted); the device runs them in
// order, so that the next one begins without a round through this loop.
// Thread rule: everything on the step thread. Work handed to the device uses the stage, the
// channels' slots and the loop's own steps: keep all of them until drained().
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/event_poll.h"
#include "base/executor.h"
#include "kernels/device.h"
#include "layercake/v1/control.pb.h"
#include "stage_worker/activation_parts.h"
#include "stage_worker/feedback.h"
#include "stage_worker/plan_check.h"
#include "stage_worker/recent_steps.h"
#include "stage_worker/sequence_table.h"
#include "stage_worker/stage_limits.h"
#include "stage_worker/step_stage.h"
#include "stage_worker/token_ledger.h"
#include "stage_worker/wait_forecast.h"
#include "transport/channel.h"

namespace layercake::stage_worker {

struct StepLoopOptions {
  StageLimits limits;
  // One stage may take this long for one step. A wait on neighbours may last as long as the stages
  // that it depends on may take one after the other.
  absl::Duration step_timeout;
  std::string upstream_peer;  // for messages: "stage 1 (host b)"
  std::string downstream_peer;
  std::string feedback_peer;  // of a chain of several: the last stage to the first, and back
  // Of the step thread, which then looks for what is about to come instead of sleeping, and keeps
  // the device's thread awake too (step_loop_polls.cc). Outlives the loop. Null where cores are
  // few: threads sleep through every wait.
  base::EventPoll* poll = nullptr;
};

// Null where a stage has no such neighbour.
struct StepChannels {
  transport::ChannelReceiver* upstream = nullptr;
  transport::ChannelSender* downstream = nullptr;
  transport::ChannelReceiver* feedback_in = nullptr;  // the first stage of several
  transport::ChannelSender* feedback_out = nullptr;   // the last stage of several
};

class StepLoop {
 public:
  struct Callbacks {
    absl::AnyInvocable<void(v1::StepResult)> on_result;  // the last stage
    absl::AnyInvocable<void(absl::Status)> on_failure;   // once
    // After Stop or a failure, when the device let go of the last piece of work.
    absl::AnyInvocable<void()> on_drained;
  };

  // Everything outlives the loop until it is drained(). The callbacks run inside calls to the loop
  // and do not destroy it; on_failure may call Stop.
  StepLoop(StepLoopOptions options, const base::Clock& clock, base::Timers& timers,
           kernels::Device& device, StepStage& stage, const StepChannels& channels,
           Callbacks callbacks);
  ~StepLoop();

  // A plan from the Session: the first stage only.
  void OnPlan(const v1::MicroBatchPlan& plan);
  // A channel may have something: goes on as far as it can.
  void OnChannelReady();
  // Nothing begins any more; what the device holds ends by itself.
  void Stop();
  // The device holds nothing of this loop.
  bool drained() const { return submitted_ == 0; }

  const absl::Status& status() const { return status_; }
  // What is waited for the longest, to stand behind "waits for"; empty when nothing is.
  std::string WaitingFor() const;
  // When the next deadline runs out; Infinite without one.
  base::Instant NextWakeup() const;
  v1::StageCounters Counters() const;

 private:
  enum class WaitKind : uint8_t {
    kPlanSlot,
    kActivation,
    kToken,
    kActivationSlot,
    kDevice,
    kFeedbackSlot
  };
  static constexpr int kWaitKinds = 6;
  // Two: the device finds its next step when it ends one. More would only delay the report of an
  // error.
  static constexpr size_t kMaxSubmitted = 2;
  struct Wait {
    bool active = false;
    uint64_t step = 0;
    base::Instant since;
    base::Instant deadline = base::Instant::Infinite();
  };

  // A step on its way. Shared with the work on the device, which may end after the loop failed.
  struct Step {
    StepPlan plan;
    std::string serialized;  // of the plan; empty once it was sent downstream
    std::optional<transport::ReceivedFrame> activation;
    uint32_t read_bytes = 0;  // of its payload, handed to the device
    bool arrived = false;     // all of it, and checked
    std::vector<int32_t> marks;
    std::optional<transport::SendSlot> slot;  // downstream's
    ActivationParts parts;                    // of the frame in it
    uint32_t committed_bytes = 0;             // of a frame in parts
    StepOutput output;
    base::Instant taken;  // its plan
    base::Instant submitted;
    bool waited = false;  // for others, with nothing on the device
    bool prepared = false;
  };

  void Pump();
  // Each does as much as it can; an error latches.
  absl::Status PollPlans();
  absl::Status ForwardPlans();
  absl::Status MoveFeedback();
  absl::Status BeginSteps();
  // False when something is missing that will be waited for.
  absl::StatusOr<bool> PrepareStep(const std::shared_ptr<Step>& step);
  absl::StatusOr<bool> TakeArrived(const std::shared_ptr<Step>& step);
  absl::Status PollActivation(Step& step);
  void SubmitPreparation(const std::shared_ptr<Step>& step);
  absl::Status TakePlan(const v1::MicroBatchPlan& plan, std::string serialized);
  void Submit(const std::shared_ptr<Step>& step);
  void SubmitParts(const std::shared_ptr<Step>& step);
  void SubmitRead(const std::shared_ptr<Step>& step, uint32_t end);
  void OnActivationRead(const std::shared_ptr<Step>& step, bool last, const absl::Status& status);
  void OnPartDone(const std::shared_ptr<Step>& step, int part, const absl::Status& status);
  void OnStepDone(const std::shared_ptr<Step>& step, const absl::Status& status);
  // What neighbours wait for, then what only the coordinator hears of.
  absl::Status PassOn(Step& step);
  void Report(Step& step);
  absl::Status CommitUpTo(Step& step, uint32_t bytes);
  void CountTime(const Step& step);
  void CountHop(const transport::FrameHeader& header);
  static bool InDeviceSlot(const Step& step);

  // Staying awake for what is about to come (step_loop_polls.cc).
  void CountWait(const Step& step);
  std::optional<WaitForecast::Window> ExpectNext() const;
  void UpdatePolls();
  void OnPollTimer();
  void KeepDeviceAwake(base::Instant until);
  void LetDeviceGo();
  void EndPolls();

  // False when the loop has ended and nothing more may be made of a completion.
  bool TakeCompletion();
  void Fail(absl::Status status);
  void Progress();
  void UpdateWait(WaitKind kind, bool waiting, uint64_t step);
  void UpdateWaits();
  void ArmTimer();
  void OnTimer();
  absl::Duration Patience(WaitKind kind) const;
  std::string Describe(WaitKind kind, const Wait& wait) const;

  const StepLoopOptions options_;
  const base::Clock& clock_;
  base::Timers& timers_;
  kernels::Device& device_;
  StepStage& stage_;
  transport::ChannelReceiver* const upstream_;
  transport::ChannelSender* const downstream_;
  std::optional<FeedbackReader> feedback_in_;
  std::optional<FeedbackWriter> feedback_out_;
  // The last stage's, used by work on the device alone, which may outlive the loop.
  std::shared_ptr<TokenLedger> ledger_;
  Callbacks callbacks_;

  absl::Status status_;
  bool stopped_ = false;
  SequenceTable table_;
  uint64_t last_step_ = 0;  // admitted
  // Admitted and not begun, in order. At most max_in_flight.
  std::deque<std::shared_ptr<Step>> queue_;
  // Not yet sent downstream: the last ones of those admitted.
  std::deque<std::shared_ptr<Step>> unforwarded_;
  std::deque<std::shared_ptr<Step>> running_;  // on the device, in order
  int submitted_ = 0;                          // pieces of work on the device

  std::array<Wait, kWaitKinds> waits_;
  base::TimerId timer_ = base::TimerId::kNone;
  base::Instant timer_due_ = base::Instant::Infinite();
  base::Instant last_progress_;
  base::Instant last_done_;        // the device ended a step
  WaitForecast device_forecast_;   // from one step's end to the next one's, or from its submission
  WaitForecast arrival_forecast_;  // of what an idle device waits for, once its plan is here
  base::TimerId poll_timer_ = base::TimerId::kNone;
  base::Instant poll_timer_due_;
  // Set: the device's thread, which looks for work, may go on. Null: it does not look.
  std::shared_ptr<std::atomic<bool>> device_awake_;
  v1::StageCounters counters_;
  RecentSteps recent_;
  // Completions that come after the loop is gone find it false.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace layercake::stage_worker
