// The arithmetic of one stage, operation by operation, for one device.
//
// Eight operations make a decoder layer and what stands before and after the layers. They are
// coarse so that a backend may fuse what lies inside one (norm and product, rope and cache write,
// SwiGLU, residual). The residual stream, norms, scores, softmax and logits are float32.
//
// Rows: the tokens of one micro-batch. Every result row depends on its own inputs only, never on
// how many rows run beside it: on the CPU bit for bit (docs/architecture.md, invariant 1).
//
// Thread rule: LoadMatrix, LoadVector and CreateKvCache from the step thread before the first
// step; everything else inside work submitted to the Device that these ops were created for.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/sampling.h"
#include "kernels/weight_type.h"

namespace layercake::kernels {

// A weight matrix as the backend keeps it. y = W x maps `k` inputs to `n` outputs.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }

 protected:
  Matrix(int64_t n, int64_t k) : n_(n), k_(k) {}

 private:
  int64_t n_, k_;
};

// A float32 vector (norm weight, bias) as the backend keeps it.
class Vector {
 public:
  virtual ~Vector() = default;
  int64_t size() const { return size_; }

 protected:
  explicit Vector(int64_t size) : size_(size) {}

 private:
  int64_t size_;
};

enum class KvType : uint8_t {
  kF32,
  kF16,
  kBF16,
  // Blocks of 32 values along a head, as the weight type Q8_0 has them: a f16 scale and 32 int8. A
  // head that is no multiple of 32 wide ends in a block padded with zeros.
  kQ8_0,
};
// As --kv-type has it: "q8_0".
absl::string_view KvTypeName(KvType type);
// Bytes of the head_dim values of one position of one head.
size_t KvHeadBytes(KvType type, int head_dim);

struct KvCacheSpec {
  int layers = 0;        // layers of this stage
  int blocks = 0;        // ids [0, blocks) are valid in block tables
  int block_tokens = 0;  // tokens per block
  int kv_heads = 0;
  int head_dim = 0;
  KvType type = KvType::kF16;
  int host_blocks = 0;  // of host memory, ids [0, host_blocks): where blocks are saved
};
// Bytes that a cache of this spec takes of its device (keys and values of all layers).
size_t KvCacheBytes(const KvCacheSpec& spec);
// Likewise of the host, for the blocks that are saved.
size_t HostKvBytes(const KvCacheSpec& spec);

// Paged keys and values of one stage, and host memory for blocks that give way to others.
class KvCache {
 public:
  virtual ~KvCache() = default;
  const KvCacheSpec& spec() const { return spec_; }

  // Copies a block of all layers to host memory, or back. Between steps (after Finish, before
  // BeginStep), in the order of the device's work and not waited for. Ids are the cache's (callers
  // check).
  virtual absl::Status SaveBlock(int32_t block, int32_t host_block) = 0;
  virtual absl::Status RestoreBlock(int32_t host_block, int32_t block) = 0;

 protected:
  explicit KvCache(const KvCacheSpec& spec) : spec_(spec) {}

 private:
  KvCacheSpec spec_;
};

// How positions rotate queries and keys. Pair j of a head turns by position * inv_freq[j]; cosine
// and sine are both multiplied by `magnitude` (YaRN's attention factor).
struct Rope {
  enum class Pairing : uint8_t {
    kAdjacent,  // pairs (2j, 2j+1): GGUF "llama"
    kHalves,    // pairs (j, j + rope_dims/2): qwen2, qwen3
  };
  Pairing pairing = Pairing::kAdjacent;
  int rope_dims = 0;            // leading dims of a head that rotate; the rest pass through
  std::vector<float> inv_freq;  // (rope_dims / 2)
  float magnitude = 1.0f;
};

// The rows of one step. Arrays are (rows) long unless said, and stay valid until the step's last
// operation. The caller has checked every index:
// block ids against the cache, kv_position against its table's length.
struct StepRows {
  int rows = 0;
  absl::Span<const int32_t> rope_position;
  absl::Span<const int32_t> kv_position;  // where the row's key and value go; it attends [0, this]
  absl::Span<const int32_t> table_index;  // which of block_tables
  // Block ids of each sequence in this step, in position order.
  absl::Span<const absl::Span<const int32_t>> block_tables;
};

struct AttentionWeights {
  const Vector* norm = nullptr;  // (hidden)
  float norm_eps = 0;
  const Matrix* wq = nullptr;  // (heads * head_dim, hidden)
  const Matrix* wk = nullptr;  // (kv_heads * head_dim, hidden)
  const Matrix* wv = nullptr;  // (kv_heads * head_dim, hidden)
  const Vector* bq = nullptr;  // (heads * head_dim) or null; likewise bk, bv
  const Vector* bk = nullptr;
  const Vector* bv = nullptr;
  const Vector* q_norm = nullptr;  // (head_dim) or null: RMS norm per head before rope; k_norm too
  const Vector* k_norm = nullptr;
};

struct FfnWeights {
  const Vector* norm = nullptr;  // (hidden)
  float norm_eps = 0;
  const Matrix* gate = nullptr;       // (ffn, hidden)
  const Matrix* up = nullptr;         // (ffn, hidden)
  const Vector* gate_bias = nullptr;  // (ffn) or null
  const Vector* up_bias = nullptr;    // (ffn) or null
};

// The most that the steps of one stage ask for: what a backend sizes its scratch memory from.
struct StepLimits {
  int max_rows = 0;        // of a step
  int max_sequences = 0;   // block tables of a step
  int context_tokens = 0;  // of one sequence
  int logit_rows = 0;      // of one Logits or Sample; 0: the stage makes none
  int64_t vocabulary = 0;  // likewise
  int64_t hidden = 0;
  int64_t q_width = 0;   // heads * head_dim
  int64_t kv_width = 0;  // kv_heads * head_dim
  int64_t ffn = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Weights. `bytes` is n rows of RowBytes(type, k) as they lie in the model file and stays valid
  // while the matrix lives (a backend may keep using it in place).
  virtual absl::StatusOr<std::unique_ptr<Matrix>> LoadMatrix(WeightType type, int64_t n, int64_t k,
                                                             absl::Span<const std::byte> bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Vector>> LoadVector(absl::Span<const float> values) = 0;
  // Unimplemented, with what to use instead, for a type that this backend has no kernels for: to be
  // asked before weights load.
  virtual absl::Status CheckKvType(KvType type) const = 0;
  virtual absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheSpec& spec) = 0;

  // Once, after all matrices and caches are there and before the first step: takes all memory that
  // steps need. ResourceExhausted, with the sizes, when the device has not that much.
  virtual absl::Status Prepare(const StepLimits& limits) = 0;
  // Bytes that Prepare took.
  virtual uint64_t scratch_bytes() const = 0;

  // Makes the rows of the next operations known to the device. Everything below refers to them.
  virtual absl::Status BeginStep(const StepRows& rows) = 0;

  // x[r] = row tokens[r] of table, as float32. tokens: (rows), each in [0, table.n()).
  // x: (rows, table.k()).
  virtual absl::Status Embed(const Matrix& table, absl::Span<const int32_t> tokens, Buffer x) = 0;

  // h = RMSNorm(x); q, k, v = W h + b; per-head norms; rope on q and k; k and v into the cache's
  // `layer` at each row's kv_position. x: (rows, hidden). q out: (rows, heads * head_dim).
  virtual absl::Status AttentionInput(const AttentionWeights& weights, const Rope& rope, Buffer x,
                                      KvCache& cache, int layer, Buffer q) = 0;

  // out[r] = softmax(q K^T / sqrt(head_dim)) V over positions [0, kv_position[r]] of the row's
  // sequence. Query head h reads kv head h / (heads / kv_heads). q, out: (rows, heads * head_dim).
  virtual absl::Status Attention(Buffer q, const KvCache& cache, int layer, int heads,
                                 Buffer out) = 0;

  // x += W in (+ bias). in: (rows, w.k()). x: (rows, w.n()).
  virtual absl::Status LinearAdd(const Matrix& w, const Vector* bias, Buffer in, Buffer x) = 0;

  // h = RMSNorm(x); out = silu(Wgate h) * (Wup h). x: (rows, hidden). out: (rows, ffn).
  virtual absl::Status FfnInput(const FfnWeights& weights, Buffer x, Buffer out) = 0;

  // non_finite[r] = 1 when row r of x (rows, width) holds a NaN or an infinity, else 0. Valid after
  // Finish; `non_finite` lives until then. Once between two Finish.
  virtual absl::Status FindNonFinite(Buffer x, int width, absl::Span<uint8_t> non_finite) = 0;

  // For the i-th of `selected` (row indices, ascending): logits[i] = W RMSNorm(x[selected[i]]).
  // x: (rows, hidden). logits: (selected.size(), w.n()) float32.
  virtual absl::Status Logits(const Vector& norm, float norm_eps, const Matrix& w,
                              absl::Span<const int32_t> selected, Buffer x, Buffer logits) = 0;

  // results[i] from row `requests[i].logits_row` of logits (any rows, vocabulary); no row twice.
  // Valid after Finish; `results` lives until then. Once between two Finish. At most
  // kMaxTopLogprobs log-probabilities each.
  virtual absl::Status Sample(Buffer logits, int64_t vocabulary,
                              absl::Span<const SampleRequest> requests,
                              absl::Span<SampleResult> results) = 0;

  // Waits until everything asked for since BeginStep is done: results are valid, and what the
  // device has to say against it is said here. Ends each step; may come several times in one.
  virtual absl::Status Finish() = 0;
};

// The CPU backend. `device` comes from CreateCpuDevice and outlives the ops.
absl::StatusOr<std::unique_ptr<Ops>> CreateCpuOps(Device& device);

}  // namespace layercake::kernels
