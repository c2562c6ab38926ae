// The version of the words in proto/ and of the frames between stages. Workers of another version
// are refused at the handshake, with both versions in the message.
#pragma once

#include <cstdint>

namespace layercake {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr char kSoftwareVersion[] = "0.1.0";

// Message size limits, set on every server and client.
inline constexpr int kMaxInferenceRequestBytes = 16 << 20;
inline constexpr int kMaxInferenceResponseBytes = 4 << 20;
inline constexpr int kMaxControlMessageBytes = 64 << 20;

}  // namespace layercake
