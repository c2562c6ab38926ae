// The inner loops of the CPU backend as one table per instruction set.
//
// Everything here works on the rows it is given, in the calling thread. The result of one output
// element is computed by one sequence of operations that depends on the length of its reduction
// only, never on how many rows or columns are computed beside it: that is what makes a row's
// result independent of its neighbours, of chunking and of threads.
//
// This header is included by files compiled for newer instruction sets: its functions are static,
// or the linker might pick a copy with newer instructions for every CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/weight_type.h"

namespace layercake::kernels {

// Quantised weights are multiplied as integers: 32 activations share one float scale
// (max |x| / 32767), their int16 products with the weights' integers are summed exactly in int32,
// and scaled sums are added in float32. Groups of 32 and of 16 mean these runs of activations.
inline constexpr int kGroup = 32;

// Rows of activations, as a product needs them. Row r starts at r * stride of each array.
struct Activations {
  const float* values = nullptr;     // (rows, k); for F32, F16, BF16 weights
  const int16_t* ints = nullptr;     // (rows, k); this and the rest for quantised weights
  const float* scales = nullptr;     // (rows, groups): groups = PaddedGroups(k), zero beyond k / 32
  const float* sums = nullptr;       // (rows, groups): scale * sum of the group's 32 ints
  const float* half_sums = nullptr;  // (rows, 2 * groups): scale * sum of 16 ints
};

// Scale arrays are padded to whole vectors of 8, so that loops over them have no tail.
static constexpr int64_t PaddedGroups(int64_t k) { return (k / kGroup + 7) / 8 * 8; }

// Where a product may unpack weights: per thread, 64-byte aligned, MatmulScratchBytes(k) long.
using Scratch = std::byte*;
size_t MatmulScratchBytes(int64_t k);

// One row of quantised weights: weight[i] = scales[i / 32] * ints[i] + minima[i / group], where
// group is MinimumGroup(type). Scales of 16-wide groups are multiplied into the ints, which reach
// 32 * 128 so; a lane of a vector adds four products of a group, 4 * 4096 * 32767 < 2^31.
struct UnpackedRow {
  int16_t* ints;  // (k)
  float* scales;  // (PaddedGroups(k)), zero beyond
  float* minima;  // (PaddedGroups(k)) or twice that, zero beyond; unused when group is 0
};

// 32 or 16: minima are per that many weights. 0: the type has none.
static constexpr int MinimumGroup(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return 32;
    case WeightType::kQ2_K:
      return 16;
    default:
      return 0;
  }
}

static constexpr bool IsFloatType(WeightType type) {
  return type == WeightType::kF32 || type == WeightType::kF16 || type == WeightType::kBF16;
}

struct MatmulArgs {
  WeightType type;
  const uint8_t* weights;  // row 0 of the matrix
  size_t row_bytes;
  int64_t n_begin, n_end;  // rows of the matrix to do
  int64_t k;
  const Activations* activations;
  int64_t rows;  // rows of activations
  float* out;    // out[r * out_stride + n] for n in [n_begin, n_end)
  int64_t out_stride;
  Scratch scratch;
};

// Attention works on tiles of at most this many positions of one kv head, as float32 rows padded
// with zeros to a multiple of 8.
inline constexpr int kTilePositions = 32;

// Quantised keys and values: blocks of a f16 scale and kGroup int8, as weights of type Q8_0; the
// last block of n values is padded with zeros.
inline constexpr size_t kQ8BlockBytes = 2 + kGroup;
static constexpr size_t Q8Bytes(int64_t n) {
  return static_cast<size_t>((n + kGroup - 1) / kGroup) * kQ8BlockBytes;
}

struct CpuKernels {
  const char* name;

  void (*matmul)(const MatmulArgs& args);

  // ints, scales (PaddedGroups), sums, half_sums of one row, as in Activations. A group with a NaN
  // or an infinity gets the scale NaN. k is a multiple of 32.
  void (*quantize_row)(const float* x, int64_t k, int16_t* ints, float* scales, float* sums,
                       float* half_sums);

  // out = x / sqrt(mean(x^2) + eps) * weight. In place when out == x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);

  // gate = silu(gate) * up, silu(z) = z / (1 + exp(-z)).
  void (*silu_mul)(float* gate, const float* up, int64_t n);

  // x += y.
  void (*add)(float* x, const float* y, int64_t n);

  // To f16, where what f16 cannot hold becomes NaN: a value out of range must surface, and an
  // infinity could vanish in a softmax.
  void (*store_half)(const float* x, int64_t n, uint16_t* out);

  // `positions` rows of head_dim values into rows of `padded` floats, zeros behind.
  void (*load_half_tile)(const uint16_t* in, int positions, int head_dim, int padded, float* out);

  // The same for bf16.
  void (*store_bf16)(const float* x, int64_t n, uint16_t* out);
  void (*load_bf16_tile)(const uint16_t* in, int positions, int head_dim, int padded, float* out);

  // To Q8Bytes(n) bytes: scale = largest / 127 as f16, ints = x * 127 / largest to nearest. A block
  // with a NaN, an infinity or a scale beyond f16 gets the scale NaN, so all of it reads as NaN.
  void (*store_q8)(const float* x, int64_t n, uint8_t* out);
  // As load_half_tile, from rows of Q8Bytes(head_dim). Behind a NaN block's values stand NaN, not
  // zeros.
  void (*load_q8_tile)(const uint8_t* in, int positions, int head_dim, int padded, float* out);

  // scores[t] = scale * dot(q, tile row t), t < positions; returns the largest (NaN aside).
  // q: (padded), zero behind head_dim. scores: (kTilePositions).
  float (*tile_scores)(const float* q, const float* tile, int positions, int padded, float scale,
                       float* scores);

  // scores[t] becomes exp(scores[t] - max) and the sum is returned.
  float (*tile_exp)(float* scores, int positions, float max);

  // acc[c] = acc[c] * factor + sum over t of weights[t] * tile[t][c], in the order of t.
  void (*tile_accumulate)(const float* weights, const float* tile, int positions, int padded,
                          float factor, float* acc);

  // Whether x holds a NaN or an infinity.
  bool (*has_non_finite)(const float* x, int64_t n);

  // The largest x; *nan_or_inf tells of a NaN or +infinity (then the result means nothing).
  float (*max_value)(const float* x, int64_t n, bool* nan_or_inf);

  // Sum of exp((x[i] - max) / temperature), added in double in a fixed order.
  double (*sum_exp)(const float* x, int64_t n, float max, float temperature);
};

// The portable one, which is also the tests' twin of the others.
const CpuKernels& ScalarKernels();
// Null when this build or this CPU has not AVX2, FMA and F16C.
const CpuKernels* Avx2Kernels();

// One row of quantised weights as integers, portably. `type` is not a float type.
void UnpackRow(WeightType type, const uint8_t* row, int64_t k, const UnpackedRow& out);
// One row of any type as float32, bit for bit what the format defines.
void DequantizeRow(WeightType type, const uint8_t* row, int64_t k, float* out);

}  // namespace layercake::kernels
