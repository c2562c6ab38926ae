#include "model/gguf/tensor_type.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"

namespace layercake::model {
namespace {

struct TypeRow {
  TensorType type;
  absl::string_view name;
  TensorBlock block;
};

// Block layouts: ggml's block_* structures.
constexpr std::array<TypeRow, 16> kTypes = {{
    {TensorType::kF32, "F32", {1, 4}},
    {TensorType::kF16, "F16", {1, 2}},
    {TensorType::kQ4_0, "Q4_0", {32, 18}},
    {TensorType::kQ4_1, "Q4_1", {32, 20}},
    {TensorType::kQ5_0, "Q5_0", {32, 22}},
    {TensorType::kQ5_1, "Q5_1", {32, 24}},
    {TensorType::kQ8_0, "Q8_0", {32, 34}},
    {TensorType::kQ2_K, "Q2_K", {256, 84}},
    {TensorType::kQ3_K, "Q3_K", {256, 110}},
    {TensorType::kQ4_K, "Q4_K", {256, 144}},
    {TensorType::kQ5_K, "Q5_K", {256, 176}},
    {TensorType::kQ6_K, "Q6_K", {256, 210}},
    {TensorType::kIQ4_NL, "IQ4_NL", {32, 18}},
    {TensorType::kIQ4_XS, "IQ4_XS", {256, 136}},
    {TensorType::kBF16, "BF16", {1, 2}},
    {TensorType::kMXFP4, "MXFP4", {32, 17}},
}};

const TypeRow* FindRow(uint32_t id) {
  for (const TypeRow& row : kTypes) {
    if (static_cast<uint32_t>(row.type) == id) return &row;
  }
  return nullptr;
}

struct RefusedType {
  uint32_t id;
  absl::string_view name;
};
constexpr RefusedType kRefusedTypes[] = {
    {4, "Q4_2, removed"},
    {5, "Q4_3, removed"},
    {9, "Q8_1"},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {24, "I8"},
    {25, "I16"},
    {26, "I32"},
    {27, "I64"},
    {28, "F64"},
    {29, "IQ1_M"},
    {31, "Q4_0_4_4, removed"},
    {32, "Q4_0_4_8, removed"},
    {33, "Q4_0_8_8, removed"},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
    {36, "IQ4_NL_4_4, removed"},
    {37, "IQ4_NL_4_8, removed"},
    {38, "IQ4_NL_8_8, removed"},
    {40, "NVFP4"},
    {41, "Q1_0"},
    {42, "Q2_0"},
};

}  // namespace

TensorBlock TensorBlockOf(TensorType type) {
  const TypeRow* row = FindRow(static_cast<uint32_t>(type));
  return row != nullptr ? row->block : TensorBlock{1, 1};
}

absl::string_view TensorTypeName(TensorType type) {
  const TypeRow* row = FindRow(static_cast<uint32_t>(type));
  return row != nullptr ? row->name : "invalid";
}

std::optional<TensorType> TensorTypeFromGgufId(uint32_t id) {
  const TypeRow* row = FindRow(id);
  if (row == nullptr) return std::nullopt;
  return row->type;
}

std::string DescribeGgufTypeId(uint32_t id) {
  if (const TypeRow* row = FindRow(id)) return absl::StrCat(row->name, " (id ", id, ")");
  for (const RefusedType& refused : kRefusedTypes) {
    if (refused.id == id) return absl::StrCat(refused.name, " (id ", id, ")");
  }
  return absl::StrCat("unknown type (id ", id, ")");
}

absl::StatusOr<uint64_t> RowBytes(TensorType type, uint64_t k) {
  const TensorBlock block = TensorBlockOf(type);
  if (k == 0 || k % block.elements != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a row of ", k, " elements is not a whole number of ", TensorTypeName(type),
                     " blocks of ", block.elements));
  }
  const std::optional<uint64_t> bytes = base::CheckedMul(k / block.elements, block.bytes);
  if (!bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the bytes of a row of ", k, " elements of ",
                                                   TensorTypeName(type), " do not fit 64 bits"));
  }
  return *bytes;
}

}  // namespace layercake::model
