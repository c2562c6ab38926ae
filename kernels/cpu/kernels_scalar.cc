// The portable kernels: short, in the same order of operations as the vector ones where that is
// cheap to say, but with plain multiply and add where those fuse.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/half.h"

namespace layercake::kernels {

size_t MatmulScratchBytes(int64_t k) {
  // Four rows of ints (or as many bytes of floats in two halves) and of scales and minima, each
  // rounded up to a cache line, and one row of products of scales.
  const size_t values = (static_cast<size_t>(k) + 63) / 64 * 64 * sizeof(float);
  const size_t groups = (static_cast<size_t>(PaddedGroups(k)) + 15) / 16 * 16 * sizeof(float);
  return 4 * values + 4 * 4 * groups;
}

namespace {

constexpr int kLanes = 8;

// The order in which the vector kernels add their lanes.
float SumLanes(const float* lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// sum over i of a[i] * b[i] in eight interleaved sums.
float Dot(const float* a, const float* b, int64_t n) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % kLanes] += a[i] * b[i];
  return SumLanes(lanes);
}

// The int32 sums of one group as the vector kernels have them: lane l holds elements 2l, 2l + 1
// of each half.
float GroupedDot(const UnpackedRow& row, const int16_t* ints, const float* scales, int64_t k) {
  float lanes[kLanes] = {};
  for (int64_t g = 0; g < k / kGroup; ++g) {
    const int16_t* w = row.ints + g * kGroup;
    const int16_t* a = ints + g * kGroup;
    const float scale = row.scales[g] * scales[g];
    for (int l = 0; l < kLanes; ++l) {
      const int i = 2 * l;
      const int32_t sum =
          w[i] * a[i] + w[i + 1] * a[i + 1] + w[i + 16] * a[i + 16] + w[i + 17] * a[i + 17];
      lanes[l] += static_cast<float>(sum) * scale;
    }
  }
  return SumLanes(lanes);
}

void MatmulQuantized(const MatmulArgs& args) {
  const Activations& a = *args.activations;
  const int64_t groups = PaddedGroups(args.k);
  const int minimum_group = MinimumGroup(args.type);
  auto* floats = reinterpret_cast<float*>(args.scratch);
  const UnpackedRow row{reinterpret_cast<int16_t*>(floats + 3 * groups), floats, floats + groups};
  for (int64_t n = args.n_begin; n < args.n_end; ++n) {
    UnpackRow(args.type, args.weights + static_cast<size_t>(n) * args.row_bytes, args.k, row);
    for (int64_t r = 0; r < args.rows; ++r) {
      float y = GroupedDot(row, a.ints + r * args.k, a.scales + r * groups, args.k);
      if (minimum_group == 32) y += Dot(row.minima, a.sums + r * groups, groups);
      if (minimum_group == 16) y += Dot(row.minima, a.half_sums + 2 * r * groups, 2 * groups);
      args.out[r * args.out_stride + n] = y;
    }
  }
}

void Matmul(const MatmulArgs& args) {
  if (!IsFloatType(args.type)) {
    MatmulQuantized(args);
    return;
  }
  auto* row = reinterpret_cast<float*>(args.scratch);
  for (int64_t n = args.n_begin; n < args.n_end; ++n) {
    DequantizeRow(args.type, args.weights + static_cast<size_t>(n) * args.row_bytes, args.k, row);
    for (int64_t r = 0; r < args.rows; ++r) {
      args.out[r * args.out_stride + n] = Dot(row, args.activations->values + r * args.k, args.k);
    }
  }
}

void QuantizeRow(const float* x, int64_t k, int16_t* ints, float* scales, float* sums,
                 float* half_sums) {
  const int64_t groups = k / kGroup;
  for (int64_t g = 0; g < groups; ++g) {
    // As integers, so that NaN is the largest.
    uint32_t largest = 0;
    for (int i = 0; i < kGroup; ++i) {
      largest = std::max(largest, std::bit_cast<uint32_t>(x[g * kGroup + i]) & 0x7FFFFFFFu);
    }
    const bool finite = largest < 0x7F800000u;
    const float max = std::bit_cast<float>(largest);
    // Below 1e-30 the reciprocal would overflow; such a group is nothing.
    const float inverse = finite && max >= 1e-30f ? 32767.0f / max : 0.0f;
    float scale = inverse > 0 ? max / 32767.0f : 0.0f;
    if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
    int32_t half[2] = {0, 0};
    for (int i = 0; i < kGroup; ++i) {
      const float scaled = finite ? x[g * kGroup + i] * inverse : 0.0f;
      const auto q = static_cast<int32_t>(std::lrintf(scaled));
      ints[g * kGroup + i] = static_cast<int16_t>(q);
      half[i / 16] += q;
    }
    scales[g] = scale;
    half_sums[2 * g] = scale * static_cast<float>(half[0]);
    half_sums[2 * g + 1] = scale * static_cast<float>(half[1]);
    sums[g] = scale * static_cast<float>(half[0] + half[1]);
  }
  for (int64_t g = groups; g < PaddedGroups(k); ++g) {
    scales[g] = sums[g] = half_sums[2 * g] = half_sums[2 * g + 1] = 0;
  }
}

void RmsNorm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  const auto mean = static_cast<float>(sum / static_cast<double>(n));
  const float factor = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void SiluMul(float* gate, const float* up, int64_t n) {
  for (int64_t i = 0; i < n; ++i) gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

void Add(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

void StoreHalf(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t half = FloatToHalf(x[i]);
    const bool infinite = (half & 0x7FFF) == 0x7C00;
    out[i] = static_cast<uint16_t>(half | (infinite ? 0x0200 : 0));
  }
}

void LoadHalfTile(const uint16_t* in, int positions, int head_dim, int padded, float* out) {
  for (int t = 0; t < positions; ++t) {
    for (int c = 0; c < padded; ++c) {
      out[t * padded + c] = c < head_dim ? HalfToFloat(in[t * head_dim + c]) : 0.0f;
    }
  }
}

void StoreBf16(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t value = FloatToBf16(x[i]);
    const bool non_finite = (value & 0x7F80) == 0x7F80;
    out[i] = static_cast<uint16_t>(non_finite ? (value & 0x8000) | 0x7FC0 : value);
  }
}

void LoadBf16Tile(const uint16_t* in, int positions, int head_dim, int padded, float* out) {
  for (int t = 0; t < positions; ++t) {
    for (int c = 0; c < padded; ++c) {
      out[t * padded + c] = c < head_dim ? Bf16ToFloat(in[t * head_dim + c]) : 0.0f;
    }
  }
}

// `count` values, at most kGroup, as one block.
void StoreQ8Block(const float* x, int64_t count, uint8_t* out) {
  uint32_t largest = 0;  // as integers, so that NaN is the largest
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
  }
  const float max = std::bit_cast<float>(largest);
  uint16_t scale = largest < 0x7F800000u ? FloatToHalf(max / 127.0f) : uint16_t{0x7C00};
  if (scale == 0x7C00) scale = 0x7E00;
  // Where the scale vanishes in f16, so do the values.
  const bool kept = scale != 0 && scale != 0x7E00;
  const float inverse = kept ? 127.0f / max : 0.0f;
  std::memcpy(out, &scale, sizeof scale);
  for (int64_t i = 0; i < kGroup; ++i) {
    const bool some = kept && i < count;
    out[2 + i] = some ? static_cast<uint8_t>(std::lrintf(x[i] * inverse)) : uint8_t{0};
  }
}

void StoreQ8(const float* x, int64_t n, uint8_t* out) {
  for (int64_t i = 0; i < n; i += kGroup, out += kQ8BlockBytes) {
    StoreQ8Block(x + i, std::min<int64_t>(kGroup, n - i), out);
  }
}

void LoadQ8Tile(const uint8_t* in, int positions, int head_dim, int padded, float* out) {
  for (int t = 0; t < positions; ++t, in += Q8Bytes(head_dim), out += padded) {
    for (int c = 0; c < padded; ++c) {
      const uint8_t* block = in + static_cast<size_t>(c / kGroup) * kQ8BlockBytes;
      const auto value = static_cast<int8_t>(block[2 + c % kGroup]);
      out[c] = HalfToFloat(LoadU16(block)) * static_cast<float>(value);
    }
  }
}

float TileScores(const float* q, const float* tile, int positions, int padded, float scale,
                 float* scores) {
  float max = -std::numeric_limits<float>::infinity();
  for (int t = 0; t < positions; ++t) {
    scores[t] = scale * Dot(q, tile + t * padded, padded);
    max = std::max(max, scores[t]);
  }
  return max;
}

float TileExp(float* scores, int positions, float max) {
  float lanes[kLanes] = {};
  for (int t = 0; t < positions; ++t) {
    scores[t] = std::exp(scores[t] - max);
    lanes[t % kLanes] += scores[t];
  }
  return SumLanes(lanes);
}

void TileAccumulate(const float* weights, const float* tile, int positions, int padded,
                    float factor, float* acc) {
  for (int c = 0; c < padded; ++c) acc[c] *= factor;
  for (int t = 0; t < positions; ++t) {
    for (int c = 0; c < padded; ++c) acc[c] += weights[t] * tile[t * padded + c];
  }
}

bool HasNonFinite(const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return true;
  }
  return false;
}

float MaxValue(const float* x, int64_t n, bool* nan_or_inf) {
  float max = -std::numeric_limits<float>::infinity();
  *nan_or_inf = false;
  for (int64_t i = 0; i < n; ++i) {
    if (!(x[i] <= std::numeric_limits<float>::max())) *nan_or_inf = true;
    max = std::max(max, x[i]);
  }
  return max;
}

double SumExp(const float* x, int64_t n, float max, float temperature) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp((double{x[i]} - max) / temperature);
  return sum;
}

}  // namespace

const CpuKernels& ScalarKernels() {
  static constexpr CpuKernels kKernels = {
      "scalar",   Matmul,       QuantizeRow,    RmsNorm,      SiluMul,  Add,
      StoreHalf,  LoadHalfTile, StoreBf16,      LoadBf16Tile, StoreQ8,  LoadQ8Tile,
      TileScores, TileExp,      TileAccumulate, HasNonFinite, MaxValue, SumExp};
  return kKernels;
}

}  // namespace layercake::kernels
