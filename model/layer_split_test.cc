#include "model/layer_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "model/gguf/testing/status_matchers.h"

namespace layercake::model {
namespace {

using testing::IsError;
using testing::Words;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

uint64_t LargestStage(absl::Span<const LayerRange> ranges, absl::Span<const uint64_t> layers,
                      uint64_t embedding, uint64_t head) {
  uint64_t largest = 0;
  for (const LayerRange& range : ranges) {
    uint64_t bytes =
        std::accumulate(layers.begin() + range.first, layers.begin() + range.end, uint64_t{0});
    if (range.first == 0) bytes += embedding;
    if (range.end == layers.size()) bytes += head;
    largest = std::max(largest, bytes);
  }
  return largest;
}

void ExpectEveryLayerOnce(absl::Span<const LayerRange> ranges, uint32_t stages, uint32_t layers) {
  ASSERT_EQ(ranges.size(), stages);
  uint32_t next = 0;
  for (const LayerRange& range : ranges) {
    EXPECT_EQ(range.first, next);
    EXPECT_LT(range.first, range.end);
    next = range.end;
  }
  EXPECT_EQ(next, layers);
}

TEST(LayerSplit, CutsEqualLayersEvenly) {
  struct Case {
    uint32_t layers;
    uint32_t stages;
    std::vector<uint32_t> sizes;  // sorted
  };
  const Case cases[] = {
      {30, 1, {30}},         {30, 2, {15, 15}},       {30, 3, {10, 10, 10}},
      {30, 4, {7, 7, 8, 8}}, {7, 5, {1, 1, 1, 2, 2}}, {5, 5, {1, 1, 1, 1, 1}},
  };
  for (const Case& one : cases) {
    const auto ranges = SplitLayers(std::vector<uint64_t>(one.layers, 1000), 0, 0, one.stages);
    ASSERT_OK(ranges);
    ExpectEveryLayerOnce(*ranges, one.stages, one.layers);
    std::vector<uint32_t> sizes;
    for (const LayerRange& range : *ranges) sizes.push_back(range.size());
    std::sort(sizes.begin(), sizes.end());
    EXPECT_EQ(sizes, one.sizes) << one.layers << " layers, " << one.stages << " stages";
  }
}

TEST(LayerSplit, GivesFewerLayersToTheStagesWithEmbeddingAndHead) {
  const auto ranges = SplitLayers(std::vector<uint64_t>(12, 100), 200, 300, 3);
  ASSERT_OK(ranges);
  EXPECT_EQ(FormatLayerRanges(*ranges), "0-3,4-9,10-11");
}

TEST(LayerSplit, RefusesMoreStagesThanLayers) {
  EXPECT_THAT(SplitLayers(std::vector<uint64_t>(3, 1), 0, 0, 4),
              IsError(kInvalid, Words{"4 stages", "3 layers"}));
  EXPECT_THAT(SplitLayers(std::vector<uint64_t>(3, 1), 0, 0, 0), IsError(kInvalid, Words{"0"}));
  EXPECT_THAT(SplitLayers({}, 0, 0, 1), IsError(kInvalid, Words{"0 layers"}));
  EXPECT_THAT(SplitLayers(std::vector<uint64_t>(2, ~uint64_t{0}), 0, 0, 1),
              IsError(kInvalid, Words{"64 bits"}));
}

TEST(LayerSplit, FindsTheSmallestLargestStage) {
  constexpr uint64_t kSeed = 31;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  for (int round = 0; round < 300; ++round) {
    const auto layers = static_cast<uint32_t>(1 + random.Below(9));
    std::vector<uint64_t> bytes;
    for (uint32_t i = 0; i < layers; ++i) bytes.push_back(random.Below(50));
    const uint64_t embedding = random.Below(100);
    const uint64_t head = random.Below(100);
    for (uint32_t stages = 1; stages <= layers; ++stages) {
      const auto ranges = SplitLayers(bytes, embedding, head, stages);
      ASSERT_OK(ranges);
      ExpectEveryLayerOnce(*ranges, stages, layers);
      // Every way to cut: a bit mask of the gaps between layers.
      uint64_t best = ~uint64_t{0};
      for (uint32_t mask = 0; mask < 1u << (layers - 1); ++mask) {
        if (static_cast<uint32_t>(__builtin_popcount(mask)) != stages - 1) continue;
        std::vector<LayerRange> cut;
        uint32_t first = 0;
        for (uint32_t end = 1; end <= layers; ++end) {
          if (end < layers && (mask >> (end - 1) & 1) == 0) continue;
          cut.push_back({first, end});
          first = end;
        }
        best = std::min(best, LargestStage(cut, bytes, embedding, head));
      }
      EXPECT_EQ(LargestStage(*ranges, bytes, embedding, head), best);
    }
  }
}

TEST(LayerSplit, HandlesManyLayersAndStages) {
  for (const uint32_t stages : {2u, 64u, 341u, 1023u, 1024u}) {
    const auto ranges = SplitLayers(std::vector<uint64_t>(1024, 7), 3, 4, stages);
    ASSERT_OK(ranges);
    ExpectEveryLayerOnce(*ranges, stages, 1024);
  }
}

TEST(LayerRanges, ReadsWhatItWrites) {
  for (const char* text : {"0-29", "0-9,10-19,20-29", "0,1-28,29"}) {
    const auto ranges = ParseLayerRanges(text, 30);
    ASSERT_OK(ranges);
    EXPECT_EQ(FormatLayerRanges(*ranges), text);
  }
  EXPECT_EQ(*ParseLayerRanges("0-1,2", 3), (std::vector<LayerRange>{{0, 2}, {2, 3}}));
}

TEST(LayerRanges, RefusesWhatDoesNotCoverEveryLayerOnce) {
  struct Case {
    const char* text;
    Words words;
  };
  const Case cases[] = {
      {"", {"not FIRST-LAST"}},
      {"0-9,", {"not FIRST-LAST"}},
      {"0-", {"not FIRST-LAST"}},
      {"-1", {"not FIRST-LAST"}},
      {"a-b", {"not FIRST-LAST"}},
      {"0-1-2", {"not FIRST-LAST"}},
      {"0-99999999999", {"not FIRST-LAST"}},
      {"0-10", {"layers 0 to 9"}},
      {"5-4", {"5-4"}},
      {"1-9", {"begin with layer 0"}},
      {"0-4,6-9", {"begin with layer 5"}},
      {"0-4,4-9", {"begin with layer 5"}},
      {"5-9,0-4", {"begin with layer 0"}},
      {"0-8", {"end with layer 8", "last one is 9"}},
  };
  for (const Case& one : cases) {
    EXPECT_THAT(ParseLayerRanges(one.text, 10), IsError(kInvalid, one.words)) << one.text;
  }
}

}  // namespace
}  // namespace layercake::model
