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

namespace {

// Of each row: positions before the first block that the step writes. Blocks may be shared by
// sequences, so all that are written count, whoever writes them.
std::vector<int32_t> OldPositions(const StepRows& rows, int blocks, int block_tokens) {
  const auto table_of = [&](int row) {
    return rows.block_tables[static_cast<size_t>(rows.table_index[static_cast<size_t>(row)])];
  };
  std::vector<uint8_t> written(static_cast<size_t>(blocks), 0);
  for (int row = 0; row < rows.rows; ++row) {
    const int32_t block = rows.kv_position[static_cast<size_t>(row)] / block_tokens;
    written[static_cast<size_t>(table_of(row)[static_cast<size_t>(block)])] = 1;
  }
  std::vector<int32_t> old(static_cast<size_t>(rows.rows), 0);
  std::vector<int32_t> of_table(rows.block_tables.size(), -1);
  for (int row = 0; row < rows.rows; ++row) {
    int32_t& known = of_table[static_cast<size_t>(rows.table_index[static_cast<size_t>(row)])];
    if (known < 0) {
      const absl::Span<const int32_t> table = table_of(row);
      const auto first = std::find_if(table.begin(), table.end(), [&](int32_t id) {
        return written[static_cast<size_t>(id)] != 0;
      });
      known = static_cast<int32_t>(first - table.begin()) * block_tokens;
    }
    old[static_cast<size_t>(row)] = known;
  }
  return old;
}

}  // namespace

RowPlan PlanRows(const StepRows& rows, int blocks, int block_tokens, int rows_per_tile) {
  RowPlan plan;
  plan.old_positions = OldPositions(rows, blocks, block_tokens);
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
