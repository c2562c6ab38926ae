#include "kernels/cuda/hopper_code.h"
#include "kernels/cuda/matmul_units.h"
#include "kernels/cuda/unit_functions.h"
#include "kernels/cuda/unit_reader.cuh"
#include "kernels/cuda/unit_shape.cuh"

namespace layercake::kernels::cuda {
namespace {

constexpr int kMostTokens = 128;

bool ByWgmma(const Context& context) {
  return RunsHopperCode(context) && context.max_shared_bytes >= kUnitSharedBudget;
}

// Null for types without HasUnitMatmul.
UnitFunctions FunctionsFor(const Context& context, WeightType type) {
  return ForQuantisedType(type, UnitFunctions{}, [&]<WeightType kType>() {
    if constexpr (HasUnitMatmul(kType)) {
      return ByWgmma(context) ? UnitsByWgmma<kType>() : UnitsByMma<kType>();
    }
    return UnitFunctions{};
  });
}

const UnitKernelOf& KernelFor(const UnitFunctions& functions, int tokens) {
  return tokens == 32   ? functions.tokens32
         : tokens == 64 ? functions.tokens64
         : tokens == 96 ? functions.tokens96
                        : functions.tokens128;
}

}  // namespace

int UnitItemTokens(int rows) {
  const int items = (rows + kMostTokens - 1) / kMostTokens;
  const int each = (rows + items - 1) / items;
  return (each + 31) / 32 * 32;
}

size_t UnitPartialBytes(int sm_count) {
  return sizeof(float) * static_cast<size_t>(sm_count) * kMostTokens * kItemRows;
}
size_t UnitFlagBytes(int sm_count) {
  return sizeof(uint32_t) * static_cast<size_t>(sm_count) * kItemUnits;
}

cudaError_t PrepareUnitMatmul(const Context& context, WeightType type) {
  const UnitFunctions functions = FunctionsFor(context, type);
  for (const UnitKernelOf& kernel :
       {functions.tokens32, functions.tokens64, functions.tokens96, functions.tokens128}) {
    if (kernel.function == nullptr) return cudaErrorInvalidValue;
    const cudaError_t error = AllowSharedBytes(kernel.function, kernel.shared_bytes);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t MultiplyUnits(const Context& context, WeightType type, const UnitProducts& products,
                          const OperandView& x, int rows, const UnitScratch& scratch) {
  if (!HasUnitMatmul(type) || rows < 1 || products.count < 1 || products.count > kUnitMaxProducts ||
      products.k < 1 || products.k % 32 != 0 || x.tiles == nullptr) {
    return cudaErrorInvalidValue;
  }
  const int tokens = UnitItemTokens(rows);
  UnitArguments a = {};
  a.products = products;
  a.x = x;
  a.rows = rows;
  a.token_tiles = static_cast<uint32_t>((rows + tokens - 1) / tokens);
  a.partials = static_cast<float4*>(scratch.partials);
  a.flags = scratch.flags;
  int64_t items = 0;
  for (int i = 0; i < products.count; ++i) {
    items += (products.product[i].n + kItemRows - 1) / kItemRows;
  }
  items *= a.token_tiles;
  const int64_t steps = items * ColumnBlocks(products.k);
  // RunBegin multiplies the steps of two rounds at most with a block's number.
  if (steps >= int64_t{1} << 31 ||
      2 * ColumnBlocks(products.k) * context.sm_count * context.sm_count >= int64_t{1} << 32) {
    return cudaErrorInvalidValue;
  }
  a.work =
      DealOutUnits(static_cast<uint32_t>(items), static_cast<uint32_t>(ColumnBlocks(products.k)),
                   static_cast<uint32_t>(context.sm_count));
  const UnitFunctions functions = FunctionsFor(context, type);
  const UnitKernelOf& kernel = KernelFor(functions, tokens);
  return Launch(context, dim3(a.work.grid), dim3(static_cast<unsigned>(kernel.threads)),
                kernel.shared_bytes, kernel.function, a);
}

}  // namespace layercake::kernels::cuda
