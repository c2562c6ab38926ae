// The weight formats for AVX2: the twins of cpu/unpack.cc, equal to it to the bit.
//
// A format has
//   kType, kBytes of a block, kGroups of 32 weights in a block
//   Scales(row, groups, scales, minima): all float scales (and minima) of a row, zero up to the
//     padded count (cpu_kernels.h)
//   Prepare(block): what the groups of one block share
//   Unpack<g>(block, shared, lo, hi): weights 0 to 15 and 16 to 31 of group g as int16
//
// Only for files compiled for AVX2; everything is in an unnamed namespace, so that no copy of it
// is ever shared with other files.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/cpu_kernels.h"

namespace layercake::kernels {
namespace {

inline uint16_t Load16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline uint32_t Load32(const uint8_t* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline float LoadHalf(const uint8_t* from) { return _cvtsh_ss(Load16(from)); }

inline __m128i Load128(const uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

// 16 bytes as 16 int16.
inline __m256i Widen(const uint8_t* from) { return _mm256_cvtepu8_epi16(Load128(from)); }

// All ones in lanes below `count`.
inline __m256 FirstLanes(int64_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const auto limit = static_cast<int>(count < 8 ? count : 8);
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(limit), lane));
}

// The addresses of eight blocks, of which `left` exist; the last stands in for the others.
struct EightBlocks {
  const uint8_t* at[8];
  EightBlocks(const uint8_t* first, int64_t bytes, int64_t left) {
    for (int64_t i = 0; i < 8; ++i) at[i] = first + bytes * (i < left ? i : left - 1);
  }
};

// The f16 at the start of eight blocks.
inline __m256 LeadingHalves(const EightBlocks& blocks) {
  __m128i halves = _mm_cvtsi32_si128(Load16(blocks.at[0]));
  halves = _mm_insert_epi16(halves, Load16(blocks.at[1]), 1);
  halves = _mm_insert_epi16(halves, Load16(blocks.at[2]), 2);
  halves = _mm_insert_epi16(halves, Load16(blocks.at[3]), 3);
  halves = _mm_insert_epi16(halves, Load16(blocks.at[4]), 4);
  halves = _mm_insert_epi16(halves, Load16(blocks.at[5]), 5);
  halves = _mm_insert_epi16(halves, Load16(blocks.at[6]), 6);
  halves = _mm_insert_epi16(halves, Load16(blocks.at[7]), 7);
  return _mm256_cvtph_ps(halves);
}

inline __m128i LeadingWords(const uint8_t* const* blocks) {
  __m128i words = _mm_cvtsi32_si128(static_cast<int>(Load32(blocks[0])));
  words = _mm_insert_epi32(words, static_cast<int>(Load32(blocks[1])), 1);
  words = _mm_insert_epi32(words, static_cast<int>(Load32(blocks[2])), 2);
  return _mm_insert_epi32(words, static_cast<int>(Load32(blocks[3])), 3);
}

// Rows whose blocks start with one f16 scale.
inline void HalfScales(const uint8_t* row, int64_t bytes, int64_t groups, float* scales) {
  int64_t g = 0;
  for (; g + 8 <= groups; g += 8) {
    _mm256_storeu_ps(scales + g, LeadingHalves(EightBlocks(row + g * bytes, bytes, 8)));
  }
  if (g < groups) {
    const __m256 d = LeadingHalves(EightBlocks(row + g * bytes, bytes, groups - g));
    _mm256_storeu_ps(scales + g, _mm256_and_ps(d, FirstLanes(groups - g)));
  }
}

inline void SplitHalves(const EightBlocks& blocks, __m256 lanes, float* scales, float* minima) {
  const __m128i first = LeadingWords(blocks.at);
  const __m128i second = LeadingWords(blocks.at + 4);
  const __m128i low_half = _mm_set1_epi32(0xFFFF);
  const __m128i d =
      _mm_packus_epi32(_mm_and_si128(first, low_half), _mm_and_si128(second, low_half));
  const __m128i m = _mm_packus_epi32(_mm_srli_epi32(first, 16), _mm_srli_epi32(second, 16));
  _mm256_storeu_ps(scales, _mm256_and_ps(_mm256_cvtph_ps(d), lanes));
  _mm256_storeu_ps(minima, _mm256_and_ps(_mm256_cvtph_ps(m), lanes));
}

// Rows whose blocks start with an f16 scale and an f16 minimum.
inline void HalfScalesAndMinima(const uint8_t* row, int64_t bytes, int64_t groups, float* scales,
                                float* minima) {
  int64_t g = 0;
  for (; g + 8 <= groups; g += 8) {
    SplitHalves(EightBlocks(row + g * bytes, bytes, 8), FirstLanes(8), scales + g, minima + g);
  }
  if (g < groups) {
    SplitHalves(EightBlocks(row + g * bytes, bytes, groups - g), FirstLanes(groups - g), scales + g,
                minima + g);
  }
}

struct NothingShared {};

// Bits 0 to 15 of `bits` as 16 where set, per int16 lane.
inline __m256i Sixteens(uint16_t bits) {
  const __m256i mask =
      _mm256_setr_epi16(0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100, 0x200, 0x400, 0x800,
                        0x1000, 0x2000, 0x4000, static_cast<short>(0x8000));
  const __m256i chosen = _mm256_and_si256(_mm256_set1_epi16(static_cast<short>(bits)), mask);
  return _mm256_and_si256(_mm256_cmpeq_epi16(chosen, mask), _mm256_set1_epi16(16));
}

struct Nibbles {
  __m256i low, high;
  explicit Nibbles(const uint8_t* qs) {
    const __m256i wide = Widen(qs);
    low = _mm256_and_si256(wide, _mm256_set1_epi16(15));
    high = _mm256_srli_epi16(wide, 4);
  }
};

// Nibbles through a table of 16 signed bytes.
inline void LookUp(const uint8_t* qs, __m128i table, __m256i& lo, __m256i& hi) {
  const __m128i bytes = Load128(qs);
  const __m128i nibble = _mm_set1_epi8(15);
  lo = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(table, _mm_and_si128(bytes, nibble)));
  hi = _mm256_cvtepi8_epi16(
      _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble)));
}

inline __m128i Iq4Table() {
  return _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
}

// Formats of one group a block that start with an f16 scale; with an f16 scale and an f16 minimum.
template <WeightType type, int bytes>
struct Scaled {
  static constexpr WeightType kType = type;
  static constexpr int kBytes = bytes;
  static constexpr int kGroups = 1;
  static void Scales(const uint8_t* row, int64_t groups, float* scales, float*) {
    HalfScales(row, kBytes, groups, scales);
  }
  static NothingShared Prepare(const uint8_t*) { return {}; }
};
template <WeightType type, int bytes>
struct ScaledWithMinimum : Scaled<type, bytes> {
  static void Scales(const uint8_t* row, int64_t groups, float* scales, float* minima) {
    HalfScalesAndMinima(row, bytes, groups, scales, minima);
  }
};

struct FormatQ4_0 : Scaled<WeightType::kQ4_0, 18> {
  template <int g>
  static void Unpack(const uint8_t* block, NothingShared, __m256i& lo, __m256i& hi) {
    const Nibbles q(block + 2);
    lo = _mm256_sub_epi16(q.low, _mm256_set1_epi16(8));
    hi = _mm256_sub_epi16(q.high, _mm256_set1_epi16(8));
  }
};

struct FormatQ4_1 : ScaledWithMinimum<WeightType::kQ4_1, 20> {
  template <int g>
  static void Unpack(const uint8_t* block, NothingShared, __m256i& lo, __m256i& hi) {
    const Nibbles q(block + 4);
    lo = q.low;
    hi = q.high;
  }
};

struct FormatQ5_0 : Scaled<WeightType::kQ5_0, 22> {
  template <int g>
  static void Unpack(const uint8_t* block, NothingShared, __m256i& lo, __m256i& hi) {
    const Nibbles q(block + 6);
    const __m256i sixteen = _mm256_set1_epi16(16);
    lo = _mm256_sub_epi16(_mm256_or_si256(q.low, Sixteens(Load16(block + 2))), sixteen);
    hi = _mm256_sub_epi16(_mm256_or_si256(q.high, Sixteens(Load16(block + 4))), sixteen);
  }
};

struct FormatQ5_1 : ScaledWithMinimum<WeightType::kQ5_1, 24> {
  template <int g>
  static void Unpack(const uint8_t* block, NothingShared, __m256i& lo, __m256i& hi) {
    const Nibbles q(block + 8);
    lo = _mm256_or_si256(q.low, Sixteens(Load16(block + 4)));
    hi = _mm256_or_si256(q.high, Sixteens(Load16(block + 6)));
  }
};

struct FormatQ8_0 : Scaled<WeightType::kQ8_0, 34> {
  template <int g>
  static void Unpack(const uint8_t* block, NothingShared, __m256i& lo, __m256i& hi) {
    lo = _mm256_cvtepi8_epi16(Load128(block + 2));
    hi = _mm256_cvtepi8_epi16(Load128(block + 18));
  }
};

struct FormatIq4Nl : Scaled<WeightType::kIQ4_NL, 18> {
  template <int g>
  static void Unpack(const uint8_t* block, NothingShared, __m256i& lo, __m256i& hi) {
    LookUp(block + 2, Iq4Table(), lo, hi);
  }
};

struct FormatMxfp4 {
  static constexpr WeightType kType = WeightType::kMXFP4;
  static constexpr int kBytes = 17;
  static constexpr int kGroups = 1;
  static void Scales(const uint8_t* row, int64_t groups, float* scales, float*) {
    for (int64_t g = 0; g < groups; g += 8) {
      const EightBlocks blocks(row + g * kBytes, kBytes, groups - g);
      alignas(32) int32_t exponents[8];
      for (int i = 0; i < 8; ++i) exponents[i] = *blocks.at[i];
      const __m256i e = _mm256_load_si256(reinterpret_cast<const __m256i*>(exponents));
      // 2^(e - 128): exponent field e - 1, or a denormal for e < 2.
      const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
      const __m256i denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
      const __m256i bits =
          _mm256_blendv_epi8(denormal, normal, _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1)));
      _mm256_storeu_ps(scales + g,
                       _mm256_and_ps(_mm256_castsi256_ps(bits), FirstLanes(groups - g)));
    }
  }
  static NothingShared Prepare(const uint8_t*) { return {}; }
  template <int g>
  static void Unpack(const uint8_t* block, NothingShared, __m256i& lo, __m256i& hi) {
    const __m128i table = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    LookUp(block + 1, table, lo, hi);
  }
};

// The integer scales of a block's 16 groups of 16, as int16, twice: groups 0 to 7 in both halves
// of `first`, 8 to 15 in both of `second`.
struct GroupScales {
  __m256i first, second;
  GroupScales() = default;
  explicit GroupScales(__m128i bytes) {
    const __m256i wide = _mm256_cvtepi8_epi16(bytes);
    first = _mm256_permute2x128_si256(wide, wide, 0x00);
    second = _mm256_permute2x128_si256(wide, wide, 0x11);
  }
  // The scale of group `i` in every lane.
  template <int i>
  __m256i Of() const {
    constexpr int at = 2 * (i % 8);
    return _mm256_shuffle_epi8(i < 8 ? first : second,
                               _mm256_set1_epi16(static_cast<short>(at | ((at + 1) << 8))));
  }
  // Weights of groups 2g and 2g + 1 times their scales.
  template <int g>
  void Apply(__m256i& lo, __m256i& hi) const {
    lo = _mm256_mullo_epi16(lo, Of<2 * g>());
    hi = _mm256_mullo_epi16(hi, Of<2 * g + 1>());
  }
};

// Rows of blocks of 256 with one float scale at `offset`.
inline void BlockScales(const uint8_t* row, int bytes, int offset, int64_t groups, float* scales) {
  for (int64_t b = 0; b < groups / 8; ++b) {
    _mm256_storeu_ps(scales + 8 * b, _mm256_set1_ps(LoadHalf(row + b * bytes + offset)));
  }
}

// Four shifted left where n is positive, right where negative.
template <int n>
inline __m256i ShiftLeft(__m256i value) {
  if constexpr (n >= 0) return _mm256_slli_epi16(value, n);
  return _mm256_srli_epi16(value, n < 0 ? -n : 0);
}

struct FormatQ2_K {
  static constexpr WeightType kType = WeightType::kQ2_K;
  static constexpr int kBytes = 84;
  static constexpr int kGroups = 8;
  static void Scales(const uint8_t* row, int64_t groups, float* scales, float* minima) {
    BlockScales(row, kBytes, 80, groups, scales);
    for (int64_t b = 0; b < groups / 8; ++b) {
      const uint8_t* block = row + b * kBytes;
      const __m256 dmin = _mm256_set1_ps(-LoadHalf(block + 82));
      const __m128i m = _mm_and_si128(_mm_srli_epi16(Load128(block), 4), _mm_set1_epi8(15));
      const __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(m));
      const __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(m, 8)));
      _mm256_storeu_ps(minima + 16 * b, _mm256_mul_ps(dmin, low));
      _mm256_storeu_ps(minima + 16 * b + 8, _mm256_mul_ps(dmin, high));
    }
  }
  static GroupScales Prepare(const uint8_t* block) {
    return GroupScales(_mm_and_si128(Load128(block), _mm_set1_epi8(15)));
  }
  template <int g>
  static void Unpack(const uint8_t* block, const GroupScales& shared, __m256i& lo, __m256i& hi) {
    const uint8_t* qs = block + 16 + 32 * (g / 4);
    const __m256i three = _mm256_set1_epi16(3);
    lo = _mm256_and_si256(_mm256_srli_epi16(Widen(qs), 2 * (g % 4)), three);
    hi = _mm256_and_si256(_mm256_srli_epi16(Widen(qs + 16), 2 * (g % 4)), three);
    shared.Apply<g>(lo, hi);
  }
};

struct FormatQ3_K {
  static constexpr WeightType kType = WeightType::kQ3_K;
  static constexpr int kBytes = 110;
  static constexpr int kGroups = 8;
  static void Scales(const uint8_t* row, int64_t groups, float* scales, float*) {
    BlockScales(row, kBytes, 108, groups, scales);
  }
  static GroupScales Prepare(const uint8_t* block) {
    const uint8_t* s = block + 96;
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(s));
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i low = _mm_unpacklo_epi64(_mm_and_si128(bytes, nibble),
                                           _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble));
    const uint32_t h = Load32(s + 8);
    const __m128i top =
        _mm_and_si128(_mm_setr_epi32(static_cast<int>(h), static_cast<int>(h >> 2),
                                     static_cast<int>(h >> 4), static_cast<int>(h >> 6)),
                      _mm_set1_epi8(3));
    return GroupScales(_mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(top, 4)), _mm_set1_epi8(32)));
  }
  template <int g>
  static __m256i Sixteen(const uint8_t* qs, const uint8_t* high) {
    const __m256i q =
        _mm256_and_si256(_mm256_srli_epi16(Widen(qs), 2 * (g % 4)), _mm256_set1_epi16(3));
    const __m256i four = _mm256_set1_epi16(4);
    const __m256i bit = _mm256_and_si256(ShiftLeft<2 - g>(Widen(high)), four);
    return _mm256_sub_epi16(_mm256_or_si256(q, bit), four);
  }
  template <int g>
  static void Unpack(const uint8_t* block, const GroupScales& shared, __m256i& lo, __m256i& hi) {
    const uint8_t* qs = block + 32 + 32 * (g / 4);
    lo = Sixteen<g>(qs, block);
    hi = Sixteen<g>(qs + 16, block + 16);
    shared.Apply<g>(lo, hi);
  }
};

// The 6-bit scales and minima of Q4_K and Q5_K, four to a word.
inline void KScalesAndMinima(const uint8_t* row, int bytes, int64_t groups, float* scales,
                             float* minima) {
  for (int64_t b = 0; b < groups / 8; ++b) {
    const uint8_t* block = row + b * bytes;
    const uint32_t w0 = Load32(block + 4);
    const uint32_t w1 = Load32(block + 8);
    const uint32_t w2 = Load32(block + 12);
    const uint32_t scale_high = (w2 & 0x0F0F0F0F) | (((w0 >> 6) & 0x03030303) << 4);
    const uint32_t minimum_high = ((w2 >> 4) & 0x0F0F0F0F) | (((w1 >> 6) & 0x03030303) << 4);
    const __m128i packed =
        _mm_setr_epi32(static_cast<int>(w0 & 0x3F3F3F3F), static_cast<int>(scale_high),
                       static_cast<int>(w1 & 0x3F3F3F3F), static_cast<int>(minimum_high));
    const __m256 scale = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(packed));
    const __m256 minimum =
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(packed, packed)));
    _mm256_storeu_ps(scales + 8 * b, _mm256_mul_ps(_mm256_set1_ps(LoadHalf(block)), scale));
    _mm256_storeu_ps(minima + 8 * b, _mm256_mul_ps(_mm256_set1_ps(-LoadHalf(block + 2)), minimum));
  }
}

// Group g of 4-bit weights where 32 bytes hold two groups, low nibbles first.
template <int g>
inline void PairedNibbles(const uint8_t* qs, __m256i& lo, __m256i& hi) {
  lo = Widen(qs + 32 * (g / 2));
  hi = Widen(qs + 32 * (g / 2) + 16);
  if constexpr (g % 2 == 0) {
    lo = _mm256_and_si256(lo, _mm256_set1_epi16(15));
    hi = _mm256_and_si256(hi, _mm256_set1_epi16(15));
  } else {
    lo = _mm256_srli_epi16(lo, 4);
    hi = _mm256_srli_epi16(hi, 4);
  }
}

struct FormatQ4_K {
  static constexpr WeightType kType = WeightType::kQ4_K;
  static constexpr int kBytes = 144;
  static constexpr int kGroups = 8;
  static void Scales(const uint8_t* row, int64_t groups, float* scales, float* minima) {
    KScalesAndMinima(row, kBytes, groups, scales, minima);
  }
  static NothingShared Prepare(const uint8_t*) { return {}; }
  template <int g>
  static void Unpack(const uint8_t* block, NothingShared, __m256i& lo, __m256i& hi) {
    PairedNibbles<g>(block + 16, lo, hi);
  }
};

struct FormatQ5_K {
  static constexpr WeightType kType = WeightType::kQ5_K;
  static constexpr int kBytes = 176;
  static constexpr int kGroups = 8;
  static void Scales(const uint8_t* row, int64_t groups, float* scales, float* minima) {
    KScalesAndMinima(row, kBytes, groups, scales, minima);
  }
  static NothingShared Prepare(const uint8_t*) { return {}; }
  template <int g>
  static void Unpack(const uint8_t* block, NothingShared, __m256i& lo, __m256i& hi) {
    PairedNibbles<g>(block + 48, lo, hi);
    const __m256i sixteen = _mm256_set1_epi16(16);
    lo = _mm256_or_si256(lo, _mm256_and_si256(ShiftLeft<4 - g>(Widen(block + 16)), sixteen));
    hi = _mm256_or_si256(hi, _mm256_and_si256(ShiftLeft<4 - g>(Widen(block + 32)), sixteen));
  }
};

struct FormatQ6_K {
  static constexpr WeightType kType = WeightType::kQ6_K;
  static constexpr int kBytes = 210;
  static constexpr int kGroups = 8;
  static void Scales(const uint8_t* row, int64_t groups, float* scales, float*) {
    BlockScales(row, kBytes, 208, groups, scales);
  }
  static GroupScales Prepare(const uint8_t* block) { return GroupScales(Load128(block + 192)); }
  template <int g>
  static __m256i Sixteen(const uint8_t* low, const uint8_t* high) {
    constexpr int part = g % 4;
    __m256i nibble = Widen(low);
    if constexpr (part >= 2) {
      nibble = _mm256_srli_epi16(nibble, 4);
    } else {
      nibble = _mm256_and_si256(nibble, _mm256_set1_epi16(15));
    }
    const __m256i top =
        _mm256_and_si256(ShiftLeft<4 - 2 * part>(Widen(high)), _mm256_set1_epi16(0x30));
    return _mm256_sub_epi16(_mm256_or_si256(nibble, top), _mm256_set1_epi16(32));
  }
  template <int g>
  static void Unpack(const uint8_t* block, const GroupScales& shared, __m256i& lo, __m256i& hi) {
    const uint8_t* low = block + 64 * (g / 4) + 32 * (g % 2);
    const uint8_t* high = block + 128 + 32 * (g / 4);
    lo = Sixteen<g>(low, high);
    hi = Sixteen<g>(low + 16, high + 16);
    shared.Apply<g>(lo, hi);
  }
};

struct FormatIq4Xs {
  static constexpr WeightType kType = WeightType::kIQ4_XS;
  static constexpr int kBytes = 136;
  static constexpr int kGroups = 8;
  static void Scales(const uint8_t* row, int64_t groups, float* scales, float*) {
    for (int64_t b = 0; b < groups / 8; ++b) {
      const uint8_t* block = row + b * kBytes;
      const __m256i low =
          _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(Load32(block + 4))),
                                             _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
                           _mm256_set1_epi32(15));
      const __m256i high =
          _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(Load16(block + 2)),
                                             _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                           _mm256_set1_epi32(3));
      const __m256i scale =
          _mm256_sub_epi32(_mm256_or_si256(low, _mm256_slli_epi32(high, 4)), _mm256_set1_epi32(32));
      _mm256_storeu_ps(scales + 8 * b,
                       _mm256_mul_ps(_mm256_set1_ps(LoadHalf(block)), _mm256_cvtepi32_ps(scale)));
    }
  }
  static NothingShared Prepare(const uint8_t*) { return {}; }
  template <int g>
  static void Unpack(const uint8_t* block, NothingShared, __m256i& lo, __m256i& hi) {
    LookUp(block + 8 + 16 * g, Iq4Table(), lo, hi);
  }
};

}  // namespace
}  // namespace layercake::kernels
