// How sampling is laid out on a device: pure arithmetic.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace layercake::kernels::cuda {

// Blocks of a cluster that samples one row. Eight is what every device with clusters has.
inline constexpr int kSampleBlocks = 8;
// What one block's shared memory holds besides logits.
inline constexpr size_t kSampleMemoryBytes = size_t{34} << 10;

struct SamplingShape {
  int blocks = 1;           // of one row: kSampleBlocks, or 1 that reads the row where it lies
  int32_t slice = 0;        // tokens of a block, a multiple of four; the last block's may be fewer
  size_t shared_bytes = 0;  // of one block
};

// Depends on nothing but the device and the vocabulary, never on the number of rows.
inline SamplingShape ChooseSampling(int code_major, int max_shared_bytes, int64_t vocabulary) {
  const int64_t quads = (vocabulary + 3) / 4;
  const int64_t slice = (quads + kSampleBlocks - 1) / kSampleBlocks * 4;
  const size_t bytes = kSampleMemoryBytes + static_cast<size_t>(slice) * sizeof(float);
  if (code_major >= 9 && bytes <= static_cast<size_t>(std::max(max_shared_bytes, 0))) {
    return {kSampleBlocks, static_cast<int32_t>(slice), bytes};
  }
  return {1, static_cast<int32_t>(quads * 4), kSampleMemoryBytes};
}

// The greedy kernel keeps no logits: clusters serve any vocabulary.
inline SamplingShape ChooseGreedy(int code_major, int64_t vocabulary) {
  const int blocks = code_major >= 9 ? kSampleBlocks : 1;
  const int64_t quads = (vocabulary + 3) / 4;
  return {blocks, static_cast<int32_t>((quads + blocks - 1) / blocks * 4), kSampleMemoryBytes};
}

}  // namespace layercake::kernels::cuda
