#include "tests/sim/traces.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/errors.h"

namespace layercake::simulation {
namespace {

int Between(base::Random& random, int least, int most) {
  return least + static_cast<int>(random.Below(static_cast<uint64_t>(most - least + 1)));
}

double Exponential(base::Random& random, double mean) {
  return -mean * std::log(1 - random.Unit());
}

double LogUniform(base::Random& random, double least, double most) {
  return least * std::pow(most / least, random.Unit());
}

// The seed that the engine draws choice `index` with is its own business; a swarm compares the
// first choice with the serial model, and the others through their Started seed where they are one.
void MakeOdd(base::Random& random, SimRequest& request) {
  coordinator::PreparedRequest& prepared = request.request;
  prepared.client = absl::StrCat("client-", random.Below(3));
  if (random.Below(4) == 0) prepared.priority = coordinator::Priority::kBatch;
  if (random.Below(6) == 0) prepared.use_prefix_cache = false;
  if (random.Below(8) == 0) prepared.n = Between(random, 2, 3);
  if (random.Below(6) == 0) request.cancel_at = request.at + 0.2 * random.Unit();
  if (random.Below(10) == 0) request.bytes_per_second = random.Below(2) == 0 ? 0 : 2000;
}

SimOptions RandomChain(base::Random& random) {
  SimOptions options;
  const int stages = Between(random, 1, 8);
  for (int i = 0; i < stages; ++i) {
    options.stages.push_back({.fixed = 1e-3 * (0.5 + random.Unit()),
                              .per_row = 2e-5 * random.Unit(),
                              .per_read = 1e-7 * random.Unit()});
  }
  options.hop_seconds = 2e-4 * random.Unit();
  options.session_seconds = 5e-4 * random.Unit();
  options.context_tokens = 96;
  options.max_pending_bytes = 200;
  options.reader_timeout = absl::Seconds(0.5);
  options.limit = absl::Seconds(300);
  coordinator::SchedulerOptions& scheduler = options.scheduler;
  scheduler.max_in_flight = stages + static_cast<int>(random.Below(2));
  scheduler.max_rows = Between(random, 2, 48);
  scheduler.prefill_rows = Between(random, 1, 48);
  scheduler.min_prefill_rows = Between(random, 1, 8);
  scheduler.max_sequences = Between(random, 1, 12);
  scheduler.block_tokens = Between(random, 2, 8);
  const int context_blocks =
      (options.context_tokens + scheduler.block_tokens - 1) / scheduler.block_tokens;
  scheduler.kv_blocks =
      Between(random, context_blocks, (random.Below(2) == 0 ? 4 : 2) * context_blocks);
  scheduler.queue_timeout = absl::Seconds(random.Below(8) == 0 ? 0.2 : 200);
  return options;
}

// Half of the swarms copy blocks to host memory: few of them, so that they run out, and with
// heartbeats so close that costs are known soon.
void AddHostBlocks(base::Random& random, SimOptions& options) {
  if (random.Below(2) == 0) return;
  options.heartbeat = absl::Milliseconds(Between(random, 10, 20));
  options.scheduler.host_blocks = Between(random, 1, 40);
  for (StageCost& stage : options.stages) stage.per_copy = 1e-6 * (0.1 + random.Unit());
}

// Microseconds of one layer by rows, behind 512 tokens.
std::vector<MeasuredStep> LayerSteps(Kernels kernels) {
  switch (kernels) {
    case Kernels::kCliff:
      return {{1, 100},  {4, 102},   {8, 113},   {16, 152},   {17, 270},    {32, 276},
              {64, 375}, {128, 568}, {256, 923}, {512, 1333}, {1024, 2306}, {2048, 4210}};
    case Kernels::kLevel:
      return {{1, 100},   {4, 102},   {8, 113},   {16, 152},    {32, 170},   {64, 220},
              {128, 330}, {256, 480}, {512, 850}, {1024, 1650}, {2048, 3300}};
    case Kernels::kTiles:
      // Products in tiles of 128 rows, the last of which may be a half.
      return {{1, 98},     {8, 113},    {16, 153},   {32, 191},    {64, 250},
              {128, 306},  {192, 420},  {256, 504},  {288, 606},   {320, 700},
              {384, 701},  {416, 900},  {512, 950},  {576, 1140},  {640, 1165},
              {704, 1380}, {768, 1390}, {832, 1600}, {1024, 1860}, {2048, 3750}};
    case Kernels::kWgmma:
      // Prompts' without what attention to themselves costs. Powers of two were measured, what lies
      // between goes as the tiles before.
      return {{1, 94},     {8, 104},    {16, 119},   {32, 150},    {64, 195},
              {128, 330},  {192, 437},  {256, 522},  {288, 590},   {320, 660},
              {384, 664},  {416, 830},  {512, 872},  {576, 1065},  {640, 1090},
              {704, 1310}, {768, 1330}, {832, 1560}, {1024, 1818}, {2048, 3494}};
  }
  return {};
}

// Of 64, by stage.
std::vector<int> LayersOf(int stages, Kernels kernels) {
  std::vector<int> layers(static_cast<size_t>(stages), 64 / stages);
  if (kernels == Kernels::kWgmma && stages > 1) {  // the head is as much as one and a half
    ++layers.front();
    --layers.back();
  }
  return layers;
}

}  // namespace

SimOptions GpuChain(int stages) {
  SimOptions options;
  options.stages.assign(static_cast<size_t>(stages),
                        {.fixed = 4e-3, .per_row = 4e-5, .per_read = 2e-9});
  options.hop_seconds = 30e-6;
  options.session_seconds = 100e-6;
  options.reads = Reads::kChained;
  options.context_tokens = 8448;
  options.limit = absl::Seconds(600);
  options.scheduler.max_in_flight = stages + 1;
  options.scheduler.max_rows = 576;
  options.scheduler.prefill_rows = 512;
  options.scheduler.max_sequences = 128;
  options.scheduler.max_queued = 100'000;
  options.scheduler.queue_timeout = absl::Seconds(600);
  options.scheduler.kv_blocks = 16'384;
  options.scheduler.block_tokens = 16;
  return options;
}

SimOptions MeasuredChain(int stages, Kernels kernels) {
  const std::vector<int> layers = LayersOf(stages, kernels);
  SimOptions options = GpuChain(stages);
  for (int stage = 0; stage < stages; ++stage) {
    const double count = layers[static_cast<size_t>(stage)];
    // Beside the rows: what attention to further tokens costs, of which a decoded row reads all
    // once and a chunk's rows share the reading.
    const double read = kernels == Kernels::kWgmma ? 6e-11 : 1.7e-10;
    StageCost cost = {.per_read = read * count, .per_entry = 1e-9 * count};
    for (const MeasuredStep& step : LayerSteps(kernels)) {
      cost.measured.push_back({step.rows, step.seconds * 1e-6 * count});
    }
    options.stages[static_cast<size_t>(stage)] = cost;
  }
  options.stages.back().fixed = 3e-4;  // the head
  options.hop_seconds = 85e-6;
  options.session_seconds = 200e-6;
  options.scheduler.max_rows = options.scheduler.prefill_rows = 2048;
  options.scheduler.max_sequences = 256;
  options.scheduler.run_ahead = true;
  options.context_tokens = 16'384;
  return options;
}

std::vector<SimRequest> DecodeLoad(uint64_t seed, int count, int tokens) {
  base::SeededRandom random(seed);
  std::vector<SimRequest> requests(static_cast<size_t>(count));
  for (SimRequest& request : requests) {
    request.request = SimPrompt(RandomTokens(random, 32), tokens, random.Next());
  }
  return requests;
}

std::vector<SimRequest> MixedLoad(uint64_t seed, double requests_per_second, double seconds) {
  base::SeededRandom random(seed);
  std::vector<SimRequest> requests;
  for (double at = 0;;) {
    at += Exponential(random, 1 / requests_per_second);
    if (at > seconds) return requests;
    SimRequest request;
    request.at = at;
    const auto prompt = static_cast<int>(LogUniform(random, 32, 8000));
    request.request =
        SimPrompt(RandomTokens(random, prompt), Between(random, 32, 256), random.Next());
    request.request.client = absl::StrCat("client-", random.Below(8));
    requests.push_back(std::move(request));
  }
}

Swarm MakeSwarm(uint64_t seed) {
  base::SeededRandom random(seed);
  Swarm swarm;
  swarm.options = RandomChain(random);
  base::SeededRandom copies(~seed);  // of its own: the rest of a seed stays what it was
  AddHostBlocks(copies, swarm.options);
  const int stages = static_cast<int>(swarm.options.stages.size());
  const std::vector<int32_t> shared = RandomTokens(random, Between(random, 4, 40));
  const bool bursts = random.Below(2) == 0;
  double at = 0;
  const int count = Between(random, 4, 20);
  for (int i = 0; i < count; ++i) {
    if (!bursts || i % 5 == 0) at += Exponential(random, 0.02);
    SimRequest request;
    request.at = at;
    const int output = Between(random, 1, 24);
    std::vector<int32_t> prompt;
    const uint64_t kind = random.Below(4);
    if (kind == 0) prompt = shared;
    if (kind == 1 && i > 0) {  // goes on with what an earlier request was told
      const auto& before =
          swarm.requests[random.Below(static_cast<uint64_t>(swarm.requests.size()))].request;
      prompt = before.prompt;
      const std::vector<int32_t> told = SerialTokens(stages, swarm.options.reads, before.prompt,
                                                     before.max_tokens, before.sampling.seed());
      prompt.insert(prompt.end(), told.begin(), told.end());
    }
    const std::vector<int32_t> own = RandomTokens(random, Between(random, 1, 30));
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompt.resize(
        std::min(prompt.size(), static_cast<size_t>(swarm.options.context_tokens - output)));
    request.request = SimPrompt(std::move(prompt), output, random.Next());
    MakeOdd(random, request);
    swarm.requests.push_back(std::move(request));
  }
  return swarm;
}

std::string FindFault(const Swarm& swarm, const SimReport& report) {
  if (!report.failure.ok()) return absl::StrCat("failed: ", report.failure.ToString());
  const int stages = static_cast<int>(swarm.options.stages.size());
  for (size_t i = 0; i < swarm.requests.size(); ++i) {
    const SimRequest& request = swarm.requests[i];
    const SimOutcome& outcome = report.outcomes[i];
    if (outcome.ended < 0) return absl::StrCat("request ", i, " never ended");
    const bool reads = request.bytes_per_second >= 1e6;
    const ErrorReason reason = ReasonOf(outcome.error);
    if (!outcome.error.ok() && reason != ErrorReason::kQueueFull &&
        !(reason == ErrorReason::kDeadline && !reads)) {
      return absl::StrCat("request ", i, " ended with ", outcome.error.ToString());
    }
    const std::vector<int32_t> right =
        SerialTokens(stages, swarm.options.reads, request.request.prompt,
                     request.request.max_tokens, request.request.sampling.seed());
    const std::vector<int32_t>& first = outcome.choices[0].tokens;
    if (first.size() > right.size() || !std::equal(first.begin(), first.end(), right.begin())) {
      return absl::StrCat("request ", i, " has other tokens than the serial model");
    }
    if (outcome.cancelled || !outcome.error.ok()) continue;
    for (const SimOutcome::Choice& choice : outcome.choices) {
      if (!choice.finished || choice.tokens.size() != right.size()) {
        return absl::StrCat("request ", i, " has ", choice.tokens.size(), " tokens, asked for ",
                            right.size());
      }
    }
  }
  if (report.loads.running() != 0 || report.loads.queued() != 0 ||
      report.loads.micro_batches_in_flight() != 0) {
    return "something runs on after the last request";
  }
  if (report.loads.kv_blocks_used() != 0) {
    return absl::StrCat(report.loads.kv_blocks_used(), " blocks are owned by nobody");
  }
  return {};
}

}  // namespace layercake::simulation
