#include "simulation/client_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace layercake::simulation {
namespace {

const ClientLoadOptions kClosed = {.streams = 20,
                                   .prompt = {.least = 10, .most = 400},
                                   .output = {.least = 3, .most = 5},
                                   .shared_prefix = 0.5,
                                   .seconds = 10,
                                   .seed = 7};

TEST(ClientLoad, IsTheSameForTheSameSeed) {
  ClientLoad first(kClosed);
  ClientLoad second(kClosed);
  ClientLoadOptions other_seed = kClosed;
  other_seed.seed = 8;
  const auto requests = first.First();
  const auto again = second.First();
  const auto others = ClientLoad(other_seed).First();
  ASSERT_EQ(requests.size(), 20u);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].request.prompt, again[i].request.prompt);
    EXPECT_EQ(requests[i].request.max_tokens, again[i].request.max_tokens);
    EXPECT_NE(requests[i].request.prompt, others[i].request.prompt);
  }
  EXPECT_EQ(first.Next(1)->request.prompt, second.Next(1)->request.prompt);
}

TEST(ClientLoad, KeepsToItsRangesAndSharesTheStartOfPrompts) {
  const auto requests = ClientLoad(kClosed).First();
  for (const SimRequest& request : requests) {
    const std::vector<int32_t>& prompt = request.request.prompt;
    EXPECT_GE(prompt.size(), 10u);
    EXPECT_LE(prompt.size(), 400u);
    EXPECT_GE(request.request.max_tokens, 3);
    EXPECT_LE(request.request.max_tokens, 5);
    const std::vector<int32_t>& first = requests[0].request.prompt;
    const size_t shared = std::min(prompt.size() / 2, first.size() / 2);
    EXPECT_TRUE(
        std::equal(first.begin(), first.begin() + static_cast<ptrdiff_t>(shared), prompt.begin()));
  }
}

TEST(ClientLoad, ClientsAskAgainUntilTheTimeIsOver) {
  ClientLoad load(kClosed);
  EXPECT_EQ(load.Next(9.9)->at, 9.9);
  EXPECT_FALSE(load.Next(10).has_value());
}

TEST(ClientLoad, RequestsComeAtTheRateByThemselves) {
  ClientLoadOptions options = kClosed;
  options.streams = 0;
  options.rate = 50;
  options.seconds = 100;
  ClientLoad load(options);
  const auto requests = load.First();
  // 5,000 expected; five standard deviations of a Poisson count.
  EXPECT_NEAR(static_cast<double>(requests.size()), 5000, 355);
  EXPECT_TRUE(std::is_sorted(requests.begin(), requests.end(),
                             [](const auto& a, const auto& b) { return a.at < b.at; }));
  EXPECT_LE(requests.back().at, 100);
  EXPECT_FALSE(load.Next(1).has_value());
}

}  // namespace
}  // namespace layercake::simulation
