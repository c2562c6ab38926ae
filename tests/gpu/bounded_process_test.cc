#include "tests/gpu/bounded_process.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace layercake::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

TEST(BoundedProcess, AnswersLineByLine) {
  const base::SystemClock clock;
  BoundedProcess cat({"/bin/cat"}, clock);
  ASSERT_TRUE(cat.Write("one\ntwo"));
  EXPECT_EQ(cat.ReadLine(kPatience), "one");
  EXPECT_EQ(cat.ReadLine(kPatience), "two");
}

TEST(BoundedProcess, GivesUpOnOneThatIsStoppedAndHearsItWhenItGoesOn) {
  const base::SystemClock clock;
  BoundedProcess cat({"/bin/cat"}, clock);
  ASSERT_TRUE(cat.Write("one"));
  ASSERT_EQ(cat.ReadLine(kPatience), "one");
  cat.Signal(SIGSTOP);
  ASSERT_TRUE(cat.Write("two"));
  EXPECT_EQ(cat.ReadLine(absl::Milliseconds(50)), std::nullopt);
  EXPECT_EQ(cat.AwaitEnd(absl::Milliseconds(50)), std::nullopt);
  cat.Signal(SIGCONT);
  EXPECT_EQ(cat.ReadLine(kPatience), "two");
}

TEST(BoundedProcess, SaysThatItHasEnded) {
  const base::SystemClock clock;
  BoundedProcess cat({"/bin/cat"}, clock);
  cat.Signal(SIGKILL);
  EXPECT_TRUE(cat.AwaitEnd(kPatience).has_value());
  EXPECT_EQ(cat.ReadLine(kPatience), std::nullopt);
  EXPECT_FALSE(cat.Write("anybody there?"));
}

TEST(BoundedProcess, AProgramThatIsNotThereReadsAsOneThatEnded) {
  const base::SystemClock clock;
  BoundedProcess nobody({"/no/such/program"}, clock);
  EXPECT_EQ(nobody.ReadLine(kPatience), std::nullopt);
  EXPECT_TRUE(nobody.AwaitEnd(kPatience).has_value());
}

}  // namespace
}  // namespace layercake::testing
