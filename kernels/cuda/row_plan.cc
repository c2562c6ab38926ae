#include "kernels/cuda/row_plan.h"

#include <algorithm>
#include <bit>

namespace layercake::kernels::cuda {

int SplitBucket(int splits) {
  if (splits <= 8) return std::max(splits, 1);
  // Four buckets for each power of two.
  const int step = static_cast<int>(std::bit_floor(static_cast<unsigned>(splits - 1))) / 4;
  return (splits + step - 1) / step * step;
}

RowPlan PlanRows(const StepRows& rows, int block_tokens, int rows_per_tile) {
  RowPlan plan;
  int longest = 0;
  for (const int32_t position : rows.kv_position) longest = std::max(longest, position);
  plan.splits = SplitBucket(longest / kSplitTokens + 1);
  plan.table_stride = (plan.splits * kSplitTokens + block_tokens - 1) / block_tokens;
  for (int first = 0; first < rows.rows;) {
    // A run: rows of one sequence at consecutive positions.
    const auto at = [](absl::Span<const int32_t> values, int row) {
      return values[static_cast<size_t>(row)];
    };
    int end = first + 1;
    while (end < rows.rows && at(rows.table_index, end) == at(rows.table_index, first) &&
           at(rows.kv_position, end) == at(rows.kv_position, end - 1) + 1) {
      ++end;
    }
    if (rows_per_tile > 0 && end - first > kMaxDecodeRowsOfSequence) {
      for (int row = first; row < end; row += rows_per_tile) {
        plan.tiles.push_back({row, std::min(rows_per_tile, end - row)});
      }
    } else {
      for (int row = first; row < end; ++row) plan.decode_rows.push_back(row);
    }
    first = end;
  }
  return plan;
}

}  // namespace layercake::kernels::cuda
