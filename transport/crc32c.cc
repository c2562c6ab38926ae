#include "transport/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace layercake::transport {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1edc6f41 with its bits reversed

using ByteTable = std::array<uint32_t, 256>;

constexpr std::array<ByteTable, 8> MakeSliceTables() {
  std::array<ByteTable, 8> tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][i] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t i = 0; i < 256; ++i) {
      const uint32_t previous = tables[k - 1][i];
      tables[k][i] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}
constexpr std::array<ByteTable, 8> kSliceTables = MakeSliceTables();

uint64_t LoadLittleEndian64(const std::byte* from) {
  uint64_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Works on the register as it is inside the sum: inverted at both ends by the callers.
uint32_t UpdateByTable(uint32_t crc, const std::byte* at, size_t bytes) {
  while (bytes >= 8) {
    const uint64_t mixed = LoadLittleEndian64(at) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kSliceTables[7 - k][(mixed >> (8 * k)) & 0xff];
    at += 8;
    bytes -= 8;
  }
  for (; bytes > 0; --bytes, ++at) {
    crc = (crc >> 8) ^ kSliceTables[0][(crc ^ static_cast<uint32_t>(*at)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)

// The instruction has a latency of three cycles and a throughput of one, so three blocks are summed
// at once and joined: the register of an earlier block moves over the length of a later one by a
// linear map of its 32 bits, tabulated per byte.
using LinearMap = std::array<uint32_t, 32>;  // image of each bit
using ShiftTable = std::array<ByteTable, 4>;

constexpr uint32_t Apply(const LinearMap& map, uint32_t value) {
  uint32_t image = 0;
  for (size_t bit = 0; value != 0; ++bit, value >>= 1) {
    if ((value & 1) != 0) image ^= map[bit];
  }
  return image;
}

// Moves a register over 2^log2_bytes zero bytes.
constexpr ShiftTable MakeShiftTable(int log2_bytes) {
  LinearMap map{};
  map[0] = kPolynomial;  // one zero bit
  for (size_t bit = 1; bit < 32; ++bit) map[bit] = 1u << (bit - 1);
  for (int doubling = 0; doubling < log2_bytes + 3; ++doubling) {
    LinearMap twice{};
    for (size_t bit = 0; bit < 32; ++bit) twice[bit] = Apply(map, map[bit]);
    map = twice;
  }
  ShiftTable table{};
  for (size_t byte = 0; byte < 4; ++byte) {
    for (uint32_t i = 0; i < 256; ++i) table[byte][i] = Apply(map, i << (8 * byte));
  }
  return table;
}

constexpr int kLongLog2 = 12;
constexpr int kShortLog2 = 8;
constexpr ShiftTable kLongShift = MakeShiftTable(kLongLog2);
constexpr ShiftTable kShortShift = MakeShiftTable(kShortLog2);

uint32_t Shift(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^
         table[3][crc >> 24];
}

__attribute__((target("sse4.2"))) uint32_t UpdateThreeBlocks(uint32_t crc, const std::byte* at,
                                                             size_t block_bytes,
                                                             const ShiftTable& shift) {
  uint64_t first = crc;
  uint64_t second = 0;
  uint64_t third = 0;
  for (size_t i = 0; i < block_bytes; i += 8) {
    first = _mm_crc32_u64(first, LoadLittleEndian64(at + i));
    second = _mm_crc32_u64(second, LoadLittleEndian64(at + block_bytes + i));
    third = _mm_crc32_u64(third, LoadLittleEndian64(at + 2 * block_bytes + i));
  }
  uint32_t joined = Shift(shift, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
  return Shift(shift, joined) ^ static_cast<uint32_t>(third);
}

__attribute__((target("sse4.2"))) uint32_t UpdateByInstruction(uint32_t crc, const std::byte* at,
                                                               size_t bytes) {
  constexpr size_t kLong = size_t{1} << kLongLog2;
  constexpr size_t kShort = size_t{1} << kShortLog2;
  for (; bytes >= 3 * kLong; at += 3 * kLong, bytes -= 3 * kLong) {
    crc = UpdateThreeBlocks(crc, at, kLong, kLongShift);
  }
  for (; bytes >= 3 * kShort; at += 3 * kShort, bytes -= 3 * kShort) {
    crc = UpdateThreeBlocks(crc, at, kShort, kShortShift);
  }
  uint64_t wide = crc;
  for (; bytes >= 8; at += 8, bytes -= 8) wide = _mm_crc32_u64(wide, LoadLittleEndian64(at));
  crc = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes, ++at) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*at));
  return crc;
}

// Long texts by folding (Gopal and others, "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel, 2009): a text is congruent to a shorter one in which a block was
// multiplied, without carries, by the power of x that its distance stands for, and added to a later
// block. Here 256 bytes are folded onto the next 256 until one is left, that into 16 bytes, and
// their sum is taken by the instruction.

// x^power modulo the polynomial, in the order of bits of the sum.
constexpr uint32_t PowerOfX(size_t power) {
  uint32_t value = 0x80000000;  // 1
  for (; power > 0; --power) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
  return value;
}

// What the two halves of 16 bytes are multiplied by to be folded onto those `bytes` bytes later:
// the first half lies 64 bits further away. The shift is for the product of two reversed factors,
// which is one bit short.
struct FoldFactors {
  int64_t first = 0;
  int64_t second = 0;
};
constexpr FoldFactors FactorsOf(size_t bytes) {
  return {static_cast<int64_t>(uint64_t{PowerOfX(8 * bytes + 32)} << 1),
          static_cast<int64_t>(uint64_t{PowerOfX(8 * bytes - 32)} << 1)};
}

#define LAYERCAKE_FOLDING __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.2")))

constexpr size_t kFoldRegisters = 8;
constexpr size_t kFoldBytes = kFoldRegisters * sizeof(__m256i);
constexpr FoldFactors kFoldBlock = FactorsOf(kFoldBytes);
constexpr FoldFactors kFoldRegister = FactorsOf(sizeof(__m256i));
constexpr FoldFactors kFoldHalf = FactorsOf(sizeof(__m128i));

LAYERCAKE_FOLDING inline __m256i Wide(const FoldFactors& factors) {
  return _mm256_set_epi64x(factors.second, factors.first, factors.second, factors.first);
}
LAYERCAKE_FOLDING inline __m256i LoadWide(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
LAYERCAKE_FOLDING inline __m256i FoldOnto(__m256i block, __m256i factors, __m256i later) {
  const __m256i first = _mm256_clmulepi64_epi128(block, factors, 0x00);
  const __m256i second = _mm256_clmulepi64_epi128(block, factors, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(first, second), later);
}

LAYERCAKE_FOLDING uint32_t UpdateByFolding(uint32_t crc, const std::byte* at, size_t bytes) {
  if (bytes < 2 * kFoldBytes) return UpdateByInstruction(crc, at, bytes);
  __m256i block[kFoldRegisters];
  for (size_t i = 0; i < kFoldRegisters; ++i) block[i] = LoadWide(at + i * sizeof(__m256i));
  block[0] =
      _mm256_xor_si256(block[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(crc))));
  at += kFoldBytes;
  bytes -= kFoldBytes;
  const __m256i onto_block = Wide(kFoldBlock);
  for (; bytes >= kFoldBytes; at += kFoldBytes, bytes -= kFoldBytes) {
    for (size_t i = 0; i < kFoldRegisters; ++i) {
      block[i] = FoldOnto(block[i], onto_block, LoadWide(at + i * sizeof(__m256i)));
    }
  }
  const __m256i onto_register = Wide(kFoldRegister);
  for (size_t i = 0; i + 1 < kFoldRegisters; ++i) {
    block[i + 1] = FoldOnto(block[i], onto_register, block[i + 1]);
  }
  const __m256i last = block[kFoldRegisters - 1];
  const __m256i later = _mm256_zextsi128_si256(_mm256_extracti128_si256(last, 1));
  const __m128i rest = _mm256_castsi256_si128(FoldOnto(last, Wide(kFoldHalf), later));
  uint64_t sum = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_extract_epi64(rest, 0)));
  sum = _mm_crc32_u64(sum, static_cast<uint64_t>(_mm_extract_epi64(rest, 1)));
  return UpdateByInstruction(static_cast<uint32_t>(sum), at, bytes);
}

uint32_t ExtendByInstruction(uint32_t crc, absl::Span<const std::byte> bytes) {
  return ~UpdateByInstruction(~crc, bytes.data(), bytes.size());
}
uint32_t ExtendByFolding(uint32_t crc, absl::Span<const std::byte> bytes) {
  return ~UpdateByFolding(~crc, bytes.data(), bytes.size());
}

bool HasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }
bool HasFolding() {
  return HasInstruction() && __builtin_cpu_supports("avx2") != 0 &&
         __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
}

#endif  // defined(__x86_64__)

}  // namespace

uint32_t ExtendCrc32cByTable(uint32_t crc, absl::Span<const std::byte> bytes) {
  return ~UpdateByTable(~crc, bytes.data(), bytes.size());
}

uint32_t ExtendCrc32c(uint32_t crc, absl::Span<const std::byte> bytes) {
#if defined(__x86_64__)
  if (HasFolding()) return ExtendByFolding(crc, bytes);
  if (HasInstruction()) return ExtendByInstruction(crc, bytes);
#endif
  return ExtendCrc32cByTable(crc, bytes);
}

std::vector<Crc32cWay> Crc32cWays() {
  std::vector<Crc32cWay> ways = {{"table", ExtendCrc32cByTable}};
#if defined(__x86_64__)
  if (HasInstruction()) ways.push_back({"instruction", ExtendByInstruction});
  if (HasFolding()) ways.push_back({"folding", ExtendByFolding});
#endif
  return ways;
}

}  // namespace layercake::transport
