// Which attention kernel takes which rows of a step, and how its sizes are rounded so that steps of
// one shape can share a recorded graph. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/step_view.h"
#include "kernels/ops.h"

namespace layercake::kernels::cuda {

// `splits` rounded up: exact up to 8, then in steps of an eighth to a quarter. A recorded graph
// serves all lengths of one bucket; the blocks beyond a row's own splits end at once.
int SplitBucket(int splits);

struct RowPlan {
  std::vector<int32_t> decode_rows;    // ascending
  std::vector<RowTile> tiles;          // ascending
  std::vector<int32_t> old_positions;  // as in StepView
  int splits = 1;                      // SplitBucket of the longest row
  int table_stride = 1;                // blocks that `splits` splits take
};

// For a cache of `blocks` blocks. rows_per_tile 0: the tiled kernel does not take this cache.
RowPlan PlanRows(const StepRows& rows, int blocks, int block_tokens, int rows_per_tile);

}  // namespace layercake::kernels::cuda
