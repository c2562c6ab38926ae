// A chain of real stages behind step loops, with devices, channels and time in the test's hands.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "stage_worker/feedback.h"
#include "stage_worker/step_loop.h"
#include "stage_worker/testing/deferred_ops.h"
#include "stage_worker/testing/fake_channel.h"
#include "stage_worker/testing/fake_device.h"
#include "stage_worker/testing/manual_time.h"
#include "stage_worker/testing/tiny_stages.h"

namespace layercake::stage_worker::testing {

// Remembers until when a thread was asked to stay awake.
class FakePoll final : public base::EventPoll {
 public:
  void PollUntil(base::Instant instant) override { until = instant; }
  base::Instant until;
};

// Several stages with everything between them in the test's hands.
class StepChainTest : public ::testing::Test {
 protected:
  struct Link {
    Link(const v1::RingGeometry& g)
        : ring(g.plan_slots(), g.plan_slot_bytes(), g.activation_slots(),
               g.activation_slot_bytes()),
          sender(ring),
          receiver(ring) {}
    FakeRing ring;
    FakeSender sender;
    FakeReceiver receiver;
  };
  struct Part {
    FakePoll poll;
    std::unique_ptr<FakeDevice> device;
    std::unique_ptr<DeferredOps> deferred;
    std::unique_ptr<Stage> stage;
    std::unique_ptr<StepLoop> loop;
    std::vector<absl::Status> failures;
    int drained = 0;
  };

  void Build(int stages, const TinyModel& model) {
    cpu_ = kernels::CreateCpuDevice({.threads = 1}, time_).value();
    ops_ = kernels::CreateCpuOps(*cpu_).value();
    for (int i = 0; i + 1 < stages; ++i) {
      links_.push_back(std::make_unique<Link>(model.Assign(i, stages).ring()));
    }
    back_ = std::make_unique<Link>(RingOf(FeedbackGeometry(model.Assign(0, stages))));
    for (int i = 0; i < stages; ++i) {
      parts_.push_back(std::make_unique<Part>());
      Part& part = *parts_.back();
      const v1::Assignment assignment = model.Assign(i, stages);
      part.device = std::make_unique<FakeDevice>(*cpu_, time_);
      if (defers_) {
        part.deferred = std::make_unique<DeferredOps>(*ops_);
        part.device->before_copy = [&part] { return part.deferred->Flush(); };
      }
      kernels::Ops& ops = defers_ ? static_cast<kernels::Ops&>(*part.deferred) : *ops_;
      part.stage = MakeStage(model, assignment, *part.device, ops);
      StepLoopOptions options;
      options.limits = LimitsForModel(assignment, model.config()).value();
      options.step_timeout = absl::Seconds(10);
      if (polls_) options.poll = &part.poll;
      options.upstream_peer = absl::StrCat("stage ", i - 1, " (host a)");
      options.downstream_peer = absl::StrCat("stage ", i + 1, " (host b)");
      StepLoop::Callbacks callbacks;
      callbacks.on_result = [this](v1::StepResult result) {
        results_.push_back(result);
        if (at_result_) at_result_();
      };
      callbacks.on_failure = [&part](absl::Status status) { part.failures.push_back(status); };
      callbacks.on_drained = [&part] { ++part.drained; };
      options.feedback_peer = absl::StrCat("stage ", i == 0 ? stages - 1 : 0, " (host c)");
      StepChannels channels;
      if (i > 0) channels.upstream = &links_[static_cast<size_t>(i - 1)]->receiver;
      if (i + 1 < stages) channels.downstream = &links_[static_cast<size_t>(i)]->sender;
      if (stages > 1 && i == 0) channels.feedback_in = &back_->receiver;
      if (stages > 1 && i + 1 == stages) channels.feedback_out = &back_->sender;
      part.loop = std::make_unique<StepLoop>(options, time_, time_, *part.device, *part.stage,
                                             channels, std::move(callbacks));
    }
  }
  void Build(int stages) { Build(stages, model_); }
  void TearDown() override {
    for (auto& part : parts_) part->loop.reset();
    parts_.clear();
    ops_.reset();
    cpu_.reset();
  }

  static v1::RingGeometry RingOf(const transport::ChannelGeometry& geometry) {
    v1::RingGeometry ring;
    ring.set_plan_slots(geometry.plan_slots);
    ring.set_plan_slot_bytes(geometry.plan_slot_bytes);
    ring.set_activation_slots(geometry.activation_slots);
    ring.set_activation_slot_bytes(geometry.activation_slot_bytes);
    return ring;
  }

  Part& part(int i) { return *parts_[static_cast<size_t>(i)]; }
  FakeRing& ring(int i) { return links_[static_cast<size_t>(i)]->ring; }
  FakeRing& back() { return back_->ring; }

  // Everybody looks at their channels; nothing computes.
  void Look() {
    for (int round = 0; round < 4; ++round) {
      time_.RunPosted();
      for (auto& p : parts_) p->loop->OnChannelReady();
    }
    time_.RunPosted();
  }
  // Until nothing moves any more.
  void RunAll() {
    for (bool moved = true; moved;) {
      Look();
      moved = false;
      for (auto& p : parts_) moved |= p->device->RunOne();
    }
    Look();
  }

  v1::MicroBatchPlan Plan(uint64_t step) const {
    v1::MicroBatchPlan plan;
    plan.set_term(7);
    plan.set_epoch(3);
    plan.set_step(step);
    return plan;
  }
  // A prompt of four tokens of a new sequence in a block of its own.
  v1::MicroBatchPlan Prompt(uint64_t step, uint64_t sequence) const {
    v1::MicroBatchPlan plan = Plan(step);
    *plan.add_begins() = BeginOf(sequence, 4);
    *plan.add_rows() = RowsOf(sequence, {1, 2, static_cast<int>(sequence), 4}, 0, 4, true);
    plan.mutable_rows(0)->add_blocks(static_cast<uint32_t>(sequence));
    return plan;
  }
  std::vector<uint64_t> ResultSteps() const {
    std::vector<uint64_t> steps;
    for (const v1::StepResult& result : results_) steps.push_back(result.step());
    return steps;
  }

  const TinyModel model_{model::testing::TinyModelOptions()};
  ManualTime time_;
  // Set before Build.
  bool polls_ = false;   // the loops may stay awake
  bool defers_ = false;  // operations are put off (deferred_ops.h)
  std::unique_ptr<kernels::Device> cpu_;
  std::unique_ptr<kernels::Ops> ops_;
  std::vector<std::unique_ptr<Link>> links_;
  std::unique_ptr<Link> back_;  // from the last stage to the first
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<v1::StepResult> results_;
  std::function<void()> at_result_;  // inside the last stage's callback
};

}  // namespace layercake::stage_worker::testing
