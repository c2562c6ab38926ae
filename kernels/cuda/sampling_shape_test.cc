#include "kernels/cuda/sampling_shape.h"

#include <gtest/gtest.h>

namespace layercake::kernels::cuda {
namespace {

constexpr int kHopperShared = 227 << 10;

TEST(SamplingShape, CutsEveryVocabularyIntoSlicesOfWholeQuads) {
  for (const int64_t vocabulary : {1, 4, 31, 32, 33, 1025, 32000, 49152, 151936, 152064, 262144}) {
    const SamplingShape shape = ChooseSampling(9, kHopperShared, vocabulary);
    EXPECT_EQ(shape.blocks, kSampleBlocks) << vocabulary;
    EXPECT_EQ(shape.slice % 4, 0) << vocabulary;
    EXPECT_GE(int64_t{shape.slice} * shape.blocks, vocabulary);
    // No more than the slices' own rounding is left over.
    EXPECT_LT((int64_t{shape.slice} - 4) * shape.blocks, vocabulary);
    EXPECT_LE(shape.shared_bytes, static_cast<size_t>(kHopperShared));
  }
}

// 228 KB of shared memory in a multiprocessor, of which each block takes one for the system.
TEST(SamplingShape, LetsTwoBlocksOfAUsualVocabularyShareAMultiprocessor) {
  for (const int64_t vocabulary : {32000, 128256, 151936, 152064}) {
    const size_t bytes = ChooseSampling(9, kHopperShared, vocabulary).shared_bytes;
    EXPECT_LE(2 * (bytes + 1024), size_t{228} << 10) << vocabulary;
  }
}

TEST(SamplingShape, LeavesTheRowToOneBlockWithoutClustersOrRoom) {
  for (const SamplingShape& shape :
       {ChooseSampling(8, kHopperShared, 152064), ChooseSampling(9, 64 << 10, 152064),
        ChooseSampling(9, kHopperShared, 2000000), ChooseSampling(9, 0, 32)}) {
    EXPECT_EQ(shape.blocks, 1);
    EXPECT_EQ(shape.shared_bytes, kSampleMemoryBytes);  // no more than a block has unasked
  }
  EXPECT_LE(kSampleMemoryBytes, size_t{48} << 10);
  EXPECT_EQ(ChooseSampling(8, kHopperShared, 31).slice, 32);
}

TEST(SamplingShape, UsesClustersForGreedyRowsOfAnySize) {
  EXPECT_EQ(ChooseGreedy(9, 2000000).blocks, kSampleBlocks);
  EXPECT_EQ(ChooseGreedy(9, 2000000).slice, 250000);
  EXPECT_EQ(ChooseGreedy(8, 31).blocks, 1);
  EXPECT_EQ(ChooseGreedy(8, 31).slice, 32);
}

}  // namespace
}  // namespace layercake::kernels::cuda
