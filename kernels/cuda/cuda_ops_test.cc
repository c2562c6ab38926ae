// A small model's steps on the CUDA backend against the CPU backend, and the promises about bits.
#include "kernels/cuda/cuda_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <list>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/kernels_test_support.h"
#include "kernels/cuda_backend.h"

namespace layercake::kernels::cuda {
namespace {

constexpr uint64_t kSeed = 20240703;

struct ModelShape {
  int hidden = 256;
  int heads = 8;
  int kv_heads = 2;
  int head_dim = 64;
  int ffn = 512;
  int vocabulary = 517;
  int layers = 3;
  bool biases = false;      // qwen2
  bool head_norms = false;  // qwen3
  Rope::Pairing pairing = Rope::Pairing::kAdjacent;
  KvType kv_type = KvType::kF16;
};
constexpr int kMaxRowsOfStep = 320;
constexpr int kBlocks = 128;
constexpr int kBlockTokens = 16;

// The same random weights for either backend.
struct ModelBytes {
  WeightType type;
  ModelShape shape;
  uint64_t seed;
};

// A backend with a model on it, and the buffers of a stage.
class Backend {
 public:
  Backend(Device& device, Ops& ops, CollectingExecutor& executor, const ModelBytes& model)
      : device_(device), ops_(ops), executor_(executor), shape_(model.shape) {
    base::SeededRandom random(model.seed);
    const ModelShape& s = shape_;
    const int q = s.heads * s.head_dim;
    const int kv = s.kv_heads * s.head_dim;
    // Norm weights that bring queries and keys to about 1.5, whatever the random weights' size is:
    // with scores in the hundreds the softmax would flip on the last bit.
    const float norm = NormFor(random, model.type);
    table_ = Load(random, model.type, s.vocabulary, s.hidden);
    for (int i = 0; i < s.layers; ++i) {
      LayerOf layer;
      layer.attention.norm = Vec(random, s.hidden, norm);
      layer.attention.norm_eps = 1e-6f;
      layer.attention.wq = Load(random, model.type, q, s.hidden);
      layer.attention.wk = Load(random, model.type, kv, s.hidden);
      // One type in a layer is rarely all: here v and down are of another.
      layer.attention.wv = Load(random, WeightType::kQ6_K, kv, s.hidden);
      if (s.biases) {
        layer.attention.bq = Vec(random, q, 0.5f);
        layer.attention.bk = Vec(random, kv, 0.5f);
        layer.attention.bv = Vec(random, kv, 0.5f);
      }
      if (s.head_norms) {
        layer.attention.q_norm = Vec(random, s.head_dim, 1);
        layer.attention.k_norm = Vec(random, s.head_dim, 1);
      }
      layer.wo = Load(random, model.type, s.hidden, q);
      layer.ffn = {Vec(random, s.hidden, norm), 1e-6f, Load(random, model.type, s.ffn, s.hidden),
                   Load(random, model.type, s.ffn, s.hidden)};
      layer.down = Load(random, WeightType::kQ6_K, s.hidden, s.ffn);
      layers_.push_back(layer);
    }
    norm_ = Vec(random, s.hidden, norm);
    rope_.pairing = s.pairing;
    rope_.rope_dims = s.head_dim;
    for (int j = 0; j < s.head_dim / 2; ++j) {
      rope_.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * j / s.head_dim)));
    }
    cache_ = Must(
        ops_.CreateKvCache({s.layers, kBlocks, kBlockTokens, s.kv_heads, s.head_dim, s.kv_type}));
    x_ = Allocate(kMaxRowsOfStep, s.hidden);
    q_ = Allocate(kMaxRowsOfStep, q);
    attention_ = Allocate(kMaxRowsOfStep, q);
    ffn_ = Allocate(kMaxRowsOfStep, s.ffn);
    logits_ = Allocate(64, s.vocabulary);
    const absl::Status prepared = ops_.Prepare({.max_rows = kMaxRowsOfStep,
                                                .max_sequences = 32,
                                                .context_tokens = 2048,
                                                .logit_rows = 64,
                                                .vocabulary = s.vocabulary,
                                                .hidden = s.hidden,
                                                .q_width = q,
                                                .kv_width = kv,
                                                .ffn = s.ffn});
    EXPECT_TRUE(prepared.ok()) << prepared;
  }

  struct Output {
    std::vector<float> logits;  // (selected, vocabulary)
    std::vector<uint8_t> non_finite;
    std::vector<SampleResult> sampled;
  };

  // A whole step with the logits of the rows `selected`, greedily sampled.
  Output Step(const StepRows& rows, const std::vector<int32_t>& tokens,
              const std::vector<int32_t>& selected) {
    Output output;
    output.non_finite.resize(tokens.size(), 7);
    output.sampled.resize(selected.size());
    output.logits = Poisoned(static_cast<int64_t>(selected.size()) * shape_.vocabulary);
    const absl::Status status = RunOn(device_, executor_, [&]() -> absl::Status {
      LC_RETURN_IF_ERROR(ops_.BeginStep(rows));
      LC_RETURN_IF_ERROR(ops_.Embed(*table_, tokens, x_));
      for (int i = 0; i < shape_.layers; ++i) {
        const LayerOf& layer = layers_[static_cast<size_t>(i)];
        LC_RETURN_IF_ERROR(ops_.AttentionInput(layer.attention, rope_, x_, *cache_, i, q_));
        LC_RETURN_IF_ERROR(ops_.Attention(q_, *cache_, i, shape_.heads, attention_));
        LC_RETURN_IF_ERROR(ops_.LinearAdd(*layer.wo, nullptr, attention_, x_));
        LC_RETURN_IF_ERROR(ops_.FfnInput(layer.ffn, x_, ffn_));
        LC_RETURN_IF_ERROR(ops_.LinearAdd(*layer.down, nullptr, ffn_, x_));
      }
      LC_RETURN_IF_ERROR(ops_.FindNonFinite(x_, shape_.hidden, absl::MakeSpan(output.non_finite)));
      LC_RETURN_IF_ERROR(ops_.Logits(*norm_, 1e-6f, *table_, selected, x_, logits_));
      std::vector<SampleRequest> requests(selected.size());
      for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].logits_row = static_cast<int32_t>(i);
      }
      LC_RETURN_IF_ERROR(
          ops_.Sample(logits_, shape_.vocabulary, requests, absl::MakeSpan(output.sampled)));
      LC_RETURN_IF_ERROR(ops_.Finish());
      return device_.CopyOut(logits_, reinterpret_cast<std::byte*>(output.logits.data()),
                             output.logits.size() * sizeof(float));
    });
    EXPECT_TRUE(status.ok()) << status;
    return output;
  }

 private:
  struct LayerOf {
    AttentionWeights attention;
    const Matrix* wo = nullptr;
    FfnWeights ffn;
    const Matrix* down = nullptr;
  };

  float NormFor(base::Random& random, WeightType type) const {
    const auto values =
        Dequantized(type, RandomWeights(random, type, 16, shape_.hidden), 16, shape_.hidden);
    double sum = 0;
    for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
    // A vector of Uniform(-m, m) has the norm m / sqrt(3) per value.
    const double output = std::sqrt(sum / 16) / std::sqrt(3.0);
    return static_cast<float>(1.5 / output);
  }
  template <typename T>
  static T Must(absl::StatusOr<T> value) {
    EXPECT_TRUE(value.ok()) << value.status();
    return *std::move(value);
  }
  const Matrix* Load(base::Random& random, WeightType type, int64_t n, int64_t k) {
    bytes_.push_back(RandomWeights(random, type, n, k));
    const auto& bytes = bytes_.back();
    matrices_.push_back(Must(ops_.LoadMatrix(
        type, n, k, {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()})));
    return matrices_.back().get();
  }
  const Vector* Vec(base::Random& random, int64_t size, float magnitude) {
    vectors_.push_back(Must(ops_.LoadVector(RandomFloats(random, size, magnitude))));
    return vectors_.back().get();
  }
  Buffer Allocate(int64_t rows, int64_t width) {
    memory_.push_back(Must(device_.Allocate(static_cast<size_t>(rows * width) * sizeof(float))));
    return memory_.back()->buffer();
  }

  Device& device_;
  Ops& ops_;
  CollectingExecutor& executor_;
  const ModelShape shape_;
  std::list<std::vector<uint8_t>> bytes_;  // the CPU uses them in place
  std::vector<std::unique_ptr<Matrix>> matrices_;
  std::vector<std::unique_ptr<Vector>> vectors_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::unique_ptr<KvCache> cache_;
  const Matrix* table_ = nullptr;
  const Vector* norm_ = nullptr;
  std::vector<LayerOf> layers_;
  Rope rope_;
  Buffer x_, q_, attention_, ffn_, logits_;
};

// Rows of sequences: `counts[i]` rows of sequence i that end at position ends[i].
struct Rows {
  std::vector<std::vector<int32_t>> tables;
  std::vector<absl::Span<const int32_t>> views;
  std::vector<int32_t> positions, index, tokens, last;

  explicit Rows(const std::vector<std::vector<int32_t>>& all) : tables(all) {
    for (const auto& table : tables) views.push_back(table);
  }
  void Add(int sequence, int first, int count, int vocabulary) {
    for (int p = first; p < first + count; ++p) {
      positions.push_back(p);
      index.push_back(sequence);
      // Tokens depend on sequence and position only.
      tokens.push_back(
          static_cast<int32_t>((static_cast<int64_t>(sequence) * 7919 + p * 104729) % vocabulary));
    }
    last.push_back(static_cast<int32_t>(positions.size()) - 1);
  }
  StepRows view() const {
    return {static_cast<int>(positions.size()), positions, positions, index, views};
  }
};

double RelativeError(const std::vector<float>& out, const std::vector<float>& reference) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double d = static_cast<double>(out[i]) - static_cast<double>(reference[i]);
    difference += d * d;
    norm += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
  }
  return std::sqrt(difference / norm);
}

class CudaOpsTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto devices = ListCudaDevices();
    if (!devices.ok()) GTEST_SKIP() << "no CUDA device: " << devices.status();
    auto device = CreateCudaDevice(devices->front(), executor_);
    ASSERT_TRUE(device.ok()) << device.status();
    cuda_device_ = *std::move(device);
    cpu_device_ = *CreateCpuDevice({.threads = 4}, executor_);
  }

  // Three blocks per 40 tokens of each of eight sequences, shuffled.
  static std::vector<std::vector<int32_t>> Tables() {
    base::SeededRandom random(kSeed);
    std::vector<int32_t> ids(kBlocks);
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.Below(i)]);
    std::vector<std::vector<int32_t>> tables;
    for (size_t s = 0; s < 8; ++s) {
      tables.emplace_back(ids.begin() + static_cast<int64_t>(s) * 16,
                          ids.begin() + static_cast<int64_t>(s + 1) * 16);
    }
    return tables;
  }

  CollectingExecutor executor_;
  std::unique_ptr<Device> cpu_device_;
  std::unique_ptr<Device> cuda_device_;
};

// A prompt, another with a decode beside it, then decodes of growing micro-batches. The tolerance
// is what three layers make of f16 activations in prompts (1e-2), or of bf16 ones, which BF16 and
// MXFP4 weights meet (3e-2).
TEST_F(CudaOpsTest, ComputeWhatTheCpuComputes) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (const WeightType type : kAllTypes) {
    for (const int variant : {0, 1, 2}) {
      SCOPED_TRACE(absl::StrCat(WeightTypeName(type), " variant ", variant));
      ModelShape shape;
      shape.biases = variant == 1;
      shape.head_norms = variant == 2;
      if (variant > 0) shape.pairing = Rope::Pairing::kHalves;
      if (variant == 2) shape.kv_type = KvType::kF32;
      const double tolerance =
          type == WeightType::kBF16 || type == WeightType::kMXFP4 ? 3e-2 : 1e-2;
      const ModelBytes model = {type, shape, kSeed};
      auto cpu_ops = *CreateCpuOps(*cpu_device_);
      auto cuda_ops = *CreateCudaOps(*cuda_device_);
      Backend cpu(*cpu_device_, *cpu_ops, executor_, model);
      Backend cuda(*cuda_device_, *cuda_ops, executor_, model);
      const auto compare = [&](const Rows& rows) {
        const auto expected = cpu.Step(rows.view(), rows.tokens, rows.last);
        const auto got = cuda.Step(rows.view(), rows.tokens, rows.last);
        EXPECT_LT(RelativeError(got.logits, expected.logits), tolerance) << rows.positions.size();
        EXPECT_EQ(got.non_finite, expected.non_finite);
      };
      Rows prompt(Tables());
      prompt.Add(0, 0, 70, shape.vocabulary);
      compare(prompt);
      Rows mixed(Tables());
      mixed.Add(0, 70, 1, shape.vocabulary);
      mixed.Add(1, 0, 33, shape.vocabulary);
      mixed.Add(2, 0, 5, shape.vocabulary);
      compare(mixed);
      for (int step = 0; step < 4; ++step) {
        Rows decode(Tables());
        decode.Add(0, 71 + step, 1, shape.vocabulary);
        decode.Add(1, 33 + step, 1, shape.vocabulary);
        decode.Add(2, 5 + step, 1, shape.vocabulary);
        compare(decode);
      }
      EXPECT_GT(static_cast<const CudaOps&>(*cuda_ops).graphs().replays(), 0u);
    }
  }
}

// Every type of cache, which either backend rounds alike. But what they round differs by what the
// products make of it, and where that crosses from one step of a coarse type to the next, the
// rounded values differ by a whole step. So logits may be as far apart as the CPU's own with such a
// cache are from those with an f32 cache, beside the tolerance of the products. (On the CPU alone,
// changing all that the layers read by up to 1e-3 moves these logits by 0.009 to 0.020 with q8_0,
// where its own error is 0.019 to 0.033, and by 0.002 to 0.005 with f32.) Prompts of both kernels,
// and decodes.
TEST_F(CudaOpsTest, ComputeWhatTheCpuComputesWithEveryTypeOfCache) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  for (const KvType kv_type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    for (const int head_dim : {64, 80}) {
      SCOPED_TRACE(absl::StrCat(KvTypeName(kv_type), " heads of ", head_dim));
      ModelShape shape;
      shape.head_dim = head_dim;
      shape.kv_type = kv_type;
      const ModelBytes model = {WeightType::kQ8_0, shape, kSeed};
      shape.kv_type = KvType::kF32;
      const ModelBytes with_f32 = {WeightType::kQ8_0, shape, kSeed};
      auto f32_ops = *CreateCpuOps(*cpu_device_);
      auto cpu_ops = *CreateCpuOps(*cpu_device_);
      auto cuda_ops = *CreateCudaOps(*cuda_device_);
      Backend f32(*cpu_device_, *f32_ops, executor_, with_f32);
      Backend cpu(*cpu_device_, *cpu_ops, executor_, model);
      Backend cuda(*cuda_device_, *cuda_ops, executor_, model);
      const auto compare = [&](int first, int count) {
        Rows rows(Tables());
        rows.Add(0, first, count, shape.vocabulary);
        const auto exact = f32.Step(rows.view(), rows.tokens, rows.last);
        const auto expected = cpu.Step(rows.view(), rows.tokens, rows.last);
        const auto got = cuda.Step(rows.view(), rows.tokens, rows.last);
        const double own = RelativeError(expected.logits, exact.logits);
        EXPECT_LT(RelativeError(got.logits, expected.logits), 1e-2 + own) << first << " " << count;
        EXPECT_LT(own, 0.05) << "the type's own error bounds nothing";
      };
      compare(0, 70);
      compare(70, 5);
      for (int step = 0; step < 3; ++step) compare(75 + step, 1);
    }
  }
}

TEST_F(CudaOpsTest, GiveADecodedRowTheSameBitsInEveryMicroBatch) {
  for (const WeightType type : {WeightType::kQ4_K, WeightType::kQ8_0, WeightType::kBF16}) {
    SCOPED_TRACE(WeightTypeName(type));
    const ModelBytes model = {type, {}, kSeed};
    auto ops = *CreateCudaOps(*cuda_device_);
    Backend cuda(*cuda_device_, *ops, executor_, model);
    const int vocabulary = model.shape.vocabulary;
    for (int s = 0; s < 8; ++s) {
      Rows prompt(Tables());
      prompt.Add(s, 0, 10 + s, vocabulary);
      cuda.Step(prompt.view(), prompt.tokens, prompt.last);
    }
    Rows all(Tables());
    for (int s = 0; s < 8; ++s) all.Add(s, 10 + s, 1 + s % 2, vocabulary);
    const auto together = cuda.Step(all.view(), all.tokens, all.last);
    for (int repeat = 0; repeat < 3; ++repeat) {  // direct, captured, replayed
      EXPECT_EQ(cuda.Step(all.view(), all.tokens, all.last).logits, together.logits);
    }
    for (int s = 0; s < 8; ++s) {
      Rows one(Tables());
      one.Add(s, 10 + s, 1 + s % 2, vocabulary);
      const auto alone = cuda.Step(one.view(), one.tokens, one.last);
      EXPECT_TRUE(std::equal(alone.logits.begin(), alone.logits.end(),
                             together.logits.begin() + int64_t{s} * vocabulary))
          << "sequence " << s;
      EXPECT_EQ(alone.sampled[0].token, together.sampled[static_cast<size_t>(s)].token);
    }
  }
}

// --deterministic: one row alone and among others, up to more than any kernel takes at once.
TEST_F(CudaOpsTest, GiveARowTheSameBitsAmongAnyNumberWhenDeterministic) {
  for (const WeightType type :
       {WeightType::kQ4_K, WeightType::kQ8_0, WeightType::kBF16, WeightType::kF32}) {
    for (const KvType kv_type : {KvType::kF16, KvType::kQ8_0}) {
      SCOPED_TRACE(absl::StrCat(WeightTypeName(type), " with a cache of ", KvTypeName(kv_type)));
      ModelShape shape;
      shape.kv_type = kv_type;
      const ModelBytes model = {type, shape, kSeed};
      auto ops = *CreateCudaOps(*cuda_device_, {.deterministic = true});
      Backend cuda(*cuda_device_, *ops, executor_, model);
      const auto last_of = [&](const Backend::Output& output) {
        return std::vector<float>(output.logits.begin(), output.logits.begin() + shape.vocabulary);
      };
      // Sequence 0, position by position, is what everything else must give.
      std::vector<float> alone;
      for (int p = 0; p <= 40; ++p) {
        Rows row(Tables());
        row.Add(0, p, 1, shape.vocabulary);
        alone = last_of(cuda.Step(row.view(), row.tokens, row.last));
      }
      for (const int rows : {16, 64, 300}) {
        Rows among(Tables());
        among.Add(0, 40, 1, shape.vocabulary);
        const int other = std::min(rows - 1, 200);
        among.Add(1, 0, other, shape.vocabulary);
        if (rows - 1 > other) among.Add(2, 0, rows - 1 - other, shape.vocabulary);
        EXPECT_EQ(last_of(cuda.Step(among.view(), among.tokens, among.last)), alone) << rows;
      }
      // Its prompt in chunks of other sizes.
      for (const int chunk : {41, 17, 5}) {
        std::vector<float> last;
        for (int p = 0; p <= 40; p += chunk) {
          Rows part(Tables());
          part.Add(0, p, std::min(chunk, 41 - p), shape.vocabulary);
          last = last_of(cuda.Step(part.view(), part.tokens, part.last));
        }
        EXPECT_EQ(last, alone) << "chunks of " << chunk;
      }
    }
  }
}

TEST_F(CudaOpsTest, SayWhatDoesNotFitTheDevice) {
  auto ops = *CreateCudaOps(*cuda_device_);
  const absl::Status status = ops->CreateKvCache({64, 1 << 22, 32, 8, 128, KvType::kF16}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), testing::HasSubstr("are free"));
  EXPECT_EQ(cuda_device_->Allocate(size_t{1} << 50).status().code(),
            absl::StatusCode::kResourceExhausted);
  // An ordinary refusal leaves the device usable.
  EXPECT_TRUE(cuda_device_->Allocate(1 << 20).ok());
}

TEST_F(CudaOpsTest, CopyWhatWasCopied) {
  base::SeededRandom random(kSeed);
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{256} << 10, (size_t{3} << 20) + 5}) {
    std::vector<std::byte> from(bytes);
    for (std::byte& value : from) value = static_cast<std::byte>(random.Below(256));
    std::vector<std::byte> to(bytes);
    const auto memory = *cuda_device_->Allocate(bytes);
    const absl::Status status = RunOn(*cuda_device_, executor_, [&]() -> absl::Status {
      LC_RETURN_IF_ERROR(cuda_device_->CopyIn(from.data(), memory->buffer(), bytes));
      return cuda_device_->CopyOut(memory->buffer(), to.data(), bytes);
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(from, to);
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
