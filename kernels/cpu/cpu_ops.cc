#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops_check.h"

namespace layercake::kernels {
namespace {

// Chunks per thread of a product: enough that a thread that starts late evens out.
constexpr int64_t kChunksPerThread = 4;
// Rows of weights per chunk are a multiple of this, the widest register tile.
constexpr int64_t kRowMultiple = 8;
// Products below this many multiplications run in the calling thread: waking another costs more.
constexpr int64_t kSerialProducts = 1 << 16;
// A block of activation rows that stays in a core's second-level cache beside the weights.
constexpr int64_t kActivationBytes = 192 << 10;
constexpr int64_t kRowsPerChunk = 4;

float* Floats(Buffer buffer) { return reinterpret_cast<float*>(buffer.address); }

const CpuMatrix& AsCpu(const Matrix& matrix) { return static_cast<const CpuMatrix&>(matrix); }
const CpuVector* AsCpu(const Vector* vector) { return static_cast<const CpuVector*>(vector); }

absl::Status CheckHost(absl::string_view what, const Buffer& buffer, int64_t rows, int64_t width) {
  return CheckBuffer(what, buffer, MemorySpace::kHost, rows, width);
}

bool WantsInts(const Matrix& matrix) { return !IsFloatType(AsCpu(matrix).type()); }

}  // namespace

CpuOps::CpuOps(ThreadPool& pool, const CpuKernels& kernels)
    : pool_(pool),
      kernels_(kernels),
      attention_(kernels, pool),
      samplers_(static_cast<size_t>(pool.threads()), Sampler(kernels)) {}

absl::StatusOr<std::unique_ptr<Matrix>> CpuOps::LoadMatrix(WeightType type, int64_t n, int64_t k,
                                                           absl::Span<const std::byte> bytes) {
  const BlockShape block = BlockShapeOf(type);
  const std::string shape =
      absl::StrCat("a ", WeightTypeName(type), " matrix of (", n, ", ", k, ")");
  if (block.elements == 0) {
    return absl::UnimplementedError(
        absl::StrCat("weight type ", static_cast<int>(type), " is not supported"));
  }
  if (n < 1 || k < 1 || k % block.elements != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        shape, ": both numbers must be positive and rows a multiple of ", block.elements));
  }
  const std::optional<uint64_t> row_bytes = base::CheckedMul(
      static_cast<uint64_t>(k / block.elements), static_cast<uint64_t>(block.bytes));
  const std::optional<uint64_t> needed =
      row_bytes ? base::CheckedMul(*row_bytes, static_cast<uint64_t>(n)) : std::nullopt;
  if (!needed || *needed != bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(shape, " needs ",
                                                   needed ? absl::StrCat(*needed) : "2^64 or more",
                                                   " bytes, got ", bytes.size()));
  }
  return std::make_unique<CpuMatrix>(type, n, k, bytes.data());
}

absl::StatusOr<std::unique_ptr<Vector>> CpuOps::LoadVector(absl::Span<const float> values) {
  if (values.empty()) return absl::InvalidArgumentError("a weight vector of no values");
  return std::make_unique<CpuVector>(values);
}

absl::StatusOr<std::unique_ptr<KvCache>> CpuOps::CreateKvCache(const KvCacheSpec& spec) {
  return CpuKvCache::Create(spec);
}

void CpuOps::ForRows(int64_t rows, absl::FunctionRef<void(int64_t row)> body) {
  const int64_t chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  pool_.Run(chunks, [&](int64_t chunk, int) {
    const int64_t end = std::min(rows, (chunk + 1) * kRowsPerChunk);
    for (int64_t row = chunk * kRowsPerChunk; row < end; ++row) body(row);
  });
}

absl::Status CpuOps::BeginStep(const StepRows& rows) {
  if (rows.rows < 1) return absl::InvalidArgumentError("a step without rows");
  LC_RETURN_IF_ERROR(CheckStepRows(rows));
  rows_ = rows;
  rope_table_.BeginStep();
  return absl::OkStatus();
}

absl::Status CpuOps::Embed(const Matrix& table, absl::Span<const int32_t> tokens, Buffer x) {
  const CpuMatrix& matrix = AsCpu(table);
  const auto rows = static_cast<int64_t>(tokens.size());
  LC_RETURN_IF_ERROR(CheckHost("x", x, rows, matrix.k()));
  LC_RETURN_IF_ERROR(CheckTokens(tokens, matrix.n()));
  ForRows(rows, [&](int64_t row) {
    const auto token = static_cast<size_t>(tokens[static_cast<size_t>(row)]);
    DequantizeRow(matrix.type(), matrix.bytes() + token * matrix.row_bytes(), matrix.k(),
                  Floats(x) + row * matrix.k());
  });
  return absl::OkStatus();
}

void CpuOps::PrepareActivations(const float* x, const int32_t* index, int64_t rows, int64_t k,
                                Norm norm, bool want_ints) {
  const auto values = static_cast<size_t>(rows * k);
  const int64_t groups = PaddedGroups(k);
  float* normed = normed_.Require(values);
  // A row of scales, one of sums, two of half sums.
  float* scales = want_ints ? groups_.Require(static_cast<size_t>(rows * groups * 4)) : nullptr;
  float* sums = want_ints ? scales + rows * groups : nullptr;
  float* half_sums = want_ints ? sums + rows * groups : nullptr;
  auto* ints = want_ints ? reinterpret_cast<int16_t*>(ints_.Require((values + 1) / 2)) : nullptr;
  const bool copy = norm.weight != nullptr || index != nullptr;
  ForRows(rows, [&](int64_t row) {
    const float* from = x + (index != nullptr ? index[row] : row) * k;
    if (norm.weight != nullptr) {
      kernels_.rms_norm(from, norm.weight->values(), norm.eps, k, normed + row * k);
    } else if (copy) {
      std::memcpy(normed + row * k, from, static_cast<size_t>(k) * sizeof(float));
    }
    if (want_ints) {
      kernels_.quantize_row(copy ? normed + row * k : from, k, ints + row * k,
                            scales + row * groups, sums + row * groups,
                            half_sums + 2 * row * groups);
    }
  });
  activations_ = {copy ? normed : x, ints, scales, sums, half_sums};
}

void CpuOps::MultiplyChunk(const Product& product, int64_t n_begin, int64_t n_end,
                           int64_t row_begin, int64_t row_end, int thread) {
  const CpuMatrix& matrix = *product.matrix;
  const int64_t k = matrix.k();
  const int64_t groups = PaddedGroups(k);
  Activations a = activations_;
  a.values += row_begin * k;
  if (a.ints != nullptr) {
    a.ints += row_begin * k;
    a.scales += row_begin * groups;
    a.sums += row_begin * groups;
    a.half_sums += 2 * row_begin * groups;
  }
  auto* scratch = reinterpret_cast<std::byte*>(scratch_.Require(0)) +
                  static_cast<size_t>(thread) * MatmulScratchBytes(k);
  float* out = product.out + row_begin * matrix.n();
  kernels_.matmul({matrix.type(), matrix.bytes(), matrix.row_bytes(), n_begin, n_end, k, &a,
                   row_end - row_begin, out, matrix.n(), scratch});
  if (product.bias == nullptr) return;
  for (int64_t row = 0; row < row_end - row_begin; ++row) {
    kernels_.add(out + row * matrix.n() + n_begin, product.bias->values() + n_begin,
                 n_end - n_begin);
  }
}

void CpuOps::Multiply(absl::Span<const Product> products, int64_t rows) {
  const int64_t k = products[0].matrix->k();
  int64_t outputs = 0;
  for (const Product& product : products) outputs += product.matrix->n();
  scratch_.Require(static_cast<size_t>(pool_.threads()) * MatmulScratchBytes(k) / sizeof(float));

  const int64_t row_block = std::max<int64_t>(16, kActivationBytes / (2 * k) / 8 * 8);
  const int64_t row_blocks = (rows + row_block - 1) / row_block;
  const bool serial = pool_.threads() == 1 || rows * outputs * k < kSerialProducts;
  const int64_t wanted = serial ? 1 : kChunksPerThread * pool_.threads();
  int64_t chunk_rows = (outputs + wanted - 1) / wanted;
  chunk_rows = (chunk_rows + kRowMultiple - 1) / kRowMultiple * kRowMultiple;

  struct Chunk {
    const Product* product;
    int64_t n_begin;
    int64_t n_end;
  };
  std::vector<Chunk> chunks;
  for (const Product& product : products) {
    const int64_t n = product.matrix->n();
    for (int64_t begin = 0; begin < n; begin += chunk_rows) {
      chunks.push_back({&product, begin, std::min(n, begin + chunk_rows)});
    }
  }
  const auto run = [&](int64_t i, int thread) {
    const Chunk& chunk = chunks[static_cast<size_t>(i) % chunks.size()];
    const int64_t row_begin = i / static_cast<int64_t>(chunks.size()) * row_block;
    MultiplyChunk(*chunk.product, chunk.n_begin, chunk.n_end, row_begin,
                  std::min(rows, row_begin + row_block), thread);
  };
  const int64_t count = static_cast<int64_t>(chunks.size()) * row_blocks;
  if (serial) {
    for (int64_t i = 0; i < count; ++i) run(i, 0);
  } else {
    pool_.Run(count, run);
  }
}

absl::Status CpuOps::AttentionInput(const AttentionWeights& weights, const Rope& rope, Buffer x,
                                    KvCache& cache, int layer, Buffer q) {
  const auto& cpu_cache = static_cast<const CpuKvCache&>(cache);
  LC_RETURN_IF_ERROR(CheckAttentionInput(weights, rope, cache.spec(), layer));
  const int64_t rows = rows_.rows;
  const int64_t kv_width = weights.wk->n();
  LC_RETURN_IF_ERROR(CheckHost("x", x, rows, weights.norm->size()));
  LC_RETURN_IF_ERROR(CheckHost("q", q, rows, weights.wq->n()));

  PrepareActivations(Floats(x), nullptr, rows, weights.norm->size(),
                     {AsCpu(weights.norm), weights.norm_eps},
                     WantsInts(*weights.wq) || WantsInts(*weights.wk) || WantsInts(*weights.wv));
  float* k = products_.Require(static_cast<size_t>(2 * rows * kv_width));
  float* v = k + rows * kv_width;
  Multiply({{&AsCpu(*weights.wq), AsCpu(weights.bq), Floats(q)},
            {&AsCpu(*weights.wk), AsCpu(weights.bk), k},
            {&AsCpu(*weights.wv), AsCpu(weights.bv), v}},
           rows);
  rope_table_.Prepare(rope, rows_.rope_position);
  ForRows(rows, [&](int64_t row) {
    StoreHeads(weights, rope, cpu_cache, layer, static_cast<int>(row),
               Floats(q) + row * weights.wq->n(), k + row * kv_width, v + row * kv_width);
  });
  return absl::OkStatus();
}

void CpuOps::StoreHeads(const AttentionWeights& weights, const Rope& rope, const CpuKvCache& cache,
                        int layer, int row, float* q, float* k, const float* v) const {
  const KvCacheSpec& spec = cache.spec();
  const int head_dim = spec.head_dim;
  const auto turn = [&](const Vector* norm, float* head) {
    if (norm != nullptr) {
      kernels_.rms_norm(head, AsCpu(norm)->values(), weights.norm_eps, head_dim, head);
    }
    rope_table_.Rotate(rope.pairing, row, head);
  };
  const int heads = static_cast<int>(weights.wq->n() / head_dim);
  for (int head = 0; head < heads; ++head) turn(weights.q_norm, q + int64_t{head} * head_dim);

  const auto r = static_cast<size_t>(row);
  const int32_t position = rows_.kv_position[r];
  const int32_t block = rows_.block_tables[static_cast<size_t>(rows_.table_index[r])]
                                          [static_cast<size_t>(position / spec.block_tokens)];
  const int token = position % spec.block_tokens;
  const auto store = [&](const float* from, std::byte* to) {
    switch (spec.type) {
      case KvType::kF16:
        return kernels_.store_half(from, head_dim, reinterpret_cast<uint16_t*>(to));
      case KvType::kBF16:
        return kernels_.store_bf16(from, head_dim, reinterpret_cast<uint16_t*>(to));
      case KvType::kQ8_0:
        return kernels_.store_q8(from, head_dim, reinterpret_cast<uint8_t*>(to));
      case KvType::kF32:
        std::memcpy(to, from, static_cast<size_t>(head_dim) * sizeof(float));
    }
  };
  for (int head = 0; head < spec.kv_heads; ++head) {
    float* key = k + int64_t{head} * head_dim;
    turn(weights.k_norm, key);
    store(key, cache.Keys(layer, block, head, token));
    store(v + int64_t{head} * head_dim, cache.Values(layer, block, head, token));
  }
}

absl::Status CpuOps::Attention(Buffer q, const KvCache& cache, int layer, int heads, Buffer out) {
  const auto& cpu_cache = static_cast<const CpuKvCache&>(cache);
  const KvCacheSpec& spec = cache.spec();
  LC_RETURN_IF_ERROR(CheckAttention(spec, layer, heads));
  LC_RETURN_IF_ERROR(CheckHost("q", q, rows_.rows, int64_t{heads} * spec.head_dim));
  LC_RETURN_IF_ERROR(CheckHost("out", out, rows_.rows, int64_t{heads} * spec.head_dim));
  attention_.Run(rows_, Floats(q), cpu_cache, layer, heads, Floats(out));
  return absl::OkStatus();
}

absl::Status CpuOps::LinearAdd(const Matrix& w, const Vector* bias, Buffer in, Buffer x) {
  const int64_t rows = rows_.rows;
  LC_RETURN_IF_ERROR(CheckHost("in", in, rows, w.k()));
  LC_RETURN_IF_ERROR(CheckHost("x", x, rows, w.n()));
  LC_RETURN_IF_ERROR(CheckVector("the bias", bias, w.n()));
  PrepareActivations(Floats(in), nullptr, rows, w.k(), {}, WantsInts(w));
  float* y = products_.Require(static_cast<size_t>(rows * w.n()));
  Multiply({{&AsCpu(w), AsCpu(bias), y}}, rows);
  ForRows(rows,
          [&](int64_t row) { kernels_.add(Floats(x) + row * w.n(), y + row * w.n(), w.n()); });
  return absl::OkStatus();
}

absl::Status CpuOps::FfnInput(const FfnWeights& weights, Buffer x, Buffer out) {
  LC_RETURN_IF_ERROR(CheckFfn(weights));
  const int64_t rows = rows_.rows;
  const int64_t hidden = weights.norm->size();
  const int64_t ffn = weights.gate->n();
  LC_RETURN_IF_ERROR(CheckHost("x", x, rows, hidden));
  LC_RETURN_IF_ERROR(CheckHost("out", out, rows, ffn));
  PrepareActivations(Floats(x), nullptr, rows, hidden, {AsCpu(weights.norm), weights.norm_eps},
                     WantsInts(*weights.gate) || WantsInts(*weights.up));
  float* up = products_.Require(static_cast<size_t>(rows * ffn));
  Multiply({{&AsCpu(*weights.gate), AsCpu(weights.gate_bias), Floats(out)},
            {&AsCpu(*weights.up), AsCpu(weights.up_bias), up}},
           rows);
  ForRows(rows,
          [&](int64_t row) { kernels_.silu_mul(Floats(out) + row * ffn, up + row * ffn, ffn); });
  return absl::OkStatus();
}

absl::Status CpuOps::FindNonFinite(Buffer x, int width, absl::Span<uint8_t> non_finite) {
  const auto rows = static_cast<int64_t>(non_finite.size());
  LC_RETURN_IF_ERROR(CheckHost("x", x, rows, width));
  for (int64_t row = 0; row < rows; ++row) {
    non_finite[static_cast<size_t>(row)] =
        kernels_.has_non_finite(Floats(x) + row * width, width) ? 1 : 0;
  }
  return absl::OkStatus();
}

absl::Status CpuOps::Logits(const Vector& norm, float norm_eps, const Matrix& w,
                            absl::Span<const int32_t> selected, Buffer x, Buffer logits) {
  const auto rows = static_cast<int64_t>(selected.size());
  if (rows == 0) return absl::OkStatus();
  LC_RETURN_IF_ERROR(CheckVector("the output norm", &norm, w.k()));
  LC_RETURN_IF_ERROR(CheckHost("logits", logits, rows, w.n()));
  LC_ASSIGN_OR_RETURN(const int32_t largest, LargestSelected(selected));
  LC_RETURN_IF_ERROR(CheckHost("x", x, int64_t{largest} + 1, w.k()));
  PrepareActivations(Floats(x), selected.data(), rows, w.k(), {AsCpu(&norm), norm_eps},
                     WantsInts(w));
  Multiply({{&AsCpu(w), nullptr, Floats(logits)}}, rows);
  return absl::OkStatus();
}

absl::Status CpuOps::Sample(Buffer logits, int64_t vocabulary,
                            absl::Span<const SampleRequest> requests,
                            absl::Span<SampleResult> results) {
  LC_RETURN_IF_ERROR(
      CheckSampleRequests(logits, MemorySpace::kHost, vocabulary, requests, results.size()));
  pool_.Run(static_cast<int64_t>(requests.size()), [&](int64_t i, int thread) {
    const SampleRequest& request = requests[static_cast<size_t>(i)];
    results[static_cast<size_t>(i)] = samplers_[static_cast<size_t>(thread)].Sample(
        {Floats(logits) + request.logits_row * vocabulary, static_cast<size_t>(vocabulary)},
        request);
  });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Ops>> CreateCpuOps(Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  if (cpu == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("CPU operations need a CPU device, got ", device.name()));
  }
  const CpuKernels* vectorised = Avx2Kernels();
  return std::make_unique<CpuOps>(cpu->pool(),
                                  vectorised != nullptr ? *vectorised : ScalarKernels());
}

}  // namespace layercake::kernels
