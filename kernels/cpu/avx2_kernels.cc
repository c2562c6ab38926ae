// Everything of the AVX2 table but the products.
#include "kernels/cpu/avx2_kernels.h"

#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/avx2_matmul.h"

namespace layercake::kernels {
namespace {

inline __m256i FirstLanes(int64_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count < 8 ? count : 8)), lane);
}

inline float SumLanes(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

inline int32_t SumInts(__m128i v) {
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1)));
}

inline int32_t SumInts(__m256i v) {
  return SumInts(_mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}

inline double SumDoubles(__m256d v) {
  const __m128d sum = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(sum, _mm_unpackhi_pd(sum, sum)));
}

inline float MaxLane(__m256 v) {
  __m128 max = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  max = _mm_max_ps(max, _mm_movehl_ps(max, max));
  return _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)));
}

// exp(x) within 2 units in the last place; 0 below -87.3 (no denormals), infinity above 88, NaN
// for NaN. x = n ln 2 + r, and the Taylor polynomial of degree 7 leaves 5e-9 for |r| < ln 2 / 2.
inline __m256 Exp(__m256 x) {
  // A NaN passes max and min when it is their second operand.
  const __m256 clamped =
      _mm256_max_ps(_mm256_set1_ps(-87.3f), _mm256_min_ps(_mm256_set1_ps(88.0f), x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(clamped, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), clamped);  // ln 2 in two parts
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.0f / 5040);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const __m256 result = _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
  const __m256 vanishes = _mm256_cmp_ps(x, _mm256_set1_ps(-87.3f), _CMP_LT_OQ);
  const __m256 explodes = _mm256_cmp_ps(x, _mm256_set1_ps(88.0f), _CMP_GT_OQ);
  return _mm256_blendv_ps(_mm256_andnot_ps(vanishes, result), _mm256_set1_ps(__builtin_inff()),
                          explodes);
}

// 16 floats times `inverse`, to nearest, as int16; their sum in *sum.
inline __m256i QuantizeSixteen(const float* x, __m256 inverse, int32_t* sum) {
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inverse));
  *sum = SumInts(_mm256_add_epi32(a, b));
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
}

inline uint32_t LargestMagnitude(const float* x) {
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < kGroup; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, mask));
  }
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

void QuantizeRow(const float* x, int64_t k, int16_t* ints, float* scales, float* sums,
                 float* half_sums) {
  const int64_t groups = k / kGroup;
  for (int64_t g = 0; g < groups; ++g, x += kGroup, ints += kGroup) {
    const uint32_t largest = LargestMagnitude(x);
    float max;
    std::memcpy(&max, &largest, sizeof max);
    auto* to = reinterpret_cast<__m256i*>(ints);
    int32_t half[2] = {0, 0};
    float scale = 0;
    if (largest >= 0x7F800000u) {
      scale = __builtin_nanf("");
    } else if (max >= 1e-30f) {
      scale = max / 32767.0f;
      const __m256 inverse = _mm256_set1_ps(32767.0f / max);
      _mm256_storeu_si256(to, QuantizeSixteen(x, inverse, &half[0]));
      _mm256_storeu_si256(to + 1, QuantizeSixteen(x + 16, inverse, &half[1]));
    }
    if (!(scale > 0)) {
      _mm256_storeu_si256(to, _mm256_setzero_si256());
      _mm256_storeu_si256(to + 1, _mm256_setzero_si256());
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
  const int64_t whole = n / 8 * 8;
  const __m256i tail = FirstLanes(n - whole);
  __m256d sums[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
  const auto add = [&sums](__m256 v) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    sums[0] = _mm256_fmadd_pd(low, low, sums[0]);
    sums[1] = _mm256_fmadd_pd(high, high, sums[1]);
  };
  for (int64_t i = 0; i < whole; i += 8) add(_mm256_loadu_ps(x + i));
  if (whole < n) add(_mm256_maskload_ps(x + whole, tail));
  const double sum = SumDoubles(_mm256_add_pd(sums[0], sums[1]));
  const auto mean = static_cast<float>(sum / static_cast<double>(n));
  const __m256 factor = _mm256_set1_ps(1.0f / __builtin_sqrtf(mean + eps));
  for (int64_t i = 0; i < whole; i += 8) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
    _mm256_storeu_ps(out + i, _mm256_mul_ps(scaled, _mm256_loadu_ps(weight + i)));
  }
  if (whole < n) {
    const __m256 scaled = _mm256_mul_ps(_mm256_maskload_ps(x + whole, tail), factor);
    _mm256_maskstore_ps(out + whole, tail,
                        _mm256_mul_ps(scaled, _mm256_maskload_ps(weight + whole, tail)));
  }
}

inline __m256 SiluTimes(__m256 gate, __m256 up) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 e = Exp(_mm256_sub_ps(_mm256_setzero_ps(), gate));
  return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(one, e)), up);
}

void SiluMul(float* gate, const float* up, int64_t n) {
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    _mm256_storeu_ps(gate + i, SiluTimes(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
  }
  if (whole < n) {
    const __m256i tail = FirstLanes(n - whole);
    const __m256 product =
        SiluTimes(_mm256_maskload_ps(gate + whole, tail), _mm256_maskload_ps(up + whole, tail));
    _mm256_maskstore_ps(gate + whole, tail, product);
  }
}

void Add(float* x, const float* y, int64_t n) {
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
  }
  for (int64_t i = whole; i < n; ++i) x[i] += y[i];
}

inline __m128i ToHalves(__m256 v) {
  const __m128i halves = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m128i magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x7FFF));
  const __m128i infinite = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7C00));
  return _mm_or_si128(halves, _mm_and_si128(infinite, _mm_set1_epi16(0x0200)));
}

void StoreHalf(const float* x, int64_t n, uint16_t* out) {
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), ToHalves(_mm256_loadu_ps(x + i)));
  }
  if (whole < n) {
    alignas(16) uint16_t last[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(last),
                    ToHalves(_mm256_maskload_ps(x + whole, FirstLanes(n - whole))));
    std::memcpy(out + whole, last, static_cast<size_t>(n - whole) * sizeof(uint16_t));
  }
}

void LoadHalfTile(const uint16_t* in, int positions, int head_dim, int padded, float* out) {
  const int whole = head_dim / 8 * 8;
  for (int t = 0; t < positions; ++t, in += head_dim, out += padded) {
    for (int c = 0; c < whole; c += 8) {
      _mm256_storeu_ps(out + c,
                       _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + c))));
    }
    if (whole < head_dim) {
      alignas(16) uint16_t last[8] = {};
      std::memcpy(last, in + whole, static_cast<size_t>(head_dim - whole) * sizeof(uint16_t));
      _mm256_storeu_ps(out + whole,
                       _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(last))));
    }
  }
}

inline __m128i ToBf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  // From here on the rounded value would be an infinity.
  const __m256i beyond = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F7F7FFF));
  const __m256i sign = _mm256_andnot_si256(_mm256_set1_epi32(0x7FFFFFFF), bits);
  const __m256i nan = _mm256_or_si256(sign, _mm256_set1_epi32(0x7FC00000));
  const __m256i kept = _mm256_blendv_epi8(_mm256_add_epi32(bits, half), nan, beyond);
  const __m256i high = _mm256_srli_epi32(kept, 16);
  const __m256i packed = _mm256_packus_epi32(high, high);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

void StoreBf16(const float* x, int64_t n, uint16_t* out) {
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), ToBf16(_mm256_loadu_ps(x + i)));
  }
  if (whole < n) {
    alignas(16) uint16_t last[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(last),
                    ToBf16(_mm256_maskload_ps(x + whole, FirstLanes(n - whole))));
    std::memcpy(out + whole, last, static_cast<size_t>(n - whole) * sizeof(uint16_t));
  }
}

inline __m256 FromBf16(__m128i values) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16));
}

void LoadBf16Tile(const uint16_t* in, int positions, int head_dim, int padded, float* out) {
  const int whole = head_dim / 8 * 8;
  for (int t = 0; t < positions; ++t, in += head_dim, out += padded) {
    for (int c = 0; c < whole; c += 8) {
      _mm256_storeu_ps(out + c,
                       FromBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + c))));
    }
    if (whole < head_dim) {
      alignas(16) uint16_t last[8] = {};
      std::memcpy(last, in + whole, static_cast<size_t>(head_dim - whole) * sizeof(uint16_t));
      _mm256_storeu_ps(out + whole,
                       FromBf16(_mm_load_si128(reinterpret_cast<const __m128i*>(last))));
    }
  }
}

// kGroup values as one block.
inline void StoreQ8Block(const float* x, uint8_t* out) {
  const uint32_t largest = LargestMagnitude(x);
  float max;
  std::memcpy(&max, &largest, sizeof max);
  uint16_t scale = 0x7C00;
  if (largest < 0x7F800000u) {
    const __m128i half = _mm_cvtps_ph(_mm_set_ss(max / 127.0f), _MM_FROUND_TO_NEAREST_INT);
    scale = static_cast<uint16_t>(_mm_extract_epi16(half, 0));
  }
  if (scale == 0x7C00) scale = 0x7E00;
  __m256i ints = _mm256_setzero_si256();
  if (scale != 0 && scale != 0x7E00) {
    const __m256 inverse = _mm256_set1_ps(127.0f / max);
    __m256i parts[4];
    for (int i = 0; i < 4; ++i) {
      parts[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
    }
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(parts[0], parts[1]),
                                              _mm256_packs_epi32(parts[2], parts[3]));
    // Packing works on halves of vectors: groups of four stand as 0 2 4 6, 1 3 5 7.
    ints = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  std::memcpy(out, &scale, sizeof scale);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 2), ints);
}

void StoreQ8(const float* x, int64_t n, uint8_t* out) {
  const int64_t whole = n / kGroup * kGroup;
  for (int64_t i = 0; i < whole; i += kGroup, out += kQ8BlockBytes) StoreQ8Block(x + i, out);
  if (whole < n) {
    alignas(32) float last[kGroup] = {};
    std::memcpy(last, x + whole, static_cast<size_t>(n - whole) * sizeof(float));
    StoreQ8Block(last, out);
  }
}

// Eight columns at a time never leave a block: 32 is a multiple of 8, and so is `padded`.
void LoadQ8Tile(const uint8_t* in, int positions, int head_dim, int padded, float* out) {
  for (int t = 0; t < positions; ++t, in += Q8Bytes(head_dim), out += padded) {
    const uint8_t* block = in;
    for (int first = 0; first < padded; first += kGroup, block += kQ8BlockBytes) {
      uint16_t half;
      std::memcpy(&half, block, sizeof half);
      const __m256 scale = _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
      const int columns = padded - first < kGroup ? padded - first : kGroup;
      for (int c = 0; c < columns; c += 8) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + 2 + c));
        const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        _mm256_storeu_ps(out + first + c, _mm256_mul_ps(scale, values));
      }
    }
  }
}

// The sums of eight vectors as one vector.
inline __m256 SumEach(const __m256* v) {
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

float TileScores(const float* q, const float* tile, int positions, int padded, float scale,
                 float* scores) {
  const __m256 nothing = _mm256_set1_ps(-__builtin_inff());
  __m256 max = nothing;
  for (int t = 0; t < positions; t += 8) {
    const float* rows[8];
    for (int j = 0; j < 8; ++j) {
      // Rows beyond the last stand in as the last; their scores are not used.
      rows[j] = tile + (t + j < positions ? t + j : positions - 1) * padded;
    }
    __m256 acc[8];
    for (__m256& lanes : acc) lanes = _mm256_setzero_ps();
    for (int c = 0; c < padded; c += 8) {
      const __m256 part = _mm256_loadu_ps(q + c);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        acc[j] = _mm256_fmadd_ps(part, _mm256_loadu_ps(rows[j] + c), acc[j]);
      }
    }
    const __m256 sums = _mm256_mul_ps(SumEach(acc), _mm256_set1_ps(scale));
    _mm256_storeu_ps(scores + t, sums);
    const __m256 valid = _mm256_castsi256_ps(FirstLanes(positions - t));
    max = _mm256_max_ps(_mm256_blendv_ps(nothing, sums, valid), max);
  }
  return MaxLane(max);
}

float TileExp(float* scores, int positions, float max) {
  __m256 sum = _mm256_setzero_ps();
  for (int t = 0; t < positions; t += 8) {
    const __m256 e =
        _mm256_and_ps(Exp(_mm256_sub_ps(_mm256_loadu_ps(scores + t), _mm256_set1_ps(max))),
                      _mm256_castsi256_ps(FirstLanes(positions - t)));
    _mm256_storeu_ps(scores + t, e);
    sum = _mm256_add_ps(sum, e);
  }
  return SumLanes(sum);
}

// kVectors * 8 columns.
template <int kVectors>
inline void AccumulateColumns(const float* weights, const float* tile, int positions, int padded,
                              __m256 factor, float* acc) {
  __m256 sums[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    sums[i] = _mm256_mul_ps(_mm256_loadu_ps(acc + 8 * i), factor);
  }
  for (int t = 0; t < positions; ++t) {
    const __m256 weight = _mm256_broadcast_ss(weights + t);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      sums[i] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(tile + t * padded + 8 * i), sums[i]);
    }
  }
  for (int i = 0; i < kVectors; ++i) _mm256_storeu_ps(acc + 8 * i, sums[i]);
}

void TileAccumulate(const float* weights, const float* tile, int positions, int padded,
                    float factor, float* acc) {
  const __m256 scale = _mm256_set1_ps(factor);
  int c = 0;
  for (; c + 64 <= padded; c += 64) {
    AccumulateColumns<8>(weights, tile + c, positions, padded, scale, acc + c);
  }
  for (; c < padded; c += 8) {
    AccumulateColumns<1>(weights, tile + c, positions, padded, scale, acc + c);
  }
}

bool HasNonFinite(const float* x, int64_t n) {
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i largest = _mm256_set1_epi32(0x7F7FFFFF);
  __m256i bad = _mm256_setzero_si256();
  const auto look = [&](__m256i bits) {
    bad = _mm256_or_si256(bad, _mm256_cmpgt_epi32(_mm256_and_si256(bits, mask), largest));
  };
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    look(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)));
  }
  if (whole < n) {
    look(_mm256_castps_si256(_mm256_maskload_ps(x + whole, FirstLanes(n - whole))));
  }
  return _mm256_testz_si256(bad, bad) == 0;
}

float MaxValue(const float* x, int64_t n, bool* nan_or_inf) {
  const __m256 largest = _mm256_set1_ps(3.40282347e38f);
  __m256 max = _mm256_set1_ps(-__builtin_inff());
  __m256 bad = _mm256_setzero_ps();
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    bad = _mm256_or_ps(bad, _mm256_cmp_ps(v, largest, _CMP_NLE_UQ));
    max = _mm256_max_ps(v, max);
  }
  float result = MaxLane(max);
  *nan_or_inf = _mm256_movemask_ps(bad) != 0;
  for (int64_t i = whole; i < n; ++i) {
    if (!(x[i] <= 3.40282347e38f)) *nan_or_inf = true;
    if (x[i] > result) result = x[i];
  }
  return result;
}

double SumExp(const float* x, int64_t n, float max, float temperature) {
  const __m256 shift = _mm256_set1_ps(max);
  const __m256 divisor = _mm256_set1_ps(temperature);
  __m256d sums[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
  const auto add = [&](__m256 v, __m256i lanes) {
    const __m256 e = _mm256_and_ps(Exp(_mm256_div_ps(_mm256_sub_ps(v, shift), divisor)),
                                   _mm256_castsi256_ps(lanes));
    sums[0] = _mm256_add_pd(sums[0], _mm256_cvtps_pd(_mm256_castps256_ps128(e)));
    sums[1] = _mm256_add_pd(sums[1], _mm256_cvtps_pd(_mm256_extractf128_ps(e, 1)));
  };
  const int64_t whole = n / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) add(_mm256_loadu_ps(x + i), FirstLanes(8));
  if (whole < n) {
    const __m256i tail = FirstLanes(n - whole);
    add(_mm256_maskload_ps(x + whole, tail), tail);
  }
  return SumDoubles(_mm256_add_pd(sums[0], sums[1]));
}

}  // namespace

CpuKernels MakeAvx2Kernels() {
  return {"avx2",     Avx2Matmul,   QuantizeRow,    RmsNorm,      SiluMul,  Add,
          StoreHalf,  LoadHalfTile, StoreBf16,      LoadBf16Tile, StoreQ8,  LoadQ8Tile,
          TileScores, TileExp,      TileAccumulate, HasNonFinite, MaxValue, SumExp};
}

}  // namespace layercake::kernels
