#include "kernels/weight_type.h"

namespace layercake::kernels {
namespace {

struct TypeRow {
  WeightType type;
  absl::string_view name;
  BlockShape block;
};

constexpr TypeRow kTypes[] = {
    {WeightType::kF32, "F32", {1, 4}},         {WeightType::kF16, "F16", {1, 2}},
    {WeightType::kQ4_0, "Q4_0", {32, 18}},     {WeightType::kQ4_1, "Q4_1", {32, 20}},
    {WeightType::kQ5_0, "Q5_0", {32, 22}},     {WeightType::kQ5_1, "Q5_1", {32, 24}},
    {WeightType::kQ8_0, "Q8_0", {32, 34}},     {WeightType::kQ2_K, "Q2_K", {256, 84}},
    {WeightType::kQ3_K, "Q3_K", {256, 110}},   {WeightType::kQ4_K, "Q4_K", {256, 144}},
    {WeightType::kQ5_K, "Q5_K", {256, 176}},   {WeightType::kQ6_K, "Q6_K", {256, 210}},
    {WeightType::kIQ4_NL, "IQ4_NL", {32, 18}}, {WeightType::kIQ4_XS, "IQ4_XS", {256, 136}},
    {WeightType::kBF16, "BF16", {1, 2}},       {WeightType::kMXFP4, "MXFP4", {32, 17}},
};

}  // namespace

BlockShape BlockShapeOf(WeightType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.block;
  }
  return BlockShape{};
}

absl::string_view WeightTypeName(WeightType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.name;
  }
  return "unknown";
}

}  // namespace layercake::kernels
