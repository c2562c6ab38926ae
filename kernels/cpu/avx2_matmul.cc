// Products of quantised and float weights with AVX2.
//
// One row of activations (decoding) is bound by the weights' bytes: each block is unpacked in
// registers and used at once, about 11 micro-operations for the 20 bytes of a Q4_1 block. A few
// rows do the same for four of them at a time. Many rows (prefill) are bound by arithmetic: four
// rows of weights are unpacked once into the scratch memory and meet all rows of activations from
// there, 6 operations per 32 multiplications. All add in the same order.
#include "kernels/cpu/avx2_matmul.h"

#include "kernels/cpu/avx2_formats.h"

namespace layercake::kernels {
namespace {

constexpr int kUnpackedRows = 4;

inline float SumLanes(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

inline __m256i LoadInts(const int16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// sum of scale * (weights . activations) of one group, in eight lanes.
inline __m256 AddGroup(__m256 acc, __m256i w_lo, __m256i w_hi, __m256i a_lo, __m256i a_hi,
                       __m256 scale) {
  const __m256i sum =
      _mm256_add_epi32(_mm256_madd_epi16(w_lo, a_lo), _mm256_madd_epi16(w_hi, a_hi));
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, acc);
}

// The minima's share, in eight lanes. `count` is padded.
inline __m256 AddMinima(__m256 acc, const float* minima, const float* sums, int64_t count) {
  __m256 share = _mm256_setzero_ps();
  for (int64_t g = 0; g < count; g += 8) {
    share = _mm256_fmadd_ps(_mm256_loadu_ps(minima + g), _mm256_loadu_ps(sums + g), share);
  }
  return _mm256_add_ps(acc, share);
}

// How the scratch memory of one thread is laid out; see MatmulScratchBytes.
struct ScratchLayout {
  float* scales;  // (4, groups)
  float* minima;  // (4, 2 * groups)
  int16_t* ints;  // (4, k)
  // In place of ints: (8, groups) scales times activation scales. 8 * 4 bytes for each of at most
  // k / 32 + 7 groups are no more than the 8 * k bytes of ints.
  float* products;
  float* floats;  // (4, k padded to 8), in place of all of these

  ScratchLayout(Scratch scratch, int64_t k) {
    const int64_t groups = (PaddedGroups(k) + 15) / 16 * 16;
    floats = reinterpret_cast<float*>(scratch);
    scales = floats;
    minima = scales + kUnpackedRows * groups;
    ints = reinterpret_cast<int16_t*>(minima + 2 * kUnpackedRows * groups);
    products = reinterpret_cast<float*>(ints);
  }
};

template <class F>
const float* SumsFor(const Activations& a) {
  return MinimumGroup(F::kType) == 16 ? a.half_sums : a.sums;
}

template <class F>
constexpr int64_t MinimaCount(int64_t padded_groups) {
  return MinimumGroup(F::kType) == 0    ? 0
         : MinimumGroup(F::kType) == 16 ? 2 * padded_groups
                                        : padded_groups;
}

// Groups g of a block and on, of kN weight rows, times kM rows of activations that lie `k` apart.
// acc and scales are of (weight row i, activation row m) at i * kM + m.
template <class F, int kN, int kM, int g, class Shared>
inline void AddBlock(const uint8_t* const* blocks, const Shared* shared, const int16_t* ints,
                     int64_t k, const float* const* scales, int64_t first_group, __m256* acc) {
  if constexpr (g < F::kGroups) {
#pragma GCC unroll 4
    for (int i = 0; i < kN; ++i) {
      __m256i lo, hi;
      F::template Unpack<g>(blocks[i], shared[i], lo, hi);
#pragma GCC unroll 4
      for (int m = 0; m < kM; ++m) {
        const int16_t* a = ints + m * k + kGroup * g;
        acc[i * kM + m] = AddGroup(acc[i * kM + m], lo, hi, LoadInts(a), LoadInts(a + 16),
                                   _mm256_broadcast_ss(scales[i * kM + m] + first_group + g));
      }
    }
    AddBlock<F, kN, kM, g + 1>(blocks, shared, ints, k, scales, first_group, acc);
  }
}

// kN weight rows from n on times kM rows of activations from row r on, unpacked in registers.
template <class F, int kN, int kM>
void DotRows(const MatmulArgs& args, int64_t n, int64_t r) {
  const Activations& a = *args.activations;
  const int64_t groups = args.k / kGroup;
  const int64_t padded = PaddedGroups(args.k);
  const ScratchLayout scratch(args.scratch, args.k);
  using Shared = decltype(F::Prepare(nullptr));
  const uint8_t* blocks[kN];
  const float* scales[kN * kM];
  __m256 acc[kN * kM];
#pragma GCC unroll 4
  for (int i = 0; i < kN; ++i) {
    blocks[i] = args.weights + static_cast<size_t>(n + i) * args.row_bytes;
    const float* row_scales = scratch.scales + i * padded;
    F::Scales(blocks[i], groups, scratch.scales + i * padded, scratch.minima + 2 * i * padded);
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m) {
      float* products = scratch.products + (i * kM + m) * padded;
      const float* a_scales = a.scales + (r + m) * padded;
      for (int64_t g = 0; g < padded; g += 8) {
        _mm256_storeu_ps(products + g, _mm256_mul_ps(_mm256_loadu_ps(row_scales + g),
                                                     _mm256_loadu_ps(a_scales + g)));
      }
      scales[i * kM + m] = products;
      acc[i * kM + m] = _mm256_setzero_ps();
    }
  }
  const int16_t* ints = a.ints + r * args.k;
  for (int64_t g = 0; g < groups; g += F::kGroups) {
    Shared shared[kN];
#pragma GCC unroll 4
    for (int i = 0; i < kN; ++i) shared[i] = F::Prepare(blocks[i]);
    AddBlock<F, kN, kM, 0>(blocks, shared, ints + kGroup * g, args.k, scales, g, acc);
    for (int i = 0; i < kN; ++i) blocks[i] += F::kBytes;
  }
#pragma GCC unroll 4
  for (int i = 0; i < kN; ++i) {
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m) {
      __m256 sum = acc[i * kM + m];
      if constexpr (MinimumGroup(F::kType) != 0) {
        const int64_t count = MinimaCount<F>(padded);
        sum =
            AddMinima(sum, scratch.minima + 2 * i * padded, SumsFor<F>(a) + (r + m) * count, count);
      }
      args.out[(r + m) * args.out_stride + n + i] = SumLanes(sum);
    }
  }
}

// kN weight rows from n on times all rows of activations, four at a time.
template <class F, int kN>
void DotFewRows(const MatmulArgs& args, int64_t n) {
  int64_t r = 0;
  for (; r + 4 <= args.rows; r += 4) DotRows<F, kN, 4>(args, n, r);
  const int64_t left = args.rows - r;
  if (left == 3) DotRows<F, kN, 3>(args, n, r);
  if (left == 2) DotRows<F, kN, 2>(args, n, r);
  if (left == 1) DotRows<F, kN, 1>(args, n, r);
}

template <class F, int g, class Shared>
inline void UnpackBlock(const uint8_t* block, const Shared& shared, int16_t* ints) {
  if constexpr (g < F::kGroups) {
    __m256i lo, hi;
    F::template Unpack<g>(block, shared, lo, hi);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(ints + kGroup * g), lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(ints + kGroup * g + 16), hi);
    UnpackBlock<F, g + 1>(block, shared, ints);
  }
}

template <class F>
void UnpackInts(const uint8_t* row, int64_t k, int16_t* ints) {
  for (int64_t i = 0; i < k; i += F::kGroups * kGroup) {
    UnpackBlock<F, 0>(row, F::Prepare(row), ints + i);
    row += F::kBytes;
  }
}

// kN unpacked weight rows from `first` on (n is row 0's place) times kM rows of activations from
// row r on.
template <class F, int kN, int kM>
void Tile(const MatmulArgs& args, const ScratchLayout& scratch, int64_t n, int first, int64_t r) {
  const Activations& a = *args.activations;
  const int64_t k = args.k;
  const int64_t groups = k / kGroup;
  const int64_t padded = PaddedGroups(k);
  const int16_t* ints = a.ints + r * k;
  const float* a_scales = a.scales + r * padded;
  __m256 acc[kN][kM];
#pragma GCC unroll 4
  for (int i = 0; i < kN; ++i) {
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m) acc[i][m] = _mm256_setzero_ps();
  }
  for (int64_t g = 0; g < groups; ++g) {
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m) {
      const __m256i a_lo = LoadInts(ints + m * k + kGroup * g);
      const __m256i a_hi = LoadInts(ints + m * k + kGroup * g + 16);
      const __m256 a_scale = _mm256_broadcast_ss(a_scales + m * padded + g);
#pragma GCC unroll 4
      for (int i = 0; i < kN; ++i) {
        const int16_t* w = scratch.ints + (first + i) * k + kGroup * g;
        const __m256 scale =
            _mm256_mul_ps(_mm256_broadcast_ss(scratch.scales + (first + i) * padded + g), a_scale);
        acc[i][m] = AddGroup(acc[i][m], LoadInts(w), LoadInts(w + 16), a_lo, a_hi, scale);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kN; ++i) {
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m) {
      if constexpr (MinimumGroup(F::kType) != 0) {
        const int64_t count = MinimaCount<F>(padded);
        acc[i][m] = AddMinima(acc[i][m], scratch.minima + 2 * (first + i) * padded,
                              SumsFor<F>(a) + (r + m) * count, count);
      }
      args.out[(r + m) * args.out_stride + n + first + i] = SumLanes(acc[i][m]);
    }
  }
}

// kN weight rows from n on times all rows of activations.
template <class F, int kN>
void UnpackedRows(const MatmulArgs& args, int64_t n) {
  const ScratchLayout scratch(args.scratch, args.k);
  const int64_t padded = PaddedGroups(args.k);
  for (int i = 0; i < kN; ++i) {
    const uint8_t* row = args.weights + static_cast<size_t>(n + i) * args.row_bytes;
    F::Scales(row, args.k / kGroup, scratch.scales + i * padded, scratch.minima + 2 * i * padded);
    UnpackInts<F>(row, args.k, scratch.ints + i * args.k);
  }
  // Tiles of 2 x 2: four accumulators, two unpacked groups and the temporaries fit 16 registers.
  constexpr int kTile = kN < 2 ? kN : 2;
  for (int i = 0; i < kN; i += kTile) {
    int64_t r = 0;
    for (; r + 2 <= args.rows; r += 2) Tile<F, kTile, 2>(args, scratch, n, i, r);
    if (r < args.rows) Tile<F, kTile, 1>(args, scratch, n, i, r);
  }
}

template <class F>
void MatmulQuantized(const MatmulArgs& args) {
  int64_t n = args.n_begin;
  if (args.rows == 1) {
    // Four rows share the loads of the activations; the formats that take more registers, two.
    constexpr int kRows = F::kGroups == 1 ? 4 : 2;
    for (; n + kRows <= args.n_end; n += kRows) DotRows<F, kRows, 1>(args, n, 0);
    for (; n < args.n_end; ++n) DotRows<F, 1, 1>(args, n, 0);
    return;
  }
  // Up to here it pays to unpack again for every four rows of activations.
  constexpr int64_t kFewRows = F::kGroups == 1 ? 8 : 4;
  if (args.rows <= kFewRows) {
    for (; n + 2 <= args.n_end; n += 2) DotFewRows<F, 2>(args, n);
    for (; n < args.n_end; ++n) DotFewRows<F, 1>(args, n);
    return;
  }
  for (; n + kUnpackedRows <= args.n_end; n += kUnpackedRows) {
    UnpackedRows<F, kUnpackedRows>(args, n);
  }
  for (; n < args.n_end; ++n) UnpackedRows<F, 1>(args, n);
}

struct FloatF32 {
  static constexpr int kBytes = 4;
  static __m256 Load(const uint8_t* from) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
  }
};
struct FloatF16 {
  static constexpr int kBytes = 2;
  static __m256 Load(const uint8_t* from) { return _mm256_cvtph_ps(Load128(from)); }
};
struct FloatBf16 {
  static constexpr int kBytes = 2;
  static __m256 Load(const uint8_t* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Load128(from)), 16));
  }
};

// The last k % 8 weights of a row, zeros behind.
template <class T>
inline __m256 LoadTail(const uint8_t* from, int64_t count) {
  alignas(32) uint8_t padded[32] = {};
  std::memcpy(padded, from, static_cast<size_t>(count * T::kBytes));
  return T::Load(padded);
}

inline __m256 LoadFloatTail(const float* from, int64_t count) {
  return _mm256_maskload_ps(from, _mm256_castps_si256(FirstLanes(count)));
}

template <class T, int kRows>
void DotFloatRows(const MatmulArgs& args, int64_t n) {
  const float* a = args.activations->values;
  const uint8_t* rows[kRows];
  __m256 acc[kRows];
  for (int i = 0; i < kRows; ++i) {
    rows[i] = args.weights + static_cast<size_t>(n + i) * args.row_bytes;
    acc[i] = _mm256_setzero_ps();
  }
  const int64_t whole = args.k / 8 * 8;
  for (int64_t j = 0; j < whole; j += 8) {
    const __m256 x = _mm256_loadu_ps(a + j);
    for (int i = 0; i < kRows; ++i) {
      acc[i] = _mm256_fmadd_ps(T::Load(rows[i] + j * T::kBytes), x, acc[i]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    if (whole < args.k) {
      acc[i] = _mm256_fmadd_ps(LoadTail<T>(rows[i] + whole * T::kBytes, args.k - whole),
                               LoadFloatTail(a + whole, args.k - whole), acc[i]);
    }
    args.out[n + i] = SumLanes(acc[i]);
  }
}

// kN weight rows as floats in the scratch memory times kM rows of activations.
template <int kN, int kM>
void FloatTile(const MatmulArgs& args, const float* weights, int64_t stride, int64_t n, int64_t r) {
  const float* a = args.activations->values + r * args.k;
  const int64_t whole = args.k / 8 * 8;
  __m256 acc[kN][kM];
#pragma GCC unroll 4
  for (int i = 0; i < kN; ++i) {
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m) acc[i][m] = _mm256_setzero_ps();
  }
  for (int64_t j = 0; j < stride; j += 8) {
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m) {
      const float* from = a + m * args.k + j;
      const __m256 x = j < whole ? _mm256_loadu_ps(from) : LoadFloatTail(from, args.k - whole);
#pragma GCC unroll 4
      for (int i = 0; i < kN; ++i) {
        acc[i][m] = _mm256_fmadd_ps(_mm256_loadu_ps(weights + i * stride + j), x, acc[i][m]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kN; ++i) {
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m) {
      args.out[(r + m) * args.out_stride + n + i] = SumLanes(acc[i][m]);
    }
  }
}

template <class T, int kN>
void UnpackedFloatRows(const MatmulArgs& args, int64_t n) {
  const int64_t stride = (args.k + 7) / 8 * 8;
  const int64_t whole = args.k / 8 * 8;
  float* weights = ScratchLayout(args.scratch, args.k).floats;
  for (int i = 0; i < kN; ++i) {
    const uint8_t* row = args.weights + static_cast<size_t>(n + i) * args.row_bytes;
    float* to = weights + i * stride;
    for (int64_t j = 0; j < whole; j += 8) _mm256_storeu_ps(to + j, T::Load(row + j * T::kBytes));
    if (whole < args.k) {
      _mm256_storeu_ps(to + whole, LoadTail<T>(row + whole * T::kBytes, args.k - whole));
    }
  }
  int64_t r = 0;
  for (; r + 2 <= args.rows; r += 2) FloatTile<kN, 2>(args, weights, stride, n, r);
  if (r < args.rows) FloatTile<kN, 1>(args, weights, stride, n, r);
}

template <class T>
void MatmulFloat(const MatmulArgs& args) {
  int64_t n = args.n_begin;
  if (args.rows == 1) {
    for (; n + 4 <= args.n_end; n += 4) DotFloatRows<T, 4>(args, n);
    for (; n < args.n_end; ++n) DotFloatRows<T, 1>(args, n);
    return;
  }
  for (; n + kUnpackedRows <= args.n_end; n += kUnpackedRows) {
    UnpackedFloatRows<T, kUnpackedRows>(args, n);
  }
  for (; n < args.n_end; ++n) UnpackedFloatRows<T, 1>(args, n);
}

}  // namespace

void Avx2Matmul(const MatmulArgs& args) {
  switch (args.type) {
    case WeightType::kF32:
      return MatmulFloat<FloatF32>(args);
    case WeightType::kF16:
      return MatmulFloat<FloatF16>(args);
    case WeightType::kBF16:
      return MatmulFloat<FloatBf16>(args);
    case WeightType::kQ4_0:
      return MatmulQuantized<FormatQ4_0>(args);
    case WeightType::kQ4_1:
      return MatmulQuantized<FormatQ4_1>(args);
    case WeightType::kQ5_0:
      return MatmulQuantized<FormatQ5_0>(args);
    case WeightType::kQ5_1:
      return MatmulQuantized<FormatQ5_1>(args);
    case WeightType::kQ8_0:
      return MatmulQuantized<FormatQ8_0>(args);
    case WeightType::kQ2_K:
      return MatmulQuantized<FormatQ2_K>(args);
    case WeightType::kQ3_K:
      return MatmulQuantized<FormatQ3_K>(args);
    case WeightType::kQ4_K:
      return MatmulQuantized<FormatQ4_K>(args);
    case WeightType::kQ5_K:
      return MatmulQuantized<FormatQ5_K>(args);
    case WeightType::kQ6_K:
      return MatmulQuantized<FormatQ6_K>(args);
    case WeightType::kIQ4_NL:
      return MatmulQuantized<FormatIq4Nl>(args);
    case WeightType::kIQ4_XS:
      return MatmulQuantized<FormatIq4Xs>(args);
    case WeightType::kMXFP4:
      return MatmulQuantized<FormatMxfp4>(args);
  }
}

}  // namespace layercake::kernels
