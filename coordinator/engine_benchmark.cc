// The coordinator's whole work for one step: the plan that goes out, and what its result changes,
// text and clients included. Everything but the wire.
//
//   engine_benchmark --benchmark_min_time=1
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "base/virtual_loop.h"
#include "coordinator/engine_impl.h"
#include "coordinator/testing/played_workers.h"
#include "coordinator/testing/word_tokenizer.h"

namespace layercake::coordinator {
namespace {

constexpr int kStages = 4;

struct DeafSink final : RequestSink {
  void OnStarted(const v1::Started&) override {}
  void OnPromptLogprobs(const v1::PromptLogprobs&) override {}
  void OnDelta(v1::Delta) override {}
  void OnFinished(const v1::Finished&) override {}
  void OnError(const absl::Status&) override { std::abort(); }
  size_t pending_bytes() const override { return 0; }
};

class Load {
 public:
  Load(int sequences, bool run_ahead) {
    EngineOptions options;
    for (uint32_t i = 0; i < kStages; ++i) options.chain.plan.stages.push_back({i, i + 1});
    options.chain.plan.ring.set_plan_slot_bytes(16 << 20);
    options.chain.step_timeout = absl::InfiniteDuration();
    options.chain.lease = absl::InfiniteDuration();
    options.scheduler.stages = options.scheduler.max_in_flight = kStages;
    options.scheduler.run_ahead = run_ahead;
    options.scheduler.max_rows = 4096;
    options.scheduler.max_sequences = options.scheduler.max_queued = sequences;
    options.scheduler.kv_blocks = sequences * 64;
    engine_ = std::make_unique<EngineImpl>(
        options, *tokenizer_, loop_, loop_, loop_, random_,
        EngineImpl::Events{
            .on_changed = [] {}, .on_ready = [](bool) {}, .on_stopped = [](absl::Status) {}});
    engine_->Start();
    workers_.emplace(*engine_, loop_, kStages, run_ahead);
    for (int i = 0; i < sequences; ++i) {
      PreparedRequest request;
      request.prompt.assign(static_cast<size_t>(8 + i % 64), i % 7);
      request.max_tokens = 1 << 30;
      request.ignore_end_of_generation = true;
      request.use_prefix_cache = false;
      engine_->Submit(std::move(request), std::make_shared<DeafSink>());
    }
    loop_.RunPosted();
    for (int i = 0; i < 400; ++i) Step();
  }

  // Answers the oldest plan.
  void Step() {
    std::vector<v1::ToWorker>& received = workers_->first().received;
    const v1::MicroBatchPlan plan = std::move(*received[next_++].mutable_plan());
    v1::FromWorker message;
    v1::StepResult& result = *message.mutable_step_result();
    result.set_term(plan.term());
    result.set_epoch(plan.epoch());
    result.set_step(plan.step());
    for (const v1::RowDescriptor& row : plan.rows()) {
      if (row.sample_bitmap().empty()) continue;
      v1::SequenceResult& one = *result.add_results();
      one.set_sequence(row.sequence());
      one.set_position(row.kv_position() + static_cast<uint32_t>(row.tokens_size()));
      one.add_tokens()->set_token(static_cast<int32_t>(row.kv_position() % 7));
    }
    if (next_ > 1024) {
      received.erase(received.begin(), received.begin() + static_cast<std::ptrdiff_t>(next_));
      next_ = 0;
    }
    workers_->last().Say(std::move(message));
    loop_.RunPosted();
  }

 private:
  base::VirtualLoop loop_;
  base::SeededRandom random_{1};
  const std::unique_ptr<model::Tokenizer> tokenizer_ = MakeWordTokenizer();
  std::unique_ptr<EngineImpl> engine_;
  std::optional<testing::PlayedWorkers> workers_;
  size_t next_ = 0;
};

// Plans and results of a quarter of the sequences each. Contexts are 1,024 tokens, so the number of
// steps is bounded.
void BM_EngineStep(benchmark::State& state) {
  Load load(static_cast<int>(state.range(0)), state.range(1) != 0);
  for (auto _ : state) load.Step();
}
BENCHMARK(BM_EngineStep)
    ->ArgNames({"sequences", "run_ahead"})
    ->ArgsProduct({{256, 4096}, {0, 1}})
    ->Iterations(1000);

}  // namespace
}  // namespace layercake::coordinator

BENCHMARK_MAIN();
