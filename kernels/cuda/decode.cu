#include "kernels/cuda/decode.h"
#include "kernels/cuda/decode_kernel.cuh"
#include "kernels/cuda/decode_shape.h"

namespace layercake::kernels::cuda {
namespace {

DecodeFunctions FunctionsOfType(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return DecodeQ4_0();
    case WeightType::kQ4_1:
      return DecodeQ4_1();
    case WeightType::kQ5_0:
      return DecodeQ5_0();
    case WeightType::kQ5_1:
      return DecodeQ5_1();
    case WeightType::kQ8_0:
      return DecodeQ8_0();
    case WeightType::kQ2_K:
      return DecodeQ2_K();
    case WeightType::kQ3_K:
      return DecodeQ3_K();
    case WeightType::kQ4_K:
      return DecodeQ4_K();
    case WeightType::kQ5_K:
      return DecodeQ5_K();
    case WeightType::kQ6_K:
      return DecodeQ6_K();
    case WeightType::kIQ4_NL:
      return DecodeIQ4_NL();
    case WeightType::kIQ4_XS:
      return DecodeIQ4_XS();
    case WeightType::kMXFP4:
      return DecodeMXFP4();
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
      break;
  }
  return {};
}

// The types of a launch; `second` equals `first` when there is one.
struct TypePair {
  WeightType first;
  WeightType second;
};

// The first type of a pair that one kernel takes. Q6_K goes with Q4_K and Q5_K: in the usual mixed
// files v is Q6_K where q and k are not.
bool Ordered(WeightType a, WeightType b, TypePair* pair) {
  *pair = {a, b};
  if (a == b) return true;
  if (a == WeightType::kQ6_K) *pair = {b, a};
  return pair->second == WeightType::kQ6_K &&
         (pair->first == WeightType::kQ4_K || pair->first == WeightType::kQ5_K);
}

bool PairOf(const DecodeProducts& products, TypePair* pair) {
  *pair = {products.product[0].type, products.product[0].type};
  for (int i = 1; i < products.count; ++i) {
    const WeightType type = products.product[i].type;
    if (type == pair->first || type == pair->second) continue;
    if (pair->first != pair->second || !Ordered(pair->first, type, pair)) return false;
  }
  return true;
}

DecodeFunctions FunctionsOfPair(const TypePair& pair) {
  if (pair.first == pair.second) return FunctionsOfType(pair.first);
  return pair.first == WeightType::kQ4_K ? DecodeQ4_KWithQ6_K() : DecodeQ5_KWithQ6_K();
}

cudaError_t Allow(const Context& context, const DecodeFunctions& functions) {
  for (const DecodeFunction function : {functions.tiles1, functions.tiles2, functions.tiles4}) {
    const cudaError_t error = AllowSharedBytes(function, MostDecodeSharedBytes(context));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

size_t DecodePartialsBytes(int sm_count) {
  return DecodeFlagsBytes(sm_count) / sizeof(uint32_t) * (kDecodeMaxRows / 4) * 32 * sizeof(float2);
}
size_t DecodeFlagsBytes(int sm_count) {
  return static_cast<size_t>(sm_count) * kTileUnits * sizeof(uint32_t);
}

bool DecodeTogether(WeightType a, WeightType b) {
  TypePair pair;
  return Ordered(a, b, &pair);
}

cudaError_t PrepareDecode(const Context& context) {
  for (const WeightType type :
       {WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1,
        WeightType::kQ8_0, WeightType::kQ2_K, WeightType::kQ3_K, WeightType::kQ4_K,
        WeightType::kQ5_K, WeightType::kQ6_K, WeightType::kIQ4_NL, WeightType::kIQ4_XS,
        WeightType::kMXFP4}) {
    const cudaError_t error = Allow(context, FunctionsOfType(type));
    if (error != cudaSuccess) return error;
  }
  const cudaError_t error = Allow(context, DecodeQ4_KWithQ6_K());
  return error != cudaSuccess ? error : Allow(context, DecodeQ5_KWithQ6_K());
}

cudaError_t LaunchDecode(const Context& context, const DecodeProducts& products,
                         const FixedBlock* operand, int rows, const DecodeScratch& scratch) {
  TypePair pair;
  if (products.count < 1 || products.count > kDecodeMaxProducts || rows < 1 ||
      rows > kDecodeMaxRows || !PairOf(products, &pair)) {
    return cudaErrorInvalidValue;
  }
  const DecodeFunctions functions = FunctionsOfPair(pair);
  if (functions.tiles1 == nullptr) return cudaErrorInvalidValue;
  DecodeArguments arguments = {};
  arguments.count = products.count;
  arguments.blocks = static_cast<int>(ColumnBlocks(products.k));
  arguments.rows = rows;
  arguments.operand = operand;
  arguments.partials = static_cast<float2*>(scratch.partials);
  arguments.flags = scratch.flags;
  int64_t tiles = 0;
  uint32_t unit_bytes = 0;
  for (int i = 0; i < products.count; ++i) {
    const DecodeProduct& product = products.product[i];
    DecodeSegment& segment = arguments.segment[i];
    const auto bytes = static_cast<uint32_t>(UnitBytes(product.type));
    segment = {static_cast<const uint8_t*>(product.units),
               product.bias,
               product.out,
               product.out_stride,
               static_cast<int>(product.n),
               static_cast<int>(UnitRowCount(product.n)),
               static_cast<int>(tiles),
               bytes,
               product.type != pair.first,
               product.accumulate};
    tiles += (product.n + kTileRows - 1) / kTileRows;
    unit_bytes = bytes > unit_bytes ? bytes : unit_bytes;
  }
  const int64_t items = tiles * arguments.blocks;
  if (items < 1) return cudaErrorInvalidValue;
  const DecodeShape shape = ChooseDecodeShape(context, items, static_cast<int>(unit_bytes), rows);
  if (shape.stages == 0 || items > (int64_t{1} << 32) / (shape.grid + 1)) {
    return cudaErrorInvalidValue;
  }
  arguments.items = static_cast<uint32_t>(items);
  arguments.stages = shape.stages;
  arguments.operand_at = shape.operand_at;
  arguments.stage_bytes = shape.stage_bytes;
  const DecodeFunction function = rows <= 4   ? functions.tiles1
                                  : rows <= 8 ? functions.tiles2
                                              : functions.tiles4;
  return Launch(context, dim3(static_cast<unsigned>(shape.grid)), dim3(kDecodeThreads),
                shape.shared_bytes, function, arguments);
}

}  // namespace layercake::kernels::cuda
