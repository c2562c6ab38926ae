// Fixed-width little-endian fields of frames, offers and handshakes.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace layercake::transport {

template <std::unsigned_integral T>
void StoreLittleEndian(std::byte* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<std::byte>((static_cast<uint64_t>(value) >> (8 * i)) & 0xff);
  }
}

template <std::unsigned_integral T>
T LoadLittleEndian(const std::byte* from) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(from[i]) << (8 * i);
  return static_cast<T>(value);
}

}  // namespace layercake::transport
