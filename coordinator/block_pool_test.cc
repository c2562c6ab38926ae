#include "coordinator/block_pool.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::coordinator {
namespace {

const std::vector<int32_t> kOne = {1, 2};
const std::vector<int32_t> kTwo = {3, 4};

TEST(BlockPool, KeepsPublishedBlocksUntilOthersNeedThem) {
  BlockPool pool(2);
  const BlockId first = *pool.Allocate();
  const PrefixId prefix = pool.Publish(first, PrefixId::kEmpty, kOne);
  pool.Release(first);
  EXPECT_EQ(pool.free_count(), 2);
  EXPECT_EQ(pool.cached_count(), 1);
  const auto hit = pool.Find(PrefixId::kEmpty, kOne);
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->block, first);
  EXPECT_EQ(hit->prefix, prefix);
  EXPECT_FALSE(pool.Find(prefix, kOne)) << "the same tokens at another place are another content";
  ASSERT_TRUE(pool.Allocate());
  EXPECT_TRUE(pool.Find(PrefixId::kEmpty, kOne)) << "a block without content goes first";
  ASSERT_TRUE(pool.Allocate());
  EXPECT_FALSE(pool.Find(PrefixId::kEmpty, kOne));
  EXPECT_FALSE(pool.Allocate());
}

TEST(BlockPool, GivesOutTheLeastRecentlyUsedFirst) {
  BlockPool pool(2);
  const BlockId a = *pool.Allocate();
  const BlockId b = *pool.Allocate();
  pool.Publish(a, PrefixId::kEmpty, kOne);
  pool.Publish(b, PrefixId::kEmpty, kTwo);
  pool.Release(a);
  pool.Release(b);
  pool.Share(a);  // used again: now the younger one
  pool.Release(a);
  EXPECT_EQ(*pool.Allocate(), b);
}

TEST(BlockPool, ASharedBlockIsFreeWhenItsLastOwnerGoes) {
  BlockPool pool(1);
  const BlockId block = *pool.Allocate();
  pool.Share(block);
  pool.Release(block);
  EXPECT_EQ(pool.free_count(), 0);
  pool.Release(block);
  EXPECT_EQ(pool.free_count(), 1);
}

TEST(BlockPool, EqualContentHasOneName) {
  BlockPool pool(2);
  const BlockId a = *pool.Allocate();
  const BlockId b = *pool.Allocate();
  const PrefixId prefix = pool.Publish(a, PrefixId::kEmpty, kOne);
  EXPECT_EQ(pool.Publish(b, PrefixId::kEmpty, kOne), prefix);
  EXPECT_EQ(pool.Find(PrefixId::kEmpty, kOne)->block, a);
  pool.Release(b);
  EXPECT_EQ(pool.cached_count(), 0) << "the copy is not kept";
  EXPECT_NE(pool.NewRoot(), prefix);
}

TEST(BlockPool, ForgetsWhatIsInDoubt) {
  BlockPool pool(1);
  const BlockId block = *pool.Allocate();
  pool.Publish(block, PrefixId::kEmpty, kOne);
  pool.Unpublish(block);
  EXPECT_FALSE(pool.Find(PrefixId::kEmpty, kOne));
  pool.Release(block);
  EXPECT_EQ(pool.cached_count(), 0);
  EXPECT_EQ(pool.free_count(), 1);
}

TEST(BlockPoolDeathTest, RefusesASecondRelease) {
  BlockPool pool(1);
  const BlockId block = *pool.Allocate();
  pool.Release(block);
  EXPECT_DEATH(pool.Release(block), "that nobody owns");
}

}  // namespace
}  // namespace layercake::coordinator
