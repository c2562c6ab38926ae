// Where a thread block stands in its work (unit_work.h).
#pragma once

#include "kernels/cuda/unit_shape.cuh"

namespace layercake::kernels::cuda {

// The column blocks of a block's segments, one after another.
class UnitSteps {
 public:
  __device__ UnitSteps(const UnitArguments& a, int tokens)
      : a_(&a), segments_(a.work, blockIdx.x), tokens_(tokens) {
    NextSegment();
  }
  __device__ __forceinline__ void Next() {
    if (++block_ == segment_.end) NextSegment();
  }
  __device__ bool valid() const { return valid_; }
  __device__ const UnitItem& item() const { return item_; }
  __device__ uint32_t block() const { return block_; }

 private:
  __device__ void NextSegment() {
    valid_ = segments_.Next(&segment_);
    if (!valid_) return;
    item_ = UnitItemAt(*a_, segment_.item, tokens_);
    block_ = segment_.begin;
  }

  const UnitArguments* a_;
  UnitSegments segments_;
  int tokens_;
  bool valid_ = false;
  UnitSegment segment_;
  UnitItem item_ = {};
  uint32_t block_ = 0;
};

}  // namespace layercake::kernels::cuda
