// What a chain adds to a token: one stream through stages whose devices are busy for a given time
// and nothing else, each on threads of its own as in a worker, over channels of one kind. Prints
// the time of a token beyond that of its devices. Other load on the machine is in the figures: on
// few cores run it as `chrt -f 10 chain_benchmark`.
//
// usage: chain_benchmark [microseconds of a step (1000)] [tokens (400)] [pinned_host | ucx]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/event_loop.h"
#include "kernels/device.h"
#include "stage_worker/activation_frame.h"
#include "stage_worker/feedback.h"
#include "stage_worker/step_loop.h"
#include "transport/channel_rig.h"

namespace layercake::stage_worker {
namespace {

constexpr uint32_t kHidden = 5120;
constexpr int kBlockTokens = 16;
constexpr int kMaxTokens = 4096;
constexpr uint64_t kSequence = 1;
constexpr absl::Duration kAwake = absl::Microseconds(300);

struct Settings {
  absl::Duration compute = absl::Microseconds(1000);
  int tokens = 400;
  transport::TestKind kind = transport::TestKind::kPinnedHost;
  bool poll = false;
};

// A device that is busy for a given time after each step, as a GPU is: no core computes meanwhile.
class TimedDevice final : public kernels::Device {
 public:
  TimedDevice(const base::Clock& clock, base::Executor& on_done)
      : loop_(base::EventLoop::Create(clock).value()),
        on_done_(on_done),
        thread_([this] { loop_->Run(); }) {}
  ~TimedDevice() override {
    loop_->Stop();
    thread_.join();
  }

  std::string name() const override { return "timed"; }
  absl::StatusOr<std::unique_ptr<kernels::DeviceMemory>> Allocate(size_t) override {
    return absl::UnimplementedError("no memory");
  }
  void Submit(Work work, Done done) override {
    auto task = [this, work = std::move(work), done = std::move(done)]() mutable {
      waiting_.push_back({std::move(work), std::move(done)});
      if (!busy_) RunNext();
    };
    if (!loop_->Post(std::move(task))) std::abort();
  }
  absl::Status CopyIn(const std::byte*, kernels::Buffer, size_t) override { return {}; }
  absl::Status CopyOut(kernels::Buffer, std::byte*, size_t) override { return {}; }
  absl::Status Copy(kernels::Buffer, kernels::Buffer, size_t) override { return {}; }

  // Inside work: it ends so much later.
  void Take(absl::Duration time) { taken_ = time; }

 private:
  struct Item {
    Work work;
    Done done;
  };
  void RunNext() {
    while (!waiting_.empty() && !busy_) {
      Item item = std::move(waiting_.front());
      waiting_.pop_front();
      taken_ = absl::ZeroDuration();
      const base::Instant begin = loop_->clock().Now();
      absl::Status status = item.work();
      auto tell = [this, done = std::move(item.done), status = std::move(status)]() mutable {
        static_cast<void>(
            on_done_.Post([done = std::move(done), status]() mutable { done(status); }));
      };
      if (taken_ == absl::ZeroDuration()) {
        tell();
        continue;
      }
      busy_ = true;
      // As the thread of a GPU, which waits awake.
      loop_->At(begin + taken_ - kAwake,
                [this] { loop_->PollUntil(loop_->clock().Now() + 2 * kAwake); });
      loop_->At(begin + taken_, [this, tell = std::move(tell)]() mutable {
        tell();
        busy_ = false;
        RunNext();
      });
    }
  }

  std::unique_ptr<base::EventLoop> loop_;
  base::Executor& on_done_;
  std::thread thread_;
  // Its own thread's.
  std::deque<Item> waiting_;
  bool busy_ = false;
  absl::Duration taken_;
};

// Has its device compute nothing for as long as it is told.
class BusyStage final : public StepStage {
 public:
  BusyStage(absl::Duration compute, bool last)
      : compute_(compute), last_(last), x_(kHidden * sizeof(float)) {}

  void set_device(TimedDevice* device) { device_ = device; }
  absl::Status ReadActivation(kernels::Buffer rows, size_t at) override {
    std::memcpy(x_.data() + at, rows.address, rows.bytes);
    return absl::OkStatus();
  }
  absl::Status Run(const StepPlan& plan, std::vector<int32_t> marks,
                   const transport::SendSlot& slot, StepOutput& output) override {
    device_->Take(compute_);
    if (last_) {
      v1::SequenceResult& result = output.results.emplace_back();
      result.set_sequence(kSequence);
      result.set_position(static_cast<uint32_t>(plan.kv_positions.back() + 1));
      result.add_tokens()->set_token(1);
      return absl::OkStatus();
    }
    const std::string section = EncodeActivationSection(marks, kHidden);
    std::memcpy(slot.memory.address, section.data(), section.size());
    std::memcpy(slot.memory.address + section.size(), x_.data(), x_.size());
    output.section_bytes = static_cast<uint32_t>(section.size());
    output.payload_bytes = static_cast<uint32_t>(section.size() + x_.size());
    return absl::OkStatus();
  }
  uint32_t hidden() const override { return kHidden; }

 private:
  const absl::Duration compute_;
  const bool last_;
  TimedDevice* device_ = nullptr;
  std::vector<std::byte> x_;
};

StageLimits LimitsOf(int stage, int stages) {
  StageLimits limits;
  limits.term = 1;
  limits.epoch = 1;
  limits.stage = stage;
  limits.stage_count = stages;
  limits.layer_first = stage;
  limits.layer_end = stage + 1;
  limits.kv_blocks = kMaxTokens / kBlockTokens;
  limits.kv_block_tokens = kBlockTokens;
  limits.max_rows = 1;
  limits.max_sequences = 1;
  limits.context_tokens = kMaxTokens;
  limits.max_in_flight = stages + 1;
  limits.vocabulary = 100;
  return limits;
}

// The step that computes row step - 1 of the sequence; its token is that of the step before.
v1::MicroBatchPlan PlanOf(uint64_t step) {
  v1::MicroBatchPlan plan;
  plan.set_term(1);
  plan.set_epoch(1);
  plan.set_step(step);
  if (step == 1) {
    v1::SequenceBegin& begin = *plan.add_begins();
    begin.set_sequence(kSequence);
    begin.set_prompt_tokens(1);
    begin.mutable_sampling()->set_top_p(1);
    begin.mutable_sampling()->set_repetition_penalty(1);
    begin.mutable_sampling()->set_top_logprobs(-1);
  }
  v1::RowDescriptor& rows = *plan.add_rows();
  const auto position = static_cast<uint32_t>(step - 1);
  rows.set_sequence(kSequence);
  rows.set_kv_position(position);
  rows.add_tokens(step == 1 ? 1 : 0);
  rows.set_known_tokens(1);
  if (step > 1) rows.set_token_of_step(step - 1);
  rows.set_sample_bitmap(std::string(1, '\1'));
  rows.set_table_start((position + kBlockTokens - 1) / kBlockTokens);
  if (position % kBlockTokens == 0) rows.add_blocks(position / kBlockTokens);
  return plan;
}

// The threads of a stage that wait for its neighbours.
class Polls final : public base::EventPoll {
 public:
  void PollUntil(base::Instant until) override {
    if (std::exchange(until_, until) == until) return;
    for (base::EventPoll* thread : threads) {
      if (thread != nullptr) thread->PollUntil(until);
    }
  }
  std::vector<base::EventPoll*> threads;

 private:
  base::Instant until_;
};

// One stage on a loop of its own.
struct Runner {
  Runner(const base::Clock& clock, const Settings& settings, int stage, int stages)
      : end(clock), busy(settings.compute, stage + 1 == stages) {}
  ~Runner() {
    end.Run([&] {
      if (loop != nullptr) loop->Stop();
    });
    end.Await([&] { return loop == nullptr || loop->drained(); });
    end.Run([&] {
      loop.reset();
      device.reset();
      in.reset();
      out.reset();
    });
  }
  transport::ChannelContext Context() {
    transport::ChannelContext context = end.context();
    context.on_ready = [this, asks = std::move(context.on_ready)]() mutable {
      asks();
      if (loop != nullptr) loop->OnChannelReady();
    };
    return context;
  }

  transport::ChannelEnd end;
  BusyStage busy;
  std::unique_ptr<transport::ChannelReceiver> in;
  std::unique_ptr<transport::ChannelSender> out;
  std::unique_ptr<TimedDevice> device;
  Polls polls;
  std::unique_ptr<StepLoop> loop;
};

class Chain {
 public:
  Chain(const Settings& settings, int stages) : settings_(settings) {
    for (int i = 0; i < stages; ++i) {
      runners_.push_back(std::make_unique<Runner>(clock_, settings, i, stages));
    }
    for (int i = 0; stages > 1 && i < stages; ++i) Connect(i);
    for (int i = 0; i < stages; ++i) MakeLoop(i);
  }
  ~Chain() {
    runners_.clear();
    factories_.clear();
  }

  // Microseconds between results, sorted.
  std::vector<double> Run() {
    runners_.front()->end.Run([&] {
      for (uint64_t step = 1; step <= static_cast<uint64_t>(stages()) + 1; ++step) Send(step);
    });
    done_.WaitForNotification();
    if (!failure_.ok()) std::printf("failed: %s\n", failure_.ToString().c_str());
    std::sort(times_.begin(), times_.end());
    return times_;
  }

 private:
  int stages() const { return static_cast<int>(runners_.size()); }
  Runner& runner(int i) { return *runners_[static_cast<size_t>(i % stages())]; }

  // From stage i to the one behind it in the ring.
  void Connect(int i) {
    v1::Assignment assignment;
    assignment.set_max_rows(1);
    assignment.set_max_sequences(1);
    assignment.set_max_in_flight(stages() + 1);
    transport::ChannelOptions options = {
        .ring = {.term = static_cast<uint64_t>(i) + 1, .epoch = 1},
        .geometry = {.plan_slots = static_cast<uint32_t>(stages()) + 2,
                     .plan_slot_bytes = 4096,
                     .activation_slots = 2,
                     .activation_slot_bytes = *MinActivationSlotBytes(1, kHidden)},
        .peer = "the next stage"};
    if (i + 1 == stages()) options.geometry = FeedbackGeometry(assignment);
    factories_.push_back(transport::MakeTestFactories(settings_.kind, clock_));
    transport::TestFactories& factories = *factories_.back();
    Runner& from = runner(i);
    Runner& to = runner(i + 1);
    from.polls.threads.push_back(factories.sender_worker.get());
    to.polls.threads.push_back(factories.receiver_worker.get());
    std::string offer;
    to.end.Run([&] {
      to.in = factories.receiver->CreateReceiver(options, to.Context()).value();
      offer = to.in->offer();
    });
    from.end.Run(
        [&] { from.out = factories.sender->Connect(offer, options, from.Context()).value(); });
    from.end.Await([&] { return from.out->connected(); });
    to.end.Await([&] { return to.in->connected(); });
  }

  void MakeLoop(int i) {
    Runner& made = runner(i);
    made.end.Run([&] {
      const transport::ChannelContext context = made.end.context();
      made.device = std::make_unique<TimedDevice>(clock_, *context.executor);
      made.busy.set_device(made.device.get());
      StepLoopOptions options;
      options.limits = LimitsOf(i, stages());
      options.step_timeout = absl::Seconds(60);
      made.polls.threads.push_back(dynamic_cast<base::EventPoll*>(context.executor));
      if (settings_.poll) options.poll = &made.polls;
      StepLoop::Callbacks callbacks;
      callbacks.on_result = [this](v1::StepResult result) { OnResult(result.step()); };
      callbacks.on_failure = [this](absl::Status status) {
        if (done_.HasBeenNotified()) return;
        failure_ = std::move(status);
        done_.Notify();
      };
      StepChannels channels;
      const bool last = i + 1 == stages();
      (i == 0 ? channels.feedback_in : channels.upstream) = made.in.get();
      (last ? channels.feedback_out : channels.downstream) = made.out.get();
      made.loop = std::make_unique<StepLoop>(
          options, clock_, dynamic_cast<base::Timers&>(*context.executor), *made.device, made.busy,
          channels, std::move(callbacks));
      executors_.push_back(context.executor);
    });
  }

  void Send(uint64_t step) { runners_.front()->loop->OnPlan(PlanOf(step)); }

  // On the last stage's thread.
  void OnResult(uint64_t step) {
    const base::Instant now = clock_.Now();
    if (step > 50) times_.push_back(absl::ToDoubleMicroseconds(now - before_));
    before_ = now;
    const auto tokens = static_cast<uint64_t>(settings_.tokens);
    if (step == tokens) done_.Notify();
    const uint64_t next = step + static_cast<uint64_t>(stages()) + 1;
    if (next > tokens) return;
    if (!executors_.front()->Post([this, next] { Send(next); })) std::abort();
  }

  const Settings settings_;
  const base::SystemClock clock_;
  std::vector<std::unique_ptr<transport::TestFactories>> factories_;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::vector<base::Executor*> executors_;
  base::Instant before_;
  std::vector<double> times_;
  absl::Status failure_;
  absl::Notification done_;
};

void Measure(const Settings& settings, int stages) {
  Chain chain(settings, stages);
  const std::vector<double> times = chain.Run();
  if (times.empty()) return;
  const double compute = absl::ToDoubleMicroseconds(settings.compute) * stages;
  const double median = times[times.size() / 2] - compute;
  std::printf("%d stages: a token takes %8.1f us, added %6.1f us least, %6.1f us median", stages,
              median + compute, times.front() - compute, median);
  if (stages > 1) std::printf(", %6.1f us a hop", median / stages);
  std::printf("\n");
}

int Main(int argc, char** argv) {
  Settings settings;
  if (argc > 1) settings.compute = absl::Microseconds(std::clamp(std::atoi(argv[1]), 1, 100'000));
  if (argc > 2) settings.tokens = std::clamp(std::atoi(argv[2]), 60, kMaxTokens);
  if (argc > 3 && std::string_view(argv[3]) == "ucx") {
    settings.kind = transport::TestKind::kUcxTcp;
  }
  for (const bool poll : {false, true}) {
    settings.poll = poll;
    std::printf("threads %s\n", poll ? "look for what is about to come" : "sleep");
    for (const int stages : {1, 2, 3}) Measure(settings, stages);
  }
  return 0;
}

}  // namespace
}  // namespace layercake::stage_worker

int main(int argc, char** argv) { return layercake::stage_worker::Main(argc, argv); }
