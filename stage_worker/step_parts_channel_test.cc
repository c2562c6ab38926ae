// Two step loops in threads of their own over a pinned_host channel, each with a device that copies
// and computes on a thread of its own: activations of several parts arrive as they were written.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "stage_worker/activation_frame.h"
#include "stage_worker/step_loop.h"
#include "stage_worker/testing/fake_channel.h"
#include "stage_worker/testing/tiny_stages.h"
#include "transport/channel_rig.h"

namespace layercake::stage_worker {
namespace {

using stage_worker::testing::BeginOf;
using stage_worker::testing::FakeReceiver;
using stage_worker::testing::FakeRing;
using stage_worker::testing::FakeSender;
using stage_worker::testing::RowsOf;

constexpr uint32_t kHidden = 128 << 10;  // half a mebibyte a row
constexpr int kRows = 4;
constexpr int kSteps = 4;

std::byte PatternByte(uint64_t step, size_t at) {
  return static_cast<std::byte>(step * 131 + at * 7 + at / 4096);
}

// Writes a pattern that tells steps and places apart, or checks it.
class PatternStage final : public StepStage {
 public:
  explicit PatternStage(bool last) : last_(last) {}

  absl::Status ReadActivation(kernels::Buffer rows, size_t at) override {
    received_.resize(std::max(received_.size(), at + rows.bytes));
    std::memcpy(received_.data() + at, rows.address, rows.bytes);
    return absl::OkStatus();
  }
  absl::Status Run(const StepPlan& plan, std::vector<int32_t> marks,
                   const transport::SendSlot& slot, StepOutput& output) override {
    step_ = plan.step;
    const size_t bytes = static_cast<size_t>(plan.rows()) * kHidden * sizeof(float);
    if (last_) return Check(bytes);
    const std::string section = EncodeActivationSection(marks, kHidden);
    std::memcpy(slot.memory.address, section.data(), section.size());
    output.section_bytes = static_cast<uint32_t>(section.size());
    output.payload_bytes = static_cast<uint32_t>(section.size() + bytes);
    const uint32_t end =
        output.first_part_bytes == 0 ? output.payload_bytes : output.first_part_bytes;
    return WritePart(slot, output, output.section_bytes, end);
  }
  absl::Status WritePart(const transport::SendSlot& slot, const StepOutput& output, uint32_t first,
                         uint32_t end) override {
    ++writes_;
    for (size_t at = first; at < end; ++at) {
      slot.memory.address[at] = PatternByte(step_, at - output.section_bytes);
    }
    return absl::OkStatus();
  }
  uint32_t hidden() const override { return kHidden; }
  int writes() const { return writes_; }

 private:
  absl::Status Check(size_t bytes) {
    if (received_.size() != bytes) return absl::DataLossError("another length");
    for (size_t at = 0; at < bytes; ++at) {
      if (received_[at] == PatternByte(step_, at)) continue;
      return absl::DataLossError(absl::StrCat("byte ", at, " of step ", step_, " is wrong"));
    }
    std::fill(received_.begin(), received_.end(), std::byte{});
    return absl::OkStatus();
  }

  const bool last_;
  uint64_t step_ = 0;
  std::atomic<int> writes_ = 0;
  std::vector<std::byte> received_;
};

StageLimits LimitsOf(int stage) {
  StageLimits limits;
  limits.term = 1;
  limits.epoch = 1;
  limits.stage = stage;
  limits.stage_count = 2;
  limits.layer_first = stage;
  limits.layer_end = stage + 1;
  limits.kv_blocks = 16;
  limits.kv_block_tokens = 16;
  limits.max_rows = kRows;
  limits.max_sequences = 16;
  limits.context_tokens = 64;
  limits.max_in_flight = kSteps;
  limits.vocabulary = 100;
  return limits;
}

v1::MicroBatchPlan Prompt(uint64_t step) {
  v1::MicroBatchPlan plan;
  plan.set_term(1);
  plan.set_epoch(1);
  plan.set_step(step);
  *plan.add_begins() = BeginOf(step, kRows);
  *plan.add_rows() = RowsOf(step, {1, 2, 3, 4}, 0, kRows, true);
  plan.mutable_rows(0)->add_blocks(static_cast<uint32_t>(step));
  return plan;
}

// One stage on the loop of a channel's end.
struct RunningStage {
  RunningStage(transport::ChannelEnd& channel_end, int stage, const base::Clock& clock,
               StepChannels channels)
      : end(channel_end), pattern(stage == 1) {
    end.Run([&] {
      transport::ChannelContext context = end.context();
      wake = std::move(context.on_ready);
      device = kernels::CreateCpuDevice({.threads = 1}, *context.executor).value();
      StepLoopOptions options;
      options.limits = LimitsOf(stage);
      options.step_timeout = absl::Seconds(60);
      StepLoop::Callbacks callbacks;
      callbacks.on_result = [this, executor = context.executor](v1::StepResult) {
        ++results;
        EXPECT_TRUE(executor->Post([this] { wake(); }));  // not inside the loop
      };
      callbacks.on_failure = [this](absl::Status status) { failure = std::move(status); };
      callbacks.on_drained = [this] { wake(); };
      loop =
          std::make_unique<StepLoop>(options, clock, dynamic_cast<base::Timers&>(*context.executor),
                                     *device, pattern, channels, std::move(callbacks));
    });
  }
  ~RunningStage() {
    end.Run([&] { loop->Stop(); });
    end.Await([&] { return loop->drained(); });
    end.Run([&] {
      loop.reset();
      device.reset();
    });
  }
  // Goes on as far as it can; true when `over` or failed.
  bool Pump(bool over) {
    loop->OnChannelReady();
    return over || !failure.ok();
  }

  transport::ChannelEnd& end;
  PatternStage pattern;
  absl::AnyInvocable<void()> wake;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<StepLoop> loop;
  absl::Status failure;
  int results = 0;
};

TEST(StepPartsOverPinnedHost, ArriveAsTheyWereWritten) {
  const base::SystemClock clock;
  const auto factories = transport::MakeTestFactories(transport::TestKind::kPinnedHost, clock);
  const transport::ChannelOptions options = {
      .ring = {.term = 1, .epoch = 1},
      .geometry = {.plan_slots = kSteps,
                   .plan_slot_bytes = 4096,
                   .activation_slots = 2,
                   .activation_slot_bytes = *MinActivationSlotBytes(kRows, kHidden)},
      .peer = "the other thread"};
  transport::ChannelRig rig(*factories->sender, *factories->receiver, options, clock);
  ASSERT_EQ(rig.Connect(), absl::OkStatus());
  FakeRing no_feedback(16, 4096, 16, 4096);
  FakeRing unread_feedback(16, 4096, 16, 4096);
  FakeReceiver feedback_in(no_feedback);
  FakeSender feedback_out(unread_feedback);
  RunningStage last(rig.receiver_end, 1, clock,
                    {.upstream = rig.receiver.get(), .feedback_out = &feedback_out});
  RunningStage first(rig.sender_end, 0, clock,
                     {.downstream = rig.sender.get(), .feedback_in = &feedback_in});
  std::atomic<bool> over = false;
  std::thread receiving([&] {
    rig.receiver_end.Await([&] { return last.Pump(last.results == kSteps); });
    over = true;
    rig.sender_end.Run([&] { first.wake(); });
  });
  rig.sender_end.Run([&] {
    for (uint64_t step = 1; step <= kSteps; ++step) first.loop->OnPlan(Prompt(step));
  });
  EXPECT_TRUE(rig.sender_end.Await([&] { return first.Pump(over); }));
  receiving.join();
  rig.sender_end.Run([&] {
    EXPECT_EQ(first.failure, absl::OkStatus());
    EXPECT_EQ(first.pattern.writes(), 5 * kSteps) << "four full parts and the section's length";
  });
  rig.receiver_end.Run([&] {
    EXPECT_EQ(last.failure, absl::OkStatus());
    EXPECT_EQ(last.results, kSteps);
    EXPECT_EQ(last.loop->Counters().hops(), uint64_t{kSteps});
  });
}

}  // namespace
}  // namespace layercake::stage_worker
