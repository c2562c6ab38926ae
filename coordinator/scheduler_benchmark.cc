// The coordinator's own work for one step: the next micro-batch, and what its result changes.
//
//   scheduler_benchmark --benchmark_min_time=1
//
// "Step" is the scheduler alone: NextStep, StepDone, TokenAdded of every decoded row. Sequences run
// to the end of their context, then another one with a prompt takes their place.
#include <benchmark/benchmark.h>

#include <deque>
#include <utility>
#include <vector>

#include "coordinator/scheduler.h"

namespace layercake::coordinator {
namespace {

constexpr int kStages = 4;
constexpr int kContext = 1024;

class Load {
 public:
  Load(int sequences, bool run_ahead) : scheduler_(Options(sequences, run_ahead)) {
    scheduler_.AllowRunAhead(run_ahead);
    for (int i = 0; i < sequences; ++i) Add();
    // Until everything decodes, and until the stages' times are known.
    for (int i = 0; i < 64 * kStages || scheduler_.queued() > 0; ++i) Step(1e-3);
  }

  void Step(double seconds) {
    while (auto step = scheduler_.NextStep()) in_flight_.push_back(*std::move(step));
    const ScheduledStep done = std::move(in_flight_.front());
    in_flight_.pop_front();
    now_ = now_ + absl::Seconds(seconds);
    for (int stage = 0; stage < kStages; ++stage) {
      scheduler_.StepTime(stage, done.step, seconds + 1e-5 * done.shape.rows);
    }
    scheduler_.StepDone(done.step, now_);
    for (const ScheduledRows& rows : done.rows) {
      if (!rows.samples) continue;
      if (rows.first + rows.count >= kContext) {
        scheduler_.Finish(rows.sequence);
        Add();
      } else {
        scheduler_.TokenAdded(rows.sequence, 1);
      }
    }
  }

 private:
  static SchedulerOptions Options(int sequences, bool run_ahead) {
    SchedulerOptions options;
    options.run_ahead = run_ahead;
    options.stages = kStages;
    options.max_in_flight = kStages;
    options.max_rows = 2048;
    options.max_sequences = sequences;
    options.max_queued = 2 * sequences;
    options.queue_timeout = absl::Hours(1000);
    options.kv_blocks = (sequences + 16) * (kContext / 16 + 2);
    return options;
  }
  void Add() {
    ++next_;
    // Spread over the context, so that sequences do not end together.
    std::vector<int32_t> prompt(static_cast<size_t>(16 + next_ * 37 % 512));
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(next_ + i);
    scheduler_
        .Add({.id = static_cast<SequenceId>(next_),
              .prompt = std::move(prompt),
              .last_token = kContext + 1},
             now_)
        .IgnoreError();
  }

  Scheduler scheduler_;
  std::deque<ScheduledStep> in_flight_;
  base::Instant now_;
  uint64_t next_ = 0;
};

void BM_Step(benchmark::State& state) {
  Load load(static_cast<int>(state.range(0)), state.range(1) != 0);
  for (auto _ : state) load.Step(1e-3);
}
BENCHMARK(BM_Step)->ArgNames({"sequences", "run_ahead"})->ArgsProduct({{256, 4096}, {0, 1}});

// The same after 200,000 steps: nothing grows with the time that it runs.
void BM_StepLater(benchmark::State& state) {
  Load load(256, /*run_ahead=*/true);
  for (int i = 0; i < 200'000; ++i) load.Step(1e-3);
  for (auto _ : state) load.Step(1e-3);
}
BENCHMARK(BM_StepLater);

}  // namespace
}  // namespace layercake::coordinator

BENCHMARK_MAIN();
