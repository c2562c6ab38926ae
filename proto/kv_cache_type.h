// The types of the KV cache, as flags name them and as both ends of a Session count their bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "layercake/v1/control.pb.h"

namespace layercake {

// "f16", "bf16", "q8_0", "f32": the default first.
std::vector<std::string> KvCacheTypeNames();

// InvalidArgument, with all names, for any other.
absl::StatusOr<v1::KvCacheType> ParseKvCacheType(absl::string_view name);

// "f16"; empty for a type that is not one (an enum from a wire holds any number).
absl::string_view KvCacheTypeName(v1::KvCacheType type);

// Bytes that the key, or the value, of one position and one kv head takes. q8_0 has blocks of 32
// values in 34 bytes, the last one padded. 0 for a type that is not one.
uint64_t KvHeadBytes(v1::KvCacheType type, uint32_t head_dim);

}  // namespace layercake
