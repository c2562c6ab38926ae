// Bytes and operations per token of SmolLM2-135M in Q4_1, product by product, then a whole token.
//
//   hidden 576, ffn 1536, 9 heads on 3 kv heads of 64, 30 layers, vocabulary 49152. A layer's
//   products are 3.54 million multiplications in 2.21 MB; the tied head 28.3 million in 17.7 MB;
//   a token 134.5 million in 84 MB, so 20 GB/s of memory bandwidth bound it at 4.2 ms.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/kernels_test_support.h"

namespace layercake::kernels {
namespace {

constexpr int64_t kHidden = 576;
constexpr int64_t kFfn = 1536;
constexpr int64_t kKvWidth = 192;
constexpr int64_t kVocabulary = 49152;
constexpr int kLayers = 30;

void Must(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::abort();
  }
}

// The shortest iteration: what the machine does when nothing else runs on it.
class Best {
 public:
  void Start() { start_ = clock_.Now(); }
  void Stop() { seconds_ = std::min(seconds_, absl::ToDoubleSeconds(clock_.Now() - start_)); }
  double seconds() const { return seconds_; }

 private:
  base::SystemClock clock_;
  base::Instant start_;
  double seconds_ = 1e9;
};

// One product in the calling thread over weights larger than the caches.
void BM_Matmul(benchmark::State& state, WeightType type) {
  const int64_t n = state.range(0);
  const int64_t k = state.range(1);
  const int64_t rows = state.range(2);
  const CpuKernels& kernels = Avx2Kernels() != nullptr ? *Avx2Kernels() : ScalarKernels();
  base::SeededRandom random(1);
  const std::vector<uint8_t> weights = RandomWeights(random, type, n, k);
  const PreparedActivations prepared(kernels, RandomFloats(random, rows * k), rows, k);
  const Activations view = prepared.View();
  std::vector<float> out = Poisoned(rows * n);
  AlignedFloats scratch;
  auto* memory =
      reinterpret_cast<std::byte*>(scratch.Require(MatmulScratchBytes(k) / sizeof(float)));
  Best best;
  for (auto _ : state) {
    best.Start();
    kernels.matmul(
        {type, weights.data(), RowBytes(type, k), 0, n, k, &view, rows, out.data(), n, memory});
    benchmark::DoNotOptimize(out.data());
    best.Stop();
  }
  state.counters["best GB/s"] = static_cast<double>(weights.size()) * 1e-9 / best.seconds();
  state.counters["best GMAC/s"] = static_cast<double>(n * k * rows) * 1e-9 / best.seconds();
}

struct Model {
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<std::unique_ptr<Matrix>> matrices;

  const Matrix* Add(Ops& ops, base::Random& random, WeightType type, int64_t n, int64_t k) {
    bytes.push_back(RandomWeights(random, type, n, k));
    auto matrix = ops.LoadMatrix(
        type, n, k,
        absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.back().data()), bytes.back().size()));
    Must(matrix.status());
    matrices.push_back(*std::move(matrix));
    return matrices.back().get();
  }
};

// A step of `rows` tokens behind a context of `context`, all layers, logits of the last row.
void BM_SmolLm2Step(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  const auto rows = static_cast<int>(state.range(1));
  const auto context = static_cast<int>(state.range(2));
  const auto kv_type = static_cast<KvType>(state.range(3));
  state.SetLabel(std::string(KvTypeName(kv_type)));
  constexpr WeightType kType = WeightType::kQ4_1;
  CollectingExecutor executor;
  auto device = CreateCpuDevice({.threads = threads}, executor);
  Must(device.status());
  auto ops = CreateCpuOps(**device);
  Must(ops.status());
  base::SeededRandom random(1);
  Model model;
  const std::vector<float> ones(kHidden, 1.0f);
  const auto norm = (*ops)->LoadVector(ones);
  std::vector<AttentionWeights> attention;
  std::vector<FfnWeights> ffn;
  std::vector<const Matrix*> wo, down;
  for (int layer = 0; layer < kLayers; ++layer) {
    AttentionWeights a;
    a.norm = norm->get();
    a.norm_eps = 1e-5f;
    a.wq = model.Add(**ops, random, kType, kHidden, kHidden);
    a.wk = model.Add(**ops, random, kType, kKvWidth, kHidden);
    a.wv = model.Add(**ops, random, kType, kKvWidth, kHidden);
    attention.push_back(a);
    wo.push_back(model.Add(**ops, random, kType, kHidden, kHidden));
    FfnWeights f;
    f.norm = norm->get();
    f.norm_eps = 1e-5f;
    f.gate = model.Add(**ops, random, kType, kFfn, kHidden);
    f.up = model.Add(**ops, random, kType, kFfn, kHidden);
    ffn.push_back(f);
    down.push_back(model.Add(**ops, random, kType, kHidden, kFfn));
  }
  const Matrix* head = model.Add(**ops, random, kType, kVocabulary, kHidden);
  const int blocks = (context + rows + 15) / 16;
  auto cache = (*ops)->CreateKvCache({kLayers, blocks, 16, 3, 64, kv_type});
  Must(cache.status());
  Rope rope;
  rope.rope_dims = 64;
  for (int j = 0; j < 32; ++j) {
    rope.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -j / 32.0)));
  }
  std::vector<int32_t> table, positions;
  for (int b = 0; b < blocks; ++b) table.push_back(b);
  for (int r = 0; r < rows; ++r) positions.push_back(context + r);
  const std::vector<int32_t> zeros(static_cast<size_t>(rows), 0);
  const absl::Span<const int32_t> tables[] = {table};
  const StepRows step{rows, positions, positions, zeros, tables};
  std::vector<float> x = Poisoned(rows * kHidden), q = x, a_out = x;
  std::vector<float> h = Poisoned(rows * kFfn), logits = Poisoned(kVocabulary);
  const std::vector<int32_t> tokens(static_cast<size_t>(rows), 17);
  const int32_t last = rows - 1;
  std::vector<SampleResult> results(1);
  const std::vector<SampleRequest> requests(1);
  Best best;
  for (auto _ : state) {
    best.Start();
    Must(RunOn(**device, executor, [&]() -> absl::Status {
      Must((*ops)->BeginStep(step));
      Must((*ops)->Embed(*head, tokens, BufferOf(x)));
      for (size_t l = 0; l < kLayers; ++l) {
        Must((*ops)->AttentionInput(attention[l], rope, BufferOf(x), **cache, static_cast<int>(l),
                                    BufferOf(q)));
        Must((*ops)->Attention(BufferOf(q), **cache, static_cast<int>(l), 9, BufferOf(a_out)));
        Must((*ops)->LinearAdd(*wo[l], nullptr, BufferOf(a_out), BufferOf(x)));
        Must((*ops)->FfnInput(ffn[l], BufferOf(x), BufferOf(h)));
        Must((*ops)->LinearAdd(*down[l], nullptr, BufferOf(h), BufferOf(x)));
      }
      Must((*ops)->Logits(**norm, 1e-5f, *head, absl::MakeSpan(&last, 1), BufferOf(x),
                          BufferOf(logits)));
      return (*ops)->Sample(BufferOf(logits), kVocabulary, requests, absl::MakeSpan(results));
    }));
    best.Stop();
  }
  state.counters["best ms"] = best.seconds() * 1e3;
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(state.iterations()) * rows,
                                                  benchmark::Counter::kIsRate);
}

#define LC_MATMUL_BENCHMARK(type)                         \
  BENCHMARK_CAPTURE(BM_Matmul, type, WeightType::k##type) \
      ->Args({16384, 1536, 1})                            \
      ->Args({1536, 768, 64})
LC_MATMUL_BENCHMARK(Q4_1);
LC_MATMUL_BENCHMARK(Q4_0);
LC_MATMUL_BENCHMARK(Q5_0);
LC_MATMUL_BENCHMARK(Q8_0);
LC_MATMUL_BENCHMARK(Q2_K);
LC_MATMUL_BENCHMARK(Q3_K);
LC_MATMUL_BENCHMARK(Q4_K);
LC_MATMUL_BENCHMARK(Q5_K);
LC_MATMUL_BENCHMARK(Q6_K);
LC_MATMUL_BENCHMARK(IQ4_NL);
LC_MATMUL_BENCHMARK(IQ4_XS);
LC_MATMUL_BENCHMARK(MXFP4);
LC_MATMUL_BENCHMARK(F16);
LC_MATMUL_BENCHMARK(F32);
BENCHMARK_CAPTURE(BM_Matmul, Q4_1, WeightType::kQ4_1)
    ->Args({49152, 576, 1})
    ->Args({1536, 576, 1})
    ->Args({1536, 576, 2})
    ->Args({1536, 576, 3})
    ->Args({1536, 576, 4})
    ->Args({1536, 576, 8})
    ->Args({1536, 576, 16})
    ->Args({576, 1536, 1});

BENCHMARK(BM_SmolLm2Step)
    ->ArgNames({"threads", "rows", "context", "kv"})
    ->Args({1, 1, 100, static_cast<int>(KvType::kF16)})
    ->Args({2, 1, 100, static_cast<int>(KvType::kF16)})
    ->Args({2, 1, 2000, static_cast<int>(KvType::kF16)})
    ->Args({1, 256, 0, static_cast<int>(KvType::kF16)})
    ->Args({2, 256, 0, static_cast<int>(KvType::kF16)})
    ->Args({2, 8, 100, static_cast<int>(KvType::kF16)})
    ->ArgsProduct({{1},
                   {1},
                   {1024, 8192},
                   {static_cast<int>(KvType::kF16), static_cast<int>(KvType::kBF16),
                    static_cast<int>(KvType::kQ8_0), static_cast<int>(KvType::kF32)}})
    ->MeasureProcessCPUTime()
    ->UseRealTime();

}  // namespace
}  // namespace layercake::kernels

BENCHMARK_MAIN();
