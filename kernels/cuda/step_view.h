// What kernels know about the rows of a step, and where keys and values lie. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace layercake::kernels::cuda {

// Positions that one block of the decode attention takes: fixed, so that a row's sums are cut the
// same way whatever runs beside it.
inline constexpr int kSplitTokens = 256;

// A sequence with more rows than this in a step is a prompt: its rows go to the tiled kernel. The
// choice depends on the sequence alone, so neighbours do not change a row's bits.
inline constexpr int kMaxDecodeRowsOfSequence = 16;

// Query rows of one sequence at consecutive rows, for the prefill attention.
struct RowTile {
  int32_t first_row;
  int32_t row_count;
};

// Device pointers into the step's data.
struct StepView {
  int rows = 0;
  const int32_t* kv_position = nullptr;    // (rows)
  const int32_t* rope_position = nullptr;  // (rows)
  const int32_t* table_index = nullptr;    // (rows)
  const int32_t* tables = nullptr;         // (sequences, table_stride): block ids
  // (rows): so many first positions of the row's sequence lie in blocks that no row of this step
  // writes; they may be read before the kernels that store keys and values have run.
  const int32_t* old_positions = nullptr;
  int table_stride = 0;
  const int32_t* decode_rows = nullptr;  // (decode_count): rows that the split attention takes
  int decode_count = 0;
  int splits = 0;                  // at least ceil((longest kv_position + 1) / kSplitTokens)
  const RowTile* tiles = nullptr;  // (tile_count): rows that the tiled attention takes
  int tile_count = 0;

  bool operator==(const StepView&) const = default;
};

// KvType, without its header.
enum class KvElement : uint8_t { kFloat32, kFloat16, kBfloat16, kQ8_0 };

// One layer of a cache: (2, blocks, kv_heads, block_tokens, head_dim), keys then values; q8_0 as in
// kv_layout.h.
struct KvView {
  void* keys = nullptr;
  void* values = nullptr;
  KvElement element = KvElement::kFloat16;
  int block_tokens = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

}  // namespace layercake::kernels::cuda
