#include "coordinator/host_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace layercake::coordinator {
namespace {

constexpr uint64_t kSeed = 20261129;

std::vector<BlockId> Blocks(std::initializer_list<uint32_t> ids) {
  std::vector<BlockId> blocks;
  for (const uint32_t id : ids) blocks.push_back(static_cast<BlockId>(id));
  return blocks;
}
constexpr SequenceId kFirst{1};
constexpr SequenceId kSecond{2};

TEST(HostBlocks, SaveAndRestoreWhatStoodAtEachPlaceOfTheTable) {
  HostBlocks pool(4);
  ASSERT_TRUE(pool.Save(kFirst, 2, Blocks({7, 5, 9})));
  EXPECT_EQ(pool.free_count(), 1);
  const HostBlockCopies saved = pool.TakePlanned();
  ASSERT_EQ(saved.saves.size(), 3u);
  EXPECT_TRUE(saved.restores.empty());
  ASSERT_NE(pool.Find(kFirst), nullptr);
  EXPECT_EQ(pool.Find(kFirst)->first, 2);
  // Block 2 of the table was found elsewhere.
  pool.Restore(kFirst, 3, Blocks({1, 6}));
  const HostBlockCopies restored = pool.TakePlanned();
  ASSERT_EQ(restored.restores.size(), 2u);
  EXPECT_EQ(restored.restores[0].block, BlockId{1});
  EXPECT_EQ(restored.restores[0].host_block, saved.saves[1].host_block);
  EXPECT_EQ(restored.restores[1].block, BlockId{6});
  EXPECT_EQ(restored.restores[1].host_block, saved.saves[2].host_block);
  EXPECT_EQ(pool.Find(kFirst), nullptr);
  EXPECT_EQ(pool.free_count(), 4);
}

TEST(HostBlocks, PlanNothingWhenTheyAreFull) {
  HostBlocks pool(3);
  ASSERT_TRUE(pool.Save(kFirst, 0, Blocks({0, 1})));
  pool.TakePlanned();
  EXPECT_FALSE(pool.Save(kSecond, 0, Blocks({2, 3})));
  EXPECT_TRUE(pool.planned().empty());
  EXPECT_EQ(pool.Find(kSecond), nullptr);
  pool.Drop(kFirst);
  EXPECT_EQ(pool.free_count(), 3);
  EXPECT_TRUE(pool.Save(kSecond, 0, Blocks({2, 3})));
}

TEST(HostBlocks, AreNotSavedOverInTheStepThatRestoresThem) {
  HostBlocks pool(2);
  ASSERT_TRUE(pool.Save(kFirst, 0, Blocks({0, 1})));
  pool.TakePlanned();
  pool.Restore(kFirst, 0, Blocks({4, 5}));
  EXPECT_FALSE(pool.Save(kSecond, 0, Blocks({2})));
  pool.TakePlanned();
  EXPECT_TRUE(pool.Save(kSecond, 0, Blocks({2})));
}

// Random plans run on a table of contents: every sequence gets back what it saved, and in the end
// every host block is free.
TEST(HostBlocks, GiveEverySequenceItsOwnContentBack) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  for (int run = 0; run < 200; ++run) {
    const int count = 1 + static_cast<int>(random.Below(12));
    HostBlocks pool(count);
    std::vector<uint64_t> device(16);
    std::vector<uint64_t> host(static_cast<size_t>(count));
    std::map<uint64_t, std::vector<uint64_t>> expected;  // of each saved sequence
    uint64_t next_content = 1;
    for (int step = 0; step < 50; ++step) {
      // Restores are planned first and done last, as in a step of the scheduler.
      std::vector<std::pair<std::vector<BlockId>, std::vector<uint64_t>>> restored;
      if (!expected.empty() && random.Below(2) == 0) {
        const auto [id, contents] = *expected.begin();
        std::vector<BlockId> blocks;
        for (size_t i = 0; i < contents.size(); ++i) blocks.push_back(static_cast<BlockId>(i));
        pool.Restore(static_cast<SequenceId>(id), 0, blocks);
        restored.emplace_back(blocks, contents);
        expected.erase(id);
      }
      if (!expected.empty() && random.Below(4) == 0) {
        pool.Drop(static_cast<SequenceId>(expected.rbegin()->first));
        expected.erase(expected.rbegin()->first);
      }
      const uint64_t id = next_content++;
      std::vector<BlockId> blocks;
      std::vector<uint64_t> contents;
      for (uint64_t i = random.Below(5) + 1; i > 0; --i) {
        const uint64_t block = 8 + random.Below(8);
        device[block] = next_content++;
        std::erase(blocks, static_cast<BlockId>(block));
        blocks.push_back(static_cast<BlockId>(block));
      }
      for (const BlockId block : blocks) contents.push_back(device[static_cast<size_t>(block)]);
      if (pool.Save(static_cast<SequenceId>(id), 0, blocks)) expected.emplace(id, contents);
      const HostBlockCopies copies = pool.TakePlanned();
      for (const HostBlockCopy& save : copies.saves) {
        host[static_cast<size_t>(save.host_block)] = device[static_cast<size_t>(save.block)];
      }
      for (const HostBlockCopy& restore : copies.restores) {
        device[static_cast<size_t>(restore.block)] = host[static_cast<size_t>(restore.host_block)];
      }
      for (const auto& [to, right] : restored) {
        for (size_t i = 0; i < to.size(); ++i) {
          ASSERT_EQ(device[static_cast<size_t>(to[i])], right[i]) << "run " << run;
        }
      }
    }
    for (const auto& [id, contents] : expected) pool.Drop(static_cast<SequenceId>(id));
    EXPECT_EQ(pool.free_count(), count);
  }
}

TEST(HostCopyCost, IsUnknownUntilEveryStageHasMeasuredAndThenThatOfTheSlowest) {
  HostCopyCost cost(2);
  EXPECT_FALSE(cost.Seconds(3).has_value());
  cost.Set(0, 1e-3);
  EXPECT_FALSE(cost.Seconds(3).has_value());
  cost.Set(1, 4e-3);
  EXPECT_DOUBLE_EQ(*cost.Seconds(3), 24e-3);  // there and back
  cost.Set(0, 0);
  EXPECT_FALSE(cost.Seconds(3).has_value());
}

}  // namespace
}  // namespace layercake::coordinator
