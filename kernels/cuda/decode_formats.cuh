// One unit (16 rows x 256 columns) of each quantised type times one column block of an operand, by
// a warp, on the integer tensor cores.
//
// Weights go into the tensor cores as the integers that they are (shifted to the top of their byte
// where that is cheaper than shifting down, which a constant factor undoes). An activation is
// 256 high + low (operand_layout.h): high parts are even columns of B, low parts odd ones, so a
// thread finds both sums of a token in neighbouring accumulators. Scales that are integers are
// applied by exact integer arithmetic; every bound that keeps it in 31 bits stands beside it, with
// |high|, |low| <= 128. All orders of additions are fixed.
//
// lane = 4 g + t. Accumulators of a lane: rows g and g + 8 of the unit, token 4 n + t of n-tile n.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/operand_layout.h"
#include "kernels/cuda/unit_format.h"

namespace layercake::kernels::cuda {

// Where a lane reads the operand's blocks of one column block. Tokens beyond `rows` read the last
// row: their results are never stored.
template <int kTiles>
struct OperandPlace {
  uint32_t quants[kTiles];
  // For minima two n-tiles share one B of sums: column 2 m is token 4 n + m of the first tile,
  // column 2 m + 1 the same of the second.
  static constexpr int kPairs = (kTiles + 1) / 2;
  uint32_t sums[kPairs];
  uint32_t scale[kTiles];  // of the lane's accumulators

  __device__ OperandPlace(int lane, int rows) {
    constexpr auto kBlock = static_cast<uint32_t>(sizeof(FixedBlock));
    const int t = lane & 3;
    for (int n = 0; n < kTiles; ++n) {
      const auto column_row = static_cast<uint32_t>(min(4 * n + (lane >> 3), rows - 1));
      const auto own_row = static_cast<uint32_t>(min(4 * n + t, rows - 1));
      quants[n] = column_row * kBlock + static_cast<uint32_t>((lane & 7) * 16);
      scale[n] = own_row * kBlock + static_cast<uint32_t>(offsetof(FixedBlock, scale));
    }
    for (int pair = 0; pair < kPairs; ++pair) {
      const int token = 8 * pair + (lane >> 3) + (lane & 4);
      sums[pair] = static_cast<uint32_t>(min(token, rows - 1)) * kBlock;
    }
  }
};

// What one warp multiplies: addresses in shared memory.
struct UnitPair {
  uint32_t unit;
  uint32_t operand;
  int lane;
};

__device__ __forceinline__ uint32_t PlaneWord(const UnitPair& at, int plane, int line) {
  return at.unit + static_cast<uint32_t>(plane + line * 512 + at.lane * 16);
}

template <int kTiles>
__device__ __forceinline__ uint4 OperandQuants(const UnitPair& at,
                                               const OperandPlace<kTiles>& place, int n, int jj) {
  return LoadShared16(at.operand + place.quants[n] + static_cast<uint32_t>(jj * 128));
}

template <int kTiles>
__device__ __forceinline__ float OperandScale(const UnitPair& at, const OperandPlace<kTiles>& place,
                                              int n) {
  return __uint_as_float(LoadShared4(at.operand + place.scale[n]));
}

// The sums of groups of 32 (x high, y low) and of 16 (x, y high, z, w low) for a pair of n-tiles.
template <int kTiles>
__device__ __forceinline__ uint2 OperandSums32(const UnitPair& at,
                                               const OperandPlace<kTiles>& place, int pair) {
  return LoadShared8(at.operand + place.sums[pair] +
                     static_cast<uint32_t>(offsetof(FixedBlock, sums32)) +
                     static_cast<uint32_t>((at.lane & 3) * 8));
}
template <int kTiles>
__device__ __forceinline__ uint4 OperandSums16(const UnitPair& at,
                                               const OperandPlace<kTiles>& place, int pair) {
  return LoadShared16(at.operand + place.sums[pair] +
                      static_cast<uint32_t>(offsetof(FixedBlock, sums16)) +
                      static_cast<uint32_t>((at.lane & 3) * 16));
}

// Sums of minima times group sums: token 4 n + t, row g + 8 r.
template <int kTiles>
struct MinimumSums {
  float value[kTiles][2];

  // The accumulators of a pair of n-tiles.
  __device__ __forceinline__ void Set(int pair, const float (&c)[4]) {
    value[2 * pair][0] = c[0];
    value[2 * pair][1] = c[2];
    if (2 * pair + 1 < kTiles) {
      value[2 * pair + 1][0] = c[1];
      value[2 * pair + 1][1] = c[3];
    }
  }
  // Minima of groups of 32, two halves of groups 2t and 2t + 1 for rows g and g + 8.
  __device__ __forceinline__ void Multiply32(const UnitPair& at, const OperandPlace<kTiles>& place,
                                             uint32_t minima, uint32_t minima8) {
#pragma unroll
    for (int pair = 0; pair < place.kPairs; ++pair) {
      const uint2 sums = OperandSums32(at, place, pair);
      float c[4] = {0, 0, 0, 0};
      MultiplyAddHalf(c, minima, minima8, minima, minima8, sums.x, sums.y);
      Set(pair, c);
    }
  }
  // Minima of groups of 16: of groups 2t and 2t + 1 (first), 2t + 8 and 2t + 9 (second).
  __device__ __forceinline__ void Multiply16(const UnitPair& at, const OperandPlace<kTiles>& place,
                                             const uint32_t (&first)[2],
                                             const uint32_t (&second)[2]) {
#pragma unroll
    for (int pair = 0; pair < place.kPairs; ++pair) {
      const uint4 sums = OperandSums16(at, place, pair);
      float c[4] = {0, 0, 0, 0};
      MultiplyAddHalf(c, first[0], first[1], second[0], second[1], sums.x, sums.y);
      MultiplyAddHalf(c, first[0], first[1], second[0], second[1], sums.z, sums.w);
      Set(pair, c);
    }
  }
};

// Small integers as f16 subnormals (m * 2^-24) times sums / 64: the factor that undoes both.
constexpr float kIntegerMinimumFactor = 1073741824.0f;  // 2^30
constexpr float kHalfMinimumFactor = 64.0f;

// Four weights of each of the four registers of group jj (low) and jj + 4 (high).
struct Registers {
  uint32_t low[4];
  uint32_t high[4];
};

__device__ __forceinline__ void Words(uint32_t (&to)[4], const uint4& from) {
  to[0] = from.x;
  to[1] = from.y;
  to[2] = from.z;
  to[3] = from.w;
}

// Nibbles at the top of their bytes.
__device__ __forceinline__ Registers TopNibbles(const UnitPair& at, int jj) {
  uint32_t words[4];
  Words(words, LoadShared16(PlaneWord(at, 0, jj)));
  Registers registers;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    registers.low[i] = (words[i] << 4) & 0xf0f0f0f0u;
    registers.high[i] = words[i] & 0xf0f0f0f0u;
  }
  return registers;
}

__device__ __forceinline__ uint32_t ShiftTo(uint32_t word, int from, int to) {
  return from <= to ? word << (to - from) : word >> (from - to);
}

// ORs bit j and j + 4 of the bit plane's words into bit `to` of each byte.
__device__ __forceinline__ void AddBits(Registers& registers, const uint32_t (&bits)[4], int jj,
                                        int to) {
  const uint32_t mask = 0x01010101u << to;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    registers.low[i] |= ShiftTo(bits[i], jj, to) & mask;
    registers.high[i] |= ShiftTo(bits[i], jj + 4, to) & mask;
  }
}
// ORs the pair plane's codes of groups jj and jj + 4 into bits `to` and `to` + 1 of each byte.
__device__ __forceinline__ void AddPairs(Registers& registers, const uint32_t (&pairs)[4], int jj,
                                         int to) {
  const uint32_t mask = 0x03030303u << to;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    registers.low[i] |= ShiftTo(pairs[i], 2 * (jj & 1), to) & mask;
    registers.high[i] |= ShiftTo(pairs[i], 2 * (jj & 1) + 4, to) & mask;
  }
}

// The table's 16 signed bytes for the codes of a table plane.
struct ByteTable {
  uint32_t words[4];
};
__device__ __forceinline__ Registers TableCodes(const UnitPair& at, int jj,
                                                const ByteTable& table) {
  uint32_t words[4];
  Words(words, LoadShared16(PlaneWord(at, 0, jj)));
  Registers registers;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Selectors of the two halves of the table, and which half: bit 3 of each code.
    const uint32_t within = words[i] & 0x77777777u;
    const uint32_t half = ((words[i] >> 1) & 0x44444444u) | 0x32103210u;
    registers.low[i] = Permute(Permute(table.words[0], table.words[1], within),
                               Permute(table.words[2], table.words[3], within), half);
    registers.high[i] = Permute(Permute(table.words[0], table.words[1], within >> 16),
                                Permute(table.words[2], table.words[3], within >> 16), half >> 16);
  }
  return registers;
}
__device__ __forceinline__ ByteTable Iq4Table() {
  return {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}};
}
// Twice the values of e2m1.
__device__ __forceinline__ ByteTable Mxfp4Table() {
  return {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}};
}

// The 6-bit scales and minima of Q4_K and Q5_K: bytes j = 0..3 and 4..7.
struct KHeader {
  uint32_t scale[2];
  uint32_t minimum[2];
  float d;
  float minimum_factor;  // of MinimumPair times sums32

  __device__ explicit KHeader(uint32_t address) {
    const uint4 h = LoadShared16(address);
    scale[0] = h.y & 0x3f3f3f3fu;
    scale[1] = (h.w & 0x0f0f0f0fu) | ((h.y >> 2) & 0x30303030u);
    minimum[0] = h.z & 0x3f3f3f3fu;
    minimum[1] = ((h.w >> 4) & 0x0f0f0f0fu) | ((h.z >> 2) & 0x30303030u);
    d = LowHalf(h.x);
    minimum_factor = -kIntegerMinimumFactor * HighHalf(h.x);
  }
  // Minima of groups 2t and 2t + 1 as two halves (subnormals).
  __device__ uint32_t MinimumPair(int t) const {
    const uint32_t first = static_cast<uint32_t>(2 * t);
    // A byte, then zero (no byte of either word is negative: sign-replicating one gives zero).
    return Permute(minimum[0], minimum[1],
                   first | (8u | first) << 4 | (first + 1) << 8 | (8u | (first + 1)) << 12);
  }
};

// high * 256 + low of integer sums that may exceed 31 bits together.
__device__ __forceinline__ float Join(int high, int low) {
  return fmaf(static_cast<float>(high), 256.0f, static_cast<float>(low));
}

// UnitProduct<type>::Add<kTiles>(at, place, sums) adds the unit's product to sums[n][r]: token
// 4 n + t, row g + 8 r.
template <WeightType kType>
struct UnitProduct;

}  // namespace layercake::kernels::cuda
