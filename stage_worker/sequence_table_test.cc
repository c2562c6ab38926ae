#include "stage_worker/sequence_table.h"

#include <gtest/gtest.h>

namespace layercake::stage_worker {
namespace {

TEST(SequenceTable, ForgetsWhatBeginsAgain) {
  SequenceTable table;
  table.Begin(9, Sequence()).blocks = {1, 2};
  ASSERT_NE(table.Find(9), nullptr);
  EXPECT_EQ(table.Find(9)->blocks.size(), 2u);
  table.Begin(9, Sequence());
  EXPECT_TRUE(table.Find(9)->blocks.empty());
  EXPECT_EQ(table.size(), 1u);
  table.End(9);
  EXPECT_EQ(table.Find(9), nullptr);
}

}  // namespace
}  // namespace layercake::stage_worker
