// How the products of matmul_units.h are dealt out to the blocks of a grid. Plain arithmetic, for
// host and device code.
//
// An item is kItemRows rows of a matrix times kTokens rows of activations, over all column blocks.
// Whole rounds of items, one for each block, are dealt out as they are; what is left, between one
// and two rounds (or all, where there is less than that), is cut into equal runs of column blocks.
// Runs come first, so that what others wait for is there early; a block's run begins with the end
// of an item that another block began, if with any.
#pragma once

#include <cstdint>

#include "kernels/cuda/unit_layout.h"

namespace layercake::kernels::cuda {

inline constexpr int kItemUnits = 16;  // two tiles of the unit layout
inline constexpr int kItemRows = kItemUnits * kUnitRows;

struct UnitWork {
  uint32_t blocks = 0;       // column blocks of an item
  uint32_t split_items = 0;  // the first ones, cut
  uint32_t rounds = 0;       // of whole items behind them
  uint32_t grid = 0;

  // The column blocks of cut items, one item after another, that belong to block i.
  LAYERCAKE_HOST_DEVICE uint32_t RunBegin(uint32_t i) const {
    return split_items * blocks * i / grid;
  }
};

// The work of `items` items of `blocks` column blocks for up to `most` blocks of the grid.
// items * blocks * most is below 2^32 (checked by the caller).
LAYERCAKE_HOST_DEVICE constexpr UnitWork DealOutUnits(uint32_t items, uint32_t blocks,
                                                      uint32_t most) {
  UnitWork work;
  work.blocks = blocks;
  work.grid = items * blocks < most ? items * blocks : most;
  const uint32_t rounds = items / work.grid;
  work.rounds = rounds > 1 ? rounds - 1 : 0;
  work.split_items = items - work.rounds * work.grid;
  return work;
}

// Column blocks [begin, end) of one item.
struct UnitSegment {
  uint32_t item = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

// The segments of one block of the grid, in order.
class UnitSegments {
 public:
  LAYERCAKE_HOST_DEVICE UnitSegments(const UnitWork& work, uint32_t block)
      : work_(&work),
        block_(block),
        at_(work.RunBegin(block)),
        run_end_(work.RunBegin(block + 1)) {}

  // False when there are no more.
  LAYERCAKE_HOST_DEVICE bool Next(UnitSegment* segment) {
    if (at_ < run_end_) {
      segment->item = at_ / work_->blocks;
      segment->begin = at_ - segment->item * work_->blocks;
      const uint32_t left = run_end_ - at_;
      const uint32_t to_end = work_->blocks - segment->begin;
      segment->end = segment->begin + (left < to_end ? left : to_end);
      at_ += segment->end - segment->begin;
      return true;
    }
    if (round_ == work_->rounds) return false;
    segment->item = work_->split_items + round_ * work_->grid + block_;
    segment->begin = 0;
    segment->end = work_->blocks;
    ++round_;
    return true;
  }

 private:
  const UnitWork* work_;
  uint32_t block_;
  uint32_t at_;
  uint32_t run_end_;
  uint32_t round_ = 0;
};

}  // namespace layercake::kernels::cuda
