#include "stage_worker/token_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/random.h"

namespace layercake::stage_worker {
namespace {

std::map<int32_t, int32_t> SeenOf(const TokenHistory& history) {
  std::map<int32_t, int32_t> seen;
  for (const kernels::SeenToken& token : history.seen()) seen[token.token] = token.output_count;
  return seen;
}

TEST(TokenHistory, CountsOutputFromThePromptsEndOn) {
  TokenHistory history(2);
  for (const int32_t token : {5, 6, 5, 5, 7}) history.Append(token);
  EXPECT_EQ(SeenOf(history), (std::map<int32_t, int32_t>{{5, 2}, {6, 0}, {7, 1}}));
}

TEST(TokenHistory, IsAFunctionOfThePrefixHoweverItCameAbout) {
  const uint64_t seed = base::EntropySeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  base::SeededRandom random(seed);
  for (int run = 0; run < 200; ++run) {
    const auto prompt = static_cast<uint32_t>(random.Below(8));
    TokenHistory history(prompt);
    std::vector<int32_t> tokens;
    for (int step = 0; step < 30; ++step) {
      if (random.Below(4) == 0) {
        const size_t length = random.Below(tokens.size() + 1);
        tokens.resize(length);
        history.Truncate(length);
      } else {
        tokens.push_back(static_cast<int32_t>(random.Below(5)));
        history.Append(tokens.back());
      }
      TokenHistory fresh(prompt);
      for (const int32_t token : tokens) fresh.Append(token);
      ASSERT_EQ(SeenOf(history), SeenOf(fresh));
      ASSERT_TRUE(std::is_sorted(history.seen().begin(), history.seen().end(),
                                 [](const auto& a, const auto& b) { return a.token < b.token; }));
      ASSERT_EQ(history.length(), tokens.size());
    }
  }
}

}  // namespace
}  // namespace layercake::stage_worker
