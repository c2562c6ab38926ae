#include "tests/gpu/peer_death_answer.h"

#include <gtest/gtest.h>

namespace layercake::testing {
namespace {

const Answer kFine{.came = true, .code = 0, .milliseconds = 1.5, .words = ""};
const Answer kTrap{
    .came = true, .code = 719, .milliseconds = 2, .words = "unspecified launch failure"};

TEST(PeerDeathAnswer, ComesBackFromItsLine) {
  for (const Answer& answer : {kFine, kTrap}) {
    const Answer again = ParseAnswer(FormatAnswer(answer));
    EXPECT_TRUE(again.came);
    EXPECT_EQ(again.code, answer.code);
    EXPECT_EQ(again.milliseconds, answer.milliseconds);
    EXPECT_EQ(again.words, answer.words);
  }
}

TEST(PeerDeathAnswer, DidNotComeWithoutALineOrByAnother) {
  EXPECT_FALSE(ParseAnswer(std::nullopt).came);
  for (const char* line : {"", "0", "0 1", "zero 1 x", "0 one x"}) {
    EXPECT_FALSE(ParseAnswer(std::string(line)).came) << line;
  }
}

TEST(PeerDeathAnswer, IsTold) {
  EXPECT_EQ(Describe(kFine), "ok");
  EXPECT_EQ(Describe(kTrap), "error 719 (unspecified launch failure)");
  EXPECT_EQ(Describe({.came = true, .code = kWrong, .words = "7 for 8"}), "wrong (7 for 8)");
  EXPECT_EQ(Describe({}), "no answer");
}

TEST(PeerDeathAnswer, OfSeveralNamesEachWhereOneIsNotOk) {
  EXPECT_EQ(DescribeAll({{"copy", kFine}, {"stores", kFine}}), "all ok (copy, stores)");
  EXPECT_EQ(DescribeAll({{"copy", kFine}, {"stores", kTrap}, {"close", {}}}),
            "copy ok, stores: error 719 (unspecified launch failure), close: no answer");
}

}  // namespace
}  // namespace layercake::testing
