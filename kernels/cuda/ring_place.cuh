// Where a thread stands in a ring of shared-memory stages (pipeline.cuh).
#pragma once

#include <cstdint>

namespace layercake::kernels::cuda {

// A place in a ring of kCount stages, and the parity of its turn.
template <int kCount>
struct RingPlace {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++index < kCount) return;
    index = 0;
    parity ^= 1;
  }
};

}  // namespace layercake::kernels::cuda
