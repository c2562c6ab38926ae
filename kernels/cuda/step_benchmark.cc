// Whole steps of a model with the shapes of Qwen2.5-32B: what a stage of `layers` layers costs, by
// rows and context, for decoding (one row per sequence) and prompts; and sampling alone.
//
//   One layer's weights serve all layers: at 274 MB (Q4_K) they are far larger than the L2 cache.
//   A step is timed on the host from BeginStep to the end of Finish, the median of the repeats.
//
// Arguments: layers (16), type of the weights (Q4_K), and what to time, everything when nothing is
// named, so that a profiler can look at one thing alone:
//   decode:ROWS:CONTEXT    ROWS sequences, one row each
//   prompt:ROWS:CONTEXT    ROWS rows of one sequence, the last of its context
//   sample:ROWS            sampling in each of its ways
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "kernels/cpu/kernels_test_support.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda_backend.h"

namespace layercake::kernels::cuda {
namespace {

constexpr int kHidden = 5120;
constexpr int kHeads = 40;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kFfn = 27648;
constexpr int kVocabulary = 152064;
constexpr int kMaxRows = 2048;
constexpr int kBlockTokens = 16;
constexpr int kContext = 8192;
constexpr int kSequences = 64;

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

// One random matrix's rows, again and again.
std::vector<uint8_t> ManyWeights(base::Random& random, WeightType type, int64_t n, int64_t k) {
  const std::vector<uint8_t> some = RandomWeights(random, type, std::min<int64_t>(n, 16), k);
  std::vector<uint8_t> bytes(static_cast<size_t>(n) * RowBytes(type, k));
  for (size_t at = 0; at < bytes.size(); at += some.size()) {
    std::memcpy(bytes.data() + at, some.data(), std::min(some.size(), bytes.size() - at));
  }
  return bytes;
}

struct Model {
  base::SystemClock clock;
  CollectingExecutor executor;
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::vector<std::unique_ptr<Matrix>> matrices;
  std::vector<std::unique_ptr<Vector>> vectors;
  std::vector<std::unique_ptr<DeviceMemory>> memory;
  std::unique_ptr<KvCache> cache;
  int layers;
  AttentionWeights attention;
  FfnWeights ffn_weights;
  const Matrix* wo;
  const Matrix* down;
  const Matrix* head;
  Rope rope;
  Buffer x, q, out, ffn, logits;

  Model(int layer_count, WeightType type) : layers(layer_count) {
    const auto devices = Must(ListCudaDevices());
    device = Must(CreateCudaDevice(devices.front(), executor));
    ops = Must(CreateCudaOps(*device));
    base::SeededRandom random(1);
    const auto load = [&](int64_t n, int64_t k) {
      const std::vector<uint8_t> bytes = ManyWeights(random, type, n, k);
      matrices.push_back(Must(ops->LoadMatrix(
          type, n, k, {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()})));
      return matrices.back().get();
    };
    const auto vec = [&](int64_t size) {
      vectors.push_back(Must(ops->LoadVector(RandomFloats(random, size))));
      return vectors.back().get();
    };
    const int kv = kKvHeads * kHeadDim;
    attention.norm = vec(kHidden);
    attention.norm_eps = 1e-6f;
    attention.wq = load(kHidden, kHidden);
    attention.wk = load(kv, kHidden);
    attention.wv = load(kv, kHidden);
    attention.bq = vec(kHidden);
    attention.bk = vec(kv);
    attention.bv = vec(kv);
    wo = load(kHidden, kHidden);
    ffn_weights = {.norm = vec(kHidden),
                   .norm_eps = 1e-6f,
                   .gate = load(kFfn, kHidden),
                   .up = load(kFfn, kHidden),
                   .gate_bias = nullptr,
                   .up_bias = nullptr};
    down = load(kHidden, kFfn);
    head = load(kVocabulary, kHidden);
    rope.pairing = Rope::Pairing::kHalves;
    rope.rope_dims = kHeadDim;
    for (int j = 0; j < kHeadDim / 2; ++j) {
      rope.inv_freq.push_back(
          static_cast<float>(std::pow(1e6, -2.0 * j / static_cast<double>(kHeadDim))));
    }
    cache = Must(ops->CreateKvCache({.layers = layers,
                                     .blocks = kSequences * 4096 / kBlockTokens,
                                     .block_tokens = kBlockTokens,
                                     .kv_heads = kKvHeads,
                                     .head_dim = kHeadDim,
                                     .type = KvType::kF16}));
    const auto allocate = [&](int64_t rows, int64_t width) {
      memory.push_back(Must(device->Allocate(static_cast<size_t>(rows * width) * sizeof(float))));
      return memory.back()->buffer();
    };
    x = allocate(kMaxRows, kHidden);
    q = allocate(kMaxRows, kHidden);
    out = allocate(kMaxRows, kHidden);
    ffn = allocate(kMaxRows, kFfn);
    logits = allocate(64, kVocabulary);
    Must(ops->Prepare({.max_rows = kMaxRows,
                       .max_sequences = kSequences,
                       .context_tokens = kContext,
                       .logit_rows = 64,
                       .vocabulary = kVocabulary,
                       .hidden = kHidden,
                       .q_width = kHidden,
                       .kv_width = kv,
                       .ffn = kFfn}));
  }

  // Steps of `sequences` with `rows` rows each at the end of a context.
  absl::Status Layers(int sequences, int rows, int context, bool with_attention) {
    std::vector<std::vector<int32_t>> tables;
    std::vector<absl::Span<const int32_t>> views;
    std::vector<int32_t> positions, index, tokens;
    for (int s = 0; s < sequences; ++s) {
      auto& table = tables.emplace_back();
      for (int b = 0; b < context / kBlockTokens + 1; ++b) {
        table.push_back((s * 256 + b) % (kSequences * 4096 / kBlockTokens));
      }
      for (int r = 0; r < rows; ++r) {
        positions.push_back(context - rows + r);
        index.push_back(s);
        tokens.push_back(r % kVocabulary);
      }
    }
    for (const auto& table : tables) views.push_back(table);
    LC_RETURN_IF_ERROR(ops->BeginStep({sequences * rows, positions, positions, index, views}));
    LC_RETURN_IF_ERROR(ops->Embed(*head, tokens, x));
    for (int i = 0; i < layers; ++i) {
      LC_RETURN_IF_ERROR(ops->AttentionInput(attention, rope, x, *cache, i, q));
      if (with_attention) LC_RETURN_IF_ERROR(ops->Attention(q, *cache, i, kHeads, out));
      LC_RETURN_IF_ERROR(ops->LinearAdd(*wo, nullptr, out, x));
      LC_RETURN_IF_ERROR(ops->FfnInput(ffn_weights, x, ffn));
      LC_RETURN_IF_ERROR(ops->LinearAdd(*down, nullptr, ffn, x));
    }
    return absl::OkStatus();
  }

  double MedianMs(int repeats, const std::function<absl::Status()>& body) {
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      Must(RunOn(*device, executor, [&]() -> absl::Status {
        const base::Instant begin = clock.Now();
        LC_RETURN_IF_ERROR(body());
        LC_RETURN_IF_ERROR(ops->Finish());
        times.push_back(absl::ToDoubleMilliseconds(clock.Now() - begin));
        return absl::OkStatus();
      }));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
};

struct Case {
  enum class Kind { kDecode, kPrompt, kSample } kind = Kind::kDecode;
  int rows = 1;
  int context = 0;
};

// InvalidArgument when it is none of what the top of this file says.
absl::StatusOr<Case> ParseCase(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  Case parsed;
  const bool samples = parts[0] == "sample";
  bool good = parts.size() == (samples ? 2 : 3) && absl::SimpleAtoi(parts[1], &parsed.rows) &&
              (samples || absl::SimpleAtoi(parts[2], &parsed.context));
  parsed.kind = samples                ? Case::Kind::kSample
                : parts[0] == "prompt" ? Case::Kind::kPrompt
                                       : Case::Kind::kDecode;
  const bool prompt = parsed.kind == Case::Kind::kPrompt;
  good = good && (samples || prompt || parts[0] == "decode") && parsed.rows >= 1 &&
         parsed.rows <= (prompt ? kMaxRows : kSequences);
  good = good &&
         (samples || (parsed.context >= (prompt ? parsed.rows : 1) && parsed.context < kContext));
  if (good) return parsed;
  return absl::InvalidArgumentError(absl::StrCat(
      text, " is not decode:ROWS:CONTEXT, prompt:ROWS:CONTEXT or sample:ROWS within ", kSequences,
      " sequences, ", kMaxRows, " rows of a prompt and a context of ", kContext));
}

std::vector<Case> AllCases() {
  using Kind = Case::Kind;
  std::vector<Case> cases;
  for (const auto& [rows, context] : std::vector<std::pair<int, int>>{{1, 512},
                                                                      {1, 4000},
                                                                      {2, 512},
                                                                      {4, 512},
                                                                      {8, 512},
                                                                      {8, 4000},
                                                                      {16, 512},
                                                                      {32, 512},
                                                                      {64, 512}}) {
    cases.push_back({Kind::kDecode, rows, context});
  }
  for (const auto& [rows, context] : std::vector<std::pair<int, int>>{
           {32, 32}, {128, 128}, {256, 256}, {256, 2048}, {512, 512}, {1024, 1024}, {2048, 2048}}) {
    cases.push_back({Kind::kPrompt, rows, context});
  }
  for (const int rows : {1, 8, 64}) cases.push_back({Kind::kSample, rows, 0});
  return cases;
}

void TimeSteps(Model& model, const Case& c) {
  const bool prompt = c.kind == Case::Kind::kPrompt;
  const auto time = [&](bool attention) {
    return model.MedianMs(prompt ? 5 : 15, [&] {
      return prompt ? model.Layers(1, c.rows, c.context, attention)
                    : model.Layers(c.rows, 1, c.context, attention);
    });
  };
  const double with = time(true);
  const double without = time(false);
  std::printf(prompt ? "prompt %4d %5d  %8.3f  %8.1f  %8.1f\n" : "%4d %7d  %8.3f  %8.1f  %8.1f\n",
              c.rows, c.context, with, 1000 * with / model.layers, 1000 * without / model.layers);
}

void FillLogits(Model& model) {
  base::SeededRandom random(2);
  std::vector<float> logits(64 * kVocabulary);
  for (float& value : logits) {
    value = 2.5f * (Uniform(random, -1, 1) + Uniform(random, -1, 1) + Uniform(random, -1, 1));
  }
  // A few dozen candidates far ahead of the bulk, as models have them.
  for (size_t row = 0; row < 64; ++row) {
    for (int i = 0; i < 50; ++i) {
      logits[row * kVocabulary + random.Below(kVocabulary)] = Uniform(random, 10, 22);
    }
  }
  Must(RunOn(*model.device, model.executor, [&] {
    return model.device->CopyIn(reinterpret_cast<const std::byte*>(logits.data()), model.logits,
                                logits.size() * sizeof(float));
  }));
}

void TimeSampling(Model& model, int count) {
  std::printf("%3d", count);
  for (int kind = 0; kind < 5; ++kind) {
    std::vector<SampleRequest> requests(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      SampleRequest& request = requests[static_cast<size_t>(i)];
      request.logits_row = i;
      if (kind > 0) request.params.temperature = 0.8f;
      if (kind == 2) request.params.top_k = 40;
      if (kind == 2) request.params.top_p = 0.95f;
      if (kind == 3) request.params.top_p = 0.9f;
      if (kind == 4) request.top_logprobs = 20;
    }
    std::vector<SampleResult> results(requests.size());
    std::printf("  %8.1f", 1000 * model.MedianMs(15, [&] {
      return model.ops->Sample(model.logits, kVocabulary, requests, absl::MakeSpan(results));
    }));
  }
  std::printf("\n");
}

void Run(int layers, WeightType type, const std::vector<Case>& cases) {
  Model model(layers, type);
  std::printf("%d layers, %s\nrows context   ms/step  us/layer  us/layer without attention\n",
              layers, std::string(WeightTypeName(type)).c_str());
  bool filled = false;
  for (const Case& c : cases) {
    if (c.kind != Case::Kind::kSample) {
      TimeSteps(model, c);
      continue;
    }
    if (!filled) {
      FillLogits(model);
      std::printf(
          "sampling, us: rows, greedy, temperature, top_k 40 top_p 0.95, top_p 0.9, "
          "log-probabilities\n");
    }
    filled = true;
    TimeSampling(model, c.rows);
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda

int main(int argc, char** argv) {
  namespace cuda = layercake::kernels::cuda;
  using layercake::kernels::WeightType;
  const int layers = argc > 1 ? std::atoi(argv[1]) : 16;
  const std::string type = argc > 2 ? argv[2] : "Q4_K";
  std::vector<cuda::Case> cases;
  for (int i = 3; i < argc; ++i) cases.push_back(cuda::Must(cuda::ParseCase(argv[i])));
  if (cases.empty()) cases = cuda::AllCases();
  for (const WeightType candidate : layercake::kernels::kAllTypes) {
    if (layercake::kernels::WeightTypeName(candidate) == type) {
      cuda::Run(layers, candidate, cases);
      return 0;
    }
  }
  std::fprintf(stderr, "no type %s\n", type.c_str());
  return 2;
}
