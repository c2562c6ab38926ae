// The end of an item's segment in the kernels of matmul_units.h.
#pragma once

#include "kernels/cuda/unit_sums.cuh"
#include "kernels/cuda/unit_swiglu.cuh"

namespace layercake::kernels::cuda {

// Leaves the sums of an item that another block began; otherwise adds what others left of it and
// stores the results.
template <typename Shape>
__device__ __forceinline__ void EndSegment(const UnitArguments& a, const UnitSegment& segment,
                                           const UnitItem& item, UnitSums<Shape>& sums, int warp,
                                           int lane) {
  if (segment.begin > 0) {
    sums.Leave(a);
    return;
  }
  if (segment.end < a.work.blocks) sums.Gather(a, (segment.item + 1) * a.work.blocks);
  if (a.paired()) {
    StoreSwiglu(a, sums, item, warp, lane);
  } else {
    sums.Store(a, item);
  }
}

}  // namespace layercake::kernels::cuda
