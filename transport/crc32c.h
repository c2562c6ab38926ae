// CRC-32C (Castagnoli; RFC 3720, appendix B.4): the checksum of frames on host paths.
//
// Thread rule: pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace layercake::transport {

// The CRC-32C of `bytes` appended to data whose CRC-32C is `crc` (0 for none), by the fastest way
// of this processor.
uint32_t ExtendCrc32c(uint32_t crc, absl::Span<const std::byte> bytes);

inline uint32_t Crc32c(absl::Span<const std::byte> bytes) { return ExtendCrc32c(0, bytes); }

// The same by table: the fallback, and the oracle of the tests.
uint32_t ExtendCrc32cByTable(uint32_t crc, absl::Span<const std::byte> bytes);

// Every way that this processor can go, the fastest last.
struct Crc32cWay {
  const char* name;  // "table", "instruction", "folding"
  uint32_t (*extend)(uint32_t crc, absl::Span<const std::byte> bytes);
};
std::vector<Crc32cWay> Crc32cWays();

}  // namespace layercake::transport
