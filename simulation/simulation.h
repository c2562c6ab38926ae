// A whole chain in virtual time, in one thread: the real engine, chain and scheduler, the real
// workers with their Sessions; simulated processes, links, channels, devices, clients and
// arithmetic. A seed and its options decide everything: two runs do the same, event for event
// (trace()).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/random.h"
#include "base/virtual_loop.h"
#include "coordinator/engine_impl.h"
#include "model/tokenizer/tokenizer.h"
#include "simulation/sim_process_host.h"
#include "simulation/sim_worker.h"

namespace layercake::simulation {

struct SimOptions {
  std::vector<StageCost> stages;  // one for each
  double hop_seconds = 0;         // between stages
  double hop_row_seconds = 0;     // and for each row that travels
  double session_seconds = 0;     // between coordinator and workers
  Reads reads = Reads::kEvery;
  int context_tokens = 256;
  absl::Duration heartbeat = absl::Seconds(1);
  // stages, max_in_flight (at least the number of stages) and max_block_copies may be left out.
  coordinator::SchedulerOptions scheduler;
  size_t max_pending_bytes = 1 << 20;
  absl::Duration reader_timeout = absl::Seconds(30);
  absl::Duration limit = absl::Seconds(3600);  // of virtual time
};

// A client's request and what the client does.
struct SimRequest {
  double at = 0;  // seconds from the start
  coordinator::PreparedRequest request;
  double cancel_at = -1;          // seconds from the start; < 0: never
  double bytes_per_second = 1e9;  // how fast it reads
};

struct SimOutcome {
  struct Choice {
    std::vector<int32_t> tokens;
    std::vector<double> times;  // of each token, seconds from the start
    std::string text;
    std::optional<v1::Finished> finished;
  };
  std::vector<Choice> choices;
  std::optional<v1::Started> started;
  absl::Status error;
  double submitted = 0;
  double ended = -1;  // < 0: it never did
  bool cancelled = false;
  int open = 0;  // choices that have not ended
  size_t peak_pending_bytes = 0;
};

// What was seen while requests ran.
struct SimReport {
  std::vector<SimOutcome> outcomes;
  absl::Status failure;              // of the chain
  double seconds = 0;                // virtual, from the first to the last event of a request
  std::vector<double> busy_seconds;  // of each stage, in the same time; 0 of a dead one
  int64_t steps = 0;
  int64_t rows = 0;
  int64_t peak_blocks = 0;
  int64_t window_blocks = 0;  // on average, in the time that busy_seconds is counted in
  int64_t saved_blocks = 0;   // to host memory, and back
  int64_t restored_blocks = 0;
  v1::GetLoadsResponse loads;  // at the end, when nothing runs any more
  uint64_t trace = 0;          // hash over every event with its time
};

class Simulation {
 public:
  // `tokenizer`: MakeSimTokenizer's, or another one of at least kSimVocabulary tokens.
  Simulation(SimOptions options, const model::Tokenizer& tokenizer, uint64_t seed);
  ~Simulation();

  // Requests in order of `at`. Returns when every one has ended and the chain is idle, or at the
  // limit of virtual time. Once per simulation. `window` (seconds from the start): busy time is
  // counted in it alone.
  SimReport Run(std::vector<SimRequest> requests,
                std::optional<std::pair<double, double>> window = std::nullopt);

  // What is sent as soon as a request has ended: its index and the time now, in seconds from the
  // start. Its `at` does not count. Before Run.
  using Next = std::function<std::optional<SimRequest>(size_t index, double now)>;
  void AskNext(Next next) { next_ = std::move(next); }

  // Kills the worker of a stage at that time, in seconds from the start. Before Run.
  void KillWorker(int stage, double at) { kills_.emplace_back(stage, at); }

  // Rows of each plan, in order, as stage 0 saw them.
  const std::vector<v1::MicroBatchPlan>& plans() const { return plans_; }
  void KeepPlans() { keep_plans_ = true; }

 private:
  class Sink;
  class DelayedExecutor;
  class WorkerProgram;

  void StartWorkers();
  std::unique_ptr<SimProgram> MakeWorker(const base::SpawnOptions& options,
                                         absl::AnyInvocable<void(int)> exit);
  void OnHeard(int stage, const v1::ToWorker& message);
  void OnSaid(int stage, const v1::FromWorker& message);
  void Start();
  void Submit(size_t index);
  void ArmNextRequest();
  void OnRequestEnded(size_t index);
  void Cancel(size_t index);
  void Note(uint64_t kind, uint64_t a, uint64_t b);
  base::Instant At(double seconds) const {
    return base::Instant::FromStart(origin_ + absl::Seconds(seconds));
  }
  double Now() const { return absl::ToDoubleSeconds(loop_.Now().since_start() - origin_); }
  std::vector<double> BusySeconds() const;
  bool Idle();

  const SimOptions options_;
  const model::Tokenizer& tokenizer_;
  base::VirtualLoop loop_;
  base::SeededRandom random_;
  absl::Duration origin_;
  SimFabric fabric_;
  std::unique_ptr<DelayedExecutor> session_;
  std::unique_ptr<coordinator::EngineImpl> engine_;
  std::unique_ptr<SimProcessHost> processes_;
  std::vector<base::ProcessId> workers_;  // of each stage
  std::vector<SimRequest> requests_;
  std::vector<std::shared_ptr<Sink>> sinks_;
  size_t given_ = 0;         // requests that Run was given
  size_t next_request_ = 0;  // of those
  Next next_;
  std::vector<std::pair<int, double>> kills_;  // stage, when
  int open_ = 0;
  SimReport report_;
  bool keep_plans_ = false;
  std::vector<v1::MicroBatchPlan> plans_;
};

// Words of two letters, one for each id that the model produces, and an end of generation.
std::unique_ptr<model::Tokenizer> MakeSimTokenizer();

// A greedy request without an end but max_tokens.
coordinator::PreparedRequest SimPrompt(std::vector<int32_t> prompt, int max_tokens, uint64_t seed);
// Random ids.
std::vector<int32_t> RandomTokens(base::Random& random, int count);

}  // namespace layercake::simulation
