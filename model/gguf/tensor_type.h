// How the numbers of a tensor are stored: the types Layercake reads, their block sizes, and names
// for the ids it knows but refuses. The values are GGUF's own ids (kernels/weight_type.h has the
// same ones, so a checked cast converts). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace layercake::model {

enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

// A row is a sequence of blocks: `elements` values in `bytes` bytes. Both are at least 1.
struct TensorBlock {
  uint32_t elements;
  uint32_t bytes;
};
TensorBlock TensorBlockOf(TensorType type);
// "Q4_K", as the ecosystem writes it.
absl::string_view TensorTypeName(TensorType type);

// nullopt for every id that is not in TensorType: removed, too new, or not a weight type.
std::optional<TensorType> TensorTypeFromGgufId(uint32_t id);
// "NVFP4 (id 40)" for an id with a known name, "unknown type (id 255)" otherwise.
std::string DescribeGgufTypeId(uint32_t id);

// Bytes of one row of `k` elements. InvalidArgument when `k` is zero, not a multiple of the block,
// or so large that the bytes do not fit 64 bits.
absl::StatusOr<uint64_t> RowBytes(TensorType type, uint64_t k);

}  // namespace layercake::model
