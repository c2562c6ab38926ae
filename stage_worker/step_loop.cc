#include "stage_worker/step_loop.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "stage_worker/activation_frame.h"

namespace layercake::stage_worker {
namespace {

using transport::Lane;

absl::Status Annotated(const absl::Status& status, absl::string_view prefix) {
  return absl::Status(status.code(), absl::StrCat(prefix, ": ", status.message()));
}

}  // namespace

StepLoop::StepLoop(StepLoopOptions options, const base::Clock& clock, base::Timers& timers,
                   kernels::Device& device, StepStage& stage, const StepChannels& channels,
                   Callbacks callbacks)
    : options_(std::move(options)),
      clock_(clock),
      timers_(timers),
      device_(device),
      stage_(stage),
      upstream_(channels.upstream),
      downstream_(channels.downstream),
      callbacks_(std::move(callbacks)),
      last_progress_(clock.Now()) {
  const StageLimits& limits = options_.limits;
  const bool alone = limits.stage_count == 1;
  LC_CHECK((upstream_ == nullptr) == limits.first(), "stage ", limits.stage);
  LC_CHECK((downstream_ == nullptr) == limits.last(), "stage ", limits.stage);
  LC_CHECK((channels.feedback_in == nullptr) == (alone || !limits.first()), "stage ", limits.stage);
  LC_CHECK((channels.feedback_out == nullptr) == (alone || !limits.last()), "stage ", limits.stage);
  if (channels.feedback_in != nullptr) feedback_in_.emplace(*channels.feedback_in, limits);
  if (channels.feedback_out != nullptr) feedback_out_.emplace(*channels.feedback_out, limits);
  if (limits.last()) ledger_ = std::make_shared<TokenLedger>(limits);
}

StepLoop::~StepLoop() {
  *alive_ = false;
  EndPolls();
  if (timer_ != base::TimerId::kNone) timers_.Cancel(timer_);
}

void StepLoop::OnPlan(const v1::MicroBatchPlan& plan) {
  if (stopped_ || !status_.ok()) return;
  if (!options_.limits.first()) {
    Fail(absl::FailedPreconditionError(absl::StrCat(
        "stage ", options_.limits.stage, " got a plan from the Session; plans reach it through ",
        options_.upstream_peer)));
    return;
  }
  const int in_flight = static_cast<int>(queue_.size() + running_.size());
  absl::Status taken;
  if (in_flight >= options_.limits.max_in_flight) {
    taken = absl::FailedPreconditionError(
        absl::StrCat("plan of step ", plan.step(), " came while ", in_flight,
                     " steps are in flight, the most that were agreed (max_in_flight)"));
  } else {
    taken = TakePlan(plan, downstream_ == nullptr ? std::string() : plan.SerializeAsString());
  }
  if (!taken.ok()) {
    Fail(std::move(taken));
    return;
  }
  Pump();
}

void StepLoop::OnChannelReady() { Pump(); }

void StepLoop::Stop() {
  stopped_ = true;
  queue_.clear();
  unforwarded_.clear();
  for (Wait& wait : waits_) wait.active = false;
  EndPolls();
  if (timer_ != base::TimerId::kNone) timers_.Cancel(std::exchange(timer_, base::TimerId::kNone));
}

void StepLoop::Pump() {
  if (stopped_ || !status_.ok()) return;
  absl::Status status = PollPlans();
  if (status.ok()) status = ForwardPlans();
  if (status.ok()) status = MoveFeedback();
  if (status.ok()) status = BeginSteps();
  if (!status.ok()) {
    Fail(std::move(status));
    return;
  }
  UpdateWaits();
  ArmTimer();
  UpdatePolls();
}

absl::Status StepLoop::PollPlans() {
  if (upstream_ == nullptr) return absl::OkStatus();
  // A channel that failed says so even when nothing is expected of it.
  LC_RETURN_IF_ERROR(upstream_->status());
  while (static_cast<int>(queue_.size() + running_.size()) < options_.limits.max_in_flight) {
    LC_ASSIGN_OR_RETURN(std::optional<transport::ReceivedFrame> frame,
                        upstream_->Poll(Lane::kPlan));
    if (!frame.has_value()) break;
    if (frame->header.kind != transport::FrameKind::kPlan) {
      return absl::FailedPreconditionError(
          absl::StrCat("frame of kind ", static_cast<int>(frame->header.kind),
                       " on the plan lane from ", options_.upstream_peer));
    }
    std::string serialized(reinterpret_cast<const char*>(frame->payload.address),
                           frame->header.payload_bytes);
    LC_RETURN_IF_ERROR(upstream_->Release(Lane::kPlan, frame->slot));
    v1::MicroBatchPlan plan;
    if (frame->header.section_bytes != 0 || !plan.ParseFromString(serialized) ||
        plan.step() != frame->header.step) {
      return absl::DataLossError(absl::StrCat("plan frame of step ", frame->header.step, " with ",
                                              frame->header.payload_bytes, " bytes from ",
                                              options_.upstream_peer, " cannot be read"));
    }
    LC_RETURN_IF_ERROR(TakePlan(plan, std::move(serialized)));
  }
  return absl::OkStatus();
}

absl::Status StepLoop::TakePlan(const v1::MicroBatchPlan& plan, std::string serialized) {
  LC_ASSIGN_OR_RETURN(StepPlan admitted, AdmitPlan(plan, options_.limits, last_step_, table_));
  last_step_ = plan.step();
  auto step = std::make_shared<Step>();
  step->marks.assign(admitted.tokens.size(), kFinite);
  if (feedback_in_.has_value()) feedback_in_->Expect(admitted);
  step->plan = std::move(admitted);
  step->taken = clock_.Now();
  if (downstream_ != nullptr) {
    step->serialized = std::move(serialized);
    unforwarded_.push_back(step);
  }
  queue_.push_back(std::move(step));
  counters_.set_plans_seen(counters_.plans_seen() + 1);
  Progress();
  return absl::OkStatus();
}

absl::Status StepLoop::ForwardPlans() {
  if (downstream_ == nullptr) return absl::OkStatus();
  LC_RETURN_IF_ERROR(downstream_->status());
  while (!unforwarded_.empty()) {
    LC_ASSIGN_OR_RETURN(const std::optional<transport::SendSlot> slot,
                        downstream_->Acquire(Lane::kPlan));
    if (!slot.has_value()) break;
    Step& step = *unforwarded_.front();
    if (step.serialized.size() > slot->memory.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("plan of step ", step.plan.step, " has ", step.serialized.size(),
                       " bytes, the plan slots of the channel to ", options_.downstream_peer,
                       " hold ", slot->memory.bytes, " (ring.plan_slot_bytes)"));
    }
    // An empty plan of step 0 does not exist, so there is always something to copy.
    std::memcpy(slot->memory.address, step.serialized.data(), step.serialized.size());
    LC_RETURN_IF_ERROR(downstream_->Commit(
        *slot, {.kind = transport::FrameKind::kPlan,
                .step = step.plan.step,
                .payload_bytes = static_cast<uint32_t>(step.serialized.size())}));
    step.serialized = std::string();
    unforwarded_.pop_front();
    Progress();
  }
  return absl::OkStatus();
}

absl::Status StepLoop::MoveFeedback() {
  absl::Status moved;
  if (feedback_in_.has_value()) moved = feedback_in_->Poll();
  if (feedback_out_.has_value()) moved = feedback_out_->Flush();
  return moved.ok()
             ? moved
             : Annotated(moved, absl::StrCat("the feedback channel with ", options_.feedback_peer));
}

absl::Status StepLoop::BeginSteps() {
  while (!queue_.empty() && running_.size() < kMaxSubmitted) {
    const std::shared_ptr<Step> step = queue_.front();
    LC_ASSIGN_OR_RETURN(const bool ready, PrepareStep(step));
    if (!ready) {
      step->waited = step->waited || running_.empty();
      SubmitPreparation(step);
      break;
    }
    queue_.pop_front();
    Submit(step);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> StepLoop::PrepareStep(const std::shared_ptr<Step>& step) {
  if (upstream_ != nullptr && !step->activation.has_value()) {
    LC_RETURN_IF_ERROR(PollActivation(*step));
    if (!step->activation.has_value()) return false;
  }
  LC_ASSIGN_OR_RETURN(const bool arrived, TakeArrived(step));
  if (!arrived) return false;
  if (feedback_in_.has_value() && !feedback_in_->Fill(step->plan)) return false;
  if (downstream_ != nullptr && !step->slot.has_value()) {
    LC_ASSIGN_OR_RETURN(step->slot, downstream_->Acquire(Lane::kActivation));
    if (!step->slot.has_value()) return false;
    step->parts =
        ActivationParts(*step->slot, downstream_->part_bytes(), step->plan.rows(), stage_.hidden());
    step->output.first_part_bytes = step->parts.first_part_bytes();
  }
  return true;
}

absl::Status StepLoop::PollActivation(Step& step) {
  LC_ASSIGN_OR_RETURN(step.activation, upstream_->PollBegun(Lane::kActivation));
  if (!step.activation.has_value()) return absl::OkStatus();
  const transport::ReceivedFrame& frame = *step.activation;
  const kernels::Buffer section = frame.sections();
  absl::StatusOr<std::vector<int32_t>> marks = DecodeActivation(
      frame.header, absl::MakeConstSpan(section.address, section.bytes), frame.body().bytes,
      step.plan.step, step.plan.rows(), stage_.hidden(), options_.limits.stage);
  if (!marks.ok()) {
    return Annotated(marks.status(), absl::StrCat("from ", options_.upstream_peer));
  }
  step.marks = *std::move(marks);
  counters_.set_activations_seen(counters_.activations_seen() + 1);
  Progress();
  return absl::OkStatus();
}

void StepLoop::Submit(const std::shared_ptr<Step>& step) {
  CountWait(*step);
  running_.push_back(step);
  counters_.set_steps_begun(counters_.steps_begun() + 1);
  Progress();
  StepStage* const stage = &stage_;
  step->submitted = clock_.Now();
  ++submitted_;
  device_.Submit(
      [stage, step, ledger = ledger_]() -> absl::Status {
        // The steps before this one have ended, so the last stage has their tokens here, without
        // a round through the loop.
        if (ledger != nullptr) LC_RETURN_IF_ERROR(ledger->Begin(step->plan));
        const transport::SendSlot slot = step->slot.value_or(transport::SendSlot{});
        LC_RETURN_IF_ERROR(stage->Run(step->plan, step->marks, slot, step->output));
        if (ledger != nullptr) ledger->End(step->plan, step->output.results);
        return absl::OkStatus();
      },
      [this, step, alive = alive_](absl::Status status) {
        if (*alive) OnPartDone(step, 0, status);
      });
  LetDeviceGo();
  SubmitParts(step);
}

// Of the next step to begin, while what it waits for is under way.
void StepLoop::SubmitPreparation(const std::shared_ptr<Step>& step) {
  if (!stage_.prepares() || std::exchange(step->prepared, true)) return;
  StepStage* const stage = &stage_;
  ++submitted_;
  device_.Submit([stage, step] { return stage->Prepare(step->plan); },
                 [this, step, alive = alive_](const absl::Status& status) {
                   if (!*alive || !TakeCompletion() || status.ok()) return;
                   Fail(Annotated(status, absl::StrCat("prepare step ", step->plan.step)));
                 });
  LetDeviceGo();
}

bool StepLoop::InDeviceSlot(const Step& step) {
  return step.activation.has_value() &&
         step.activation->payload.space == kernels::MemorySpace::kDevice;
}

bool StepLoop::TakeCompletion() {
  --submitted_;
  if (!stopped_ && status_.ok()) return true;
  if (submitted_ == 0 && callbacks_.on_drained) callbacks_.on_drained();
  return false;
}

void StepLoop::OnStepDone(const std::shared_ptr<Step>& step, const absl::Status& status) {
  if (!TakeCompletion()) return;
  LC_CHECK(!running_.empty() && running_.front() == step, "step ", step->plan.step);
  running_.pop_front();
  counters_.set_steps_done(counters_.steps_done() + 1);
  CountTime(*step);
  Progress();
  absl::Status finished = status;
  if (finished.ok()) finished = PassOn(*step);
  if (finished.ok() && InDeviceSlot(*step)) {
    finished = upstream_->Release(Lane::kActivation, step->activation->slot);
  }
  if (!finished.ok()) {
    Fail(Annotated(finished, absl::StrCat("step ", step->plan.step)));
    return;
  }
  Report(*step);
  Pump();
}

void StepLoop::CountTime(const Step& step) {
  // From the end of the step before, or from its own submission: also right where the work only
  // enqueues kernels.
  const base::Instant now = clock_.Now();
  const double seconds = absl::ToDoubleSeconds(now - std::max(step.submitted, last_done_));
  last_done_ = now;
  device_forecast_.Record(absl::Seconds(seconds));
  counters_.set_busy_seconds(counters_.busy_seconds() + seconds);
  recent_.Add(step.plan.step, step.plan.rows(), seconds);
}

absl::Status StepLoop::PassOn(Step& step) {
  if (downstream_ != nullptr) {
    LC_RETURN_IF_ERROR(CommitUpTo(step, step.output.payload_bytes));
    counters_.set_frames_committed(counters_.frames_committed() + 1);
    return absl::OkStatus();
  }
  if (!feedback_out_.has_value()) return absl::OkStatus();
  feedback_out_->Add(step.plan, step.output.results);
  return MoveFeedback();
}

void StepLoop::Report(Step& step) {
  if (downstream_ != nullptr) return;
  v1::StepResult result;
  result.set_term(options_.limits.term);
  result.set_epoch(options_.limits.epoch);
  result.set_step(step.plan.step);
  for (v1::SequenceResult& part : step.output.results) *result.add_results() = std::move(part);
  callbacks_.on_result(std::move(result));
}

void StepLoop::Fail(absl::Status status) {
  if (stopped_ || !status_.ok()) return;
  status_ = Annotated(status, absl::StrCat("stage ", options_.limits.stage));
  for (Wait& wait : waits_) wait.active = false;
  EndPolls();
  if (timer_ != base::TimerId::kNone) timers_.Cancel(std::exchange(timer_, base::TimerId::kNone));
  callbacks_.on_failure(status_);
}

void StepLoop::Progress() { last_progress_ = clock_.Now(); }

v1::StageCounters StepLoop::Counters() const {
  v1::StageCounters counters = counters_;
  recent_.AppendTo(counters);
  counters.set_idle_seconds(absl::ToDoubleSeconds(clock_.Now() - last_progress_));
  return counters;
}

}  // namespace layercake::stage_worker
