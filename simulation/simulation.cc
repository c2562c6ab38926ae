#include "simulation/simulation.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "proto/memory_link.h"
#include "spdlog/spdlog.h"

namespace layercake::simulation {
namespace {

enum EventKind : uint64_t { kHeard = 1, kSaid, kToken, kEnd, kError, kExit };

// How often it is looked whether everything has ended.
constexpr absl::Duration kSlice = absl::Milliseconds(20);

}  // namespace

// Posts arrive a fixed time later, in order: the way of a Session.
class Simulation::DelayedExecutor final : public base::Executor {
 public:
  DelayedExecutor(base::VirtualLoop& loop, absl::Duration delay) : loop_(loop), delay_(delay) {}
  bool Post(base::Task task) override {
    loop_.At(loop_.Now() + delay_, std::move(task));
    return true;
  }

 private:
  base::VirtualLoop& loop_;
  const absl::Duration delay_;
};

class Simulation::Sink final : public coordinator::RequestSink {
 public:
  Sink(Simulation& simulation, size_t index, double bytes_per_second)
      : simulation_(simulation), index_(index), bytes_per_second_(bytes_per_second) {}

  void OnStarted(const v1::Started& started) override { outcome().started = started; }
  void OnPromptLogprobs(const v1::PromptLogprobs&) override {}
  void OnDelta(v1::Delta delta) override {
    SimOutcome::Choice& choice = outcome().choices.at(static_cast<size_t>(delta.index()));
    for (const int32_t token : delta.token_ids()) {
      choice.tokens.push_back(token);
      choice.times.push_back(simulation_.Now());
      simulation_.Note(kToken, index_, static_cast<uint64_t>(token));
    }
    choice.text += delta.text();
    Receive(delta.ByteSizeLong());
  }
  void OnFinished(const v1::Finished& finished) override {
    outcome().choices.at(static_cast<size_t>(finished.index())).finished = finished;
    simulation_.Note(kEnd, index_, static_cast<uint64_t>(finished.reason()));
    if (--outcome().open == 0) End();
  }
  void OnError(const absl::Status& status) override {
    outcome().error = status;
    simulation_.Note(kError, index_, static_cast<uint64_t>(status.code()));
    End();
  }
  size_t pending_bytes() const override {
    const double read = bytes_per_second_ * (simulation_.Now() - since_);
    return read >= static_cast<double>(pending_) ? 0 : pending_ - static_cast<size_t>(read);
  }
  void End() {
    outcome().ended = simulation_.Now();
    simulation_.OnRequestEnded(index_);
  }

 private:
  SimOutcome& outcome() { return simulation_.report_.outcomes[index_]; }
  void Receive(size_t bytes) {
    pending_ = pending_bytes() + bytes;
    since_ = simulation_.Now();
    outcome().peak_pending_bytes = std::max(outcome().peak_pending_bytes, pending_);
  }

  Simulation& simulation_;
  const size_t index_;
  const double bytes_per_second_;
  size_t pending_ = 0;
  double since_ = 0;
};

// A worker as a process.
class Simulation::WorkerProgram final : public SimProgram {
 public:
  WorkerProgram(const SimWorkerOptions& options, const SimWorkerContext& context,
                absl::AnyInvocable<void(int)> exit)
      : worker_(options, context, [this, exit = std::move(exit)](absl::Status status) mutable {
          status_ = std::move(status);
          exit(status_.ok() ? 0 : 1);
        }) {}

  void Start() override { worker_.Start(); }
  void OnSigterm() override { worker_.RequestStop("SIGTERM"); }
  const SimWorker& worker() const { return worker_; }

 private:
  absl::Status status_;
  SimWorker worker_;
};

Simulation::Simulation(SimOptions options, const model::Tokenizer& tokenizer, uint64_t seed)
    : options_(std::move(options)), tokenizer_(tokenizer), random_(seed) {
  spdlog::set_level(spdlog::level::warn);  // a line per channel is too many over thousands of runs
  const int stages = static_cast<int>(options_.stages.size());
  const coordinator::SchedulerOptions& scheduler = options_.scheduler;
  coordinator::EngineOptions engine;
  engine.scheduler = scheduler;
  engine.scheduler.stages = stages;
  engine.scheduler.max_history_tokens = options_.context_tokens;
  engine.scheduler.max_in_flight = std::max(scheduler.max_in_flight, 1);
  engine.scheduler.max_block_copies = coordinator::MaxBlockCopies(
      scheduler.host_blocks, options_.context_tokens, scheduler.block_tokens);
  engine.chain.heartbeat = options_.heartbeat;
  engine.max_pending_bytes = options_.max_pending_bytes;
  engine.reader_timeout = options_.reader_timeout;
  coordinator::ChainPlan& plan = engine.chain.plan;
  for (int stage = 0; stage < stages; ++stage) {
    plan.stages.push_back({static_cast<uint32_t>(stage), static_cast<uint32_t>(stage + 1)});
  }
  plan.kv_blocks = scheduler.kv_blocks;
  plan.host_kv_blocks = scheduler.host_blocks;
  plan.kv_block_tokens = scheduler.block_tokens;
  plan.max_rows = scheduler.max_rows;
  plan.max_sequences = scheduler.max_sequences;
  plan.context_tokens = options_.context_tokens;
  plan.max_in_flight = coordinator::MaxPlanned(engine.scheduler);
  plan.transport = "local";
  const auto rows = static_cast<uint32_t>(scheduler.max_rows);
  plan.ring.set_plan_slots(static_cast<uint32_t>(plan.max_in_flight) + 2);
  plan.ring.set_activation_slots(static_cast<uint32_t>(plan.max_in_flight) + 1);
  plan.ring.set_plan_slot_bytes(8'192 + rows * 64 +
                                10 * static_cast<uint32_t>(options_.context_tokens) +
                                32 * static_cast<uint32_t>(engine.scheduler.max_block_copies));
  plan.ring.set_activation_slot_bytes(4'096 + rows * 32);

  fabric_.clock = &loop_;
  fabric_.timers = &loop_;
  fabric_.hop = absl::Seconds(options_.hop_seconds);
  fabric_.per_row_byte = absl::Seconds(options_.hop_row_seconds / (kSimHidden * sizeof(float)));
  session_ = std::make_unique<DelayedExecutor>(loop_, absl::Seconds(options_.session_seconds));
  engine_ = std::make_unique<coordinator::EngineImpl>(
      std::move(engine), tokenizer_, loop_, loop_, loop_, random_,
      coordinator::EngineImpl::Events{.on_changed = [] {},
                                      .on_ready = [](bool) {},
                                      .on_stopped =
                                          [this](absl::Status status) {
                                            if (report_.failure.ok())
                                              report_.failure = std::move(status);
                                          }});
  processes_ = std::make_unique<SimProcessHost>(
      loop_, [this](const base::SpawnOptions& spawn, absl::AnyInvocable<void(int)> exit) {
        return MakeWorker(spawn, std::move(exit));
      });
}

void Simulation::StartWorkers() {
  for (int stage = 0; stage < static_cast<int>(options_.stages.size()); ++stage) {
    base::SpawnOptions spawn;
    spawn.argv = {"layercake-worker", "--stage", absl::StrCat(stage)};
    auto process =
        processes_->Spawn(std::move(spawn), [this, stage](const base::ProcessExit& exit) {
          Note(kExit, static_cast<uint64_t>(stage), static_cast<uint64_t>(exit.code));
        });
    LC_CHECK(process.ok(), process.status().ToString());
    workers_.push_back(*process);
  }
}

std::unique_ptr<SimProgram> Simulation::MakeWorker(const base::SpawnOptions& options,
                                                   absl::AnyInvocable<void(int)> exit) {
  int stage = -1;
  LC_CHECK(options.argv.size() == 3 && absl::SimpleAtoi(options.argv[2], &stage),
           "a worker is started with --stage N");
  return std::make_unique<WorkerProgram>(
      SimWorkerOptions{.stage = stage,
                       .cost = options_.stages[static_cast<size_t>(stage)],
                       .reads = options_.reads},
      SimWorkerContext{
          .clock = &loop_,
          .timers = &loop_,
          .executor = &loop_,
          .fabric = &fabric_,
          .dial =
              [this] {
                auto [down, up] = MakeMemoryLinks(*session_);
                engine_->AddSession(std::move(down), "sim");
                return std::move(up);
              },
          .on_heard = [this, stage](const v1::ToWorker& message) { OnHeard(stage, message); },
          .on_said = [this, stage](const v1::FromWorker& message) { OnSaid(stage, message); }},
      std::move(exit));
}

void Simulation::OnHeard(int stage, const v1::ToWorker& message) {
  uint64_t what = 0;
  if (message.has_plan()) {
    const v1::MicroBatchPlan& plan = message.plan();
    int64_t rows = 0;
    for (const v1::RowDescriptor& row : plan.rows()) rows += row.tokens_size();
    report_.rows += rows;
    ++report_.steps;
    report_.saved_blocks += plan.saves_size();
    report_.restored_blocks += plan.restores_size();
    what = plan.step() << 20 | static_cast<uint64_t>(rows);
    if (keep_plans_) plans_.push_back(plan);
  }
  Note(kHeard, static_cast<uint64_t>(stage) << 8 | static_cast<uint64_t>(message.message_case()),
       what);
}

void Simulation::OnSaid(int stage, const v1::FromWorker& message) {
  uint64_t what = 0;
  if (message.has_step_result()) {
    what = message.step_result().step() << 20 |
           static_cast<uint64_t>(message.step_result().results_size());
  }
  Note(kSaid, static_cast<uint64_t>(stage) << 8 | static_cast<uint64_t>(message.message_case()),
       what);
}

Simulation::~Simulation() {
  // Ends the links while the workers are there to hear of it.
  engine_.reset();
  loop_.RunPosted();
  processes_.reset();
}

void Simulation::Note(uint64_t kind, uint64_t a, uint64_t b) {
  const auto time = static_cast<uint64_t>(absl::ToInt64Nanoseconds(loop_.Now().since_start()));
  for (const uint64_t value : {time, kind, a, b}) {
    report_.trace = (report_.trace ^ value) * 0x100000001B3u;  // FNV-1a over words
  }
}

void Simulation::Start() {
  engine_->Start();
  StartWorkers();
  for (int i = 0; i < 10'000; ++i) {
    loop_.Advance(absl::Milliseconds(1));
    if (engine_->Status().state() == v1::CHAIN_STATE_SERVING) return;
  }
  LC_CHECK(false, "the simulated chain did not start: ", engine_->Status().reason());
}

void Simulation::Submit(size_t index) {
  const SimRequest& request = requests_[index];
  SimOutcome& outcome = report_.outcomes[index];
  outcome.submitted = Now();
  outcome.open = request.request.n;
  outcome.choices.resize(static_cast<size_t>(outcome.open));
  sinks_[index] = std::make_shared<Sink>(*this, index, request.bytes_per_second);
  ++open_;
  engine_->Submit(request.request, sinks_[index]);
  if (request.cancel_at >= 0) {
    loop_.At(At(request.cancel_at), [this, index] { Cancel(index); });
  }
}

void Simulation::ArmNextRequest() {
  if (next_request_ >= given_) return;
  loop_.At(At(requests_[next_request_].at), [this] {
    Submit(next_request_++);
    ArmNextRequest();
  });
}

void Simulation::OnRequestEnded(size_t index) {
  report_.seconds = Now();
  --open_;
  if (!next_) return;
  std::optional<SimRequest> request = next_(index, Now());
  if (!request) return;
  const size_t added = requests_.size();
  requests_.push_back(*std::move(request));
  report_.outcomes.emplace_back();
  sinks_.emplace_back();
  LC_CHECK(loop_.Post([this, added] { Submit(added); }), "the simulation's loop is full");
}

void Simulation::Cancel(size_t index) {
  SimOutcome& outcome = report_.outcomes[index];
  if (outcome.ended >= 0) return;
  outcome.cancelled = true;
  engine_->Drop(sinks_[index]);
  sinks_[index]->End();
}

std::vector<double> Simulation::BusySeconds() const {
  std::vector<double> busy;
  for (const base::ProcessId id : workers_) {
    const auto* const program = static_cast<const WorkerProgram*>(processes_->program(id));
    busy.push_back(program == nullptr ? 0
                                      : absl::ToDoubleSeconds(program->worker().device().busy()));
  }
  return busy;
}

bool Simulation::Idle() {
  bool idle = false;
  engine_->GetLoads([&](v1::GetLoadsResponse loads) {
    idle = loads.running() == 0 && loads.queued() == 0 && loads.micro_batches_in_flight() == 0;
    report_.loads = std::move(loads);
  });
  loop_.RunPosted();
  return idle && next_request_ >= given_ && open_ == 0;
}

SimReport Simulation::Run(std::vector<SimRequest> requests,
                          std::optional<std::pair<double, double>> window) {
  Start();
  origin_ = loop_.Now().since_start();
  report_.rows = report_.steps = 0;  // without the test of the chain
  plans_.clear();
  requests_ = std::move(requests);
  given_ = requests_.size();
  report_.outcomes.resize(requests_.size());
  sinks_.resize(requests_.size());
  std::vector<double> before = BusySeconds();
  std::vector<double> after;
  if (window) {
    loop_.At(At(window->first), [&] { before = BusySeconds(); });
    loop_.At(At(window->second), [&] { after = BusySeconds(); });
  }
  for (const auto& [stage, at] : kills_) {
    loop_.At(At(at), [this, process = workers_.at(static_cast<size_t>(stage))] {
      // NotFound: the chain has ended before.
      processes_->Kill(process, SIGKILL).IgnoreError();
    });
  }
  ArmNextRequest();
  const base::Instant limit = loop_.Now() + options_.limit;
  int64_t blocks = 0;
  int64_t slices = 0;
  while (!Idle() && report_.failure.ok() && loop_.Now() < limit) {
    loop_.Advance(kSlice);
    report_.peak_blocks = std::max<int64_t>(report_.peak_blocks, report_.loads.kv_blocks_used());
    if (window && (Now() < window->first || Now() > window->second)) continue;
    blocks += report_.loads.kv_blocks_used();
    ++slices;
  }
  if (slices > 0) report_.window_blocks = blocks / slices;
  if (after.empty()) after = BusySeconds();
  for (size_t stage = 0; stage < workers_.size(); ++stage) {
    report_.busy_seconds.push_back(std::max(0.0, after[stage] - before[stage]));
  }
  return report_;
}

std::unique_ptr<model::Tokenizer> MakeSimTokenizer() {
  model::TokenizerSpec spec;
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  for (int i = 0; i < kSimVocabulary; ++i) {
    spec.tokens.push_back({static_cast<char>('a' + i / 16), static_cast<char>('a' + i % 16)});
  }
  spec.tokens.emplace_back("<|end|>");
  spec.token_types.assign(spec.tokens.size(), 1);
  spec.token_types.back() = 3;
  spec.eos_id = kSimVocabulary;
  spec.merges = {"a a"};
  auto tokenizer = model::Tokenizer::Create(std::move(spec));
  LC_CHECK(tokenizer.ok(), tokenizer.status().ToString());
  return *std::move(tokenizer);
}

coordinator::PreparedRequest SimPrompt(std::vector<int32_t> prompt, int max_tokens, uint64_t seed) {
  coordinator::PreparedRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.ignore_end_of_generation = true;
  request.sampling.set_top_p(1);
  request.sampling.set_repetition_penalty(1);
  request.sampling.set_top_logprobs(-1);
  request.sampling.set_seed(seed);
  return request;
}

std::vector<int32_t> RandomTokens(base::Random& random, int count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random.Below(static_cast<uint64_t>(kSimVocabulary)));
  }
  return tokens;
}

}  // namespace layercake::simulation
