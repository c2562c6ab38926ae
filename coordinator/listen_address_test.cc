#include "coordinator/listen_address.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::coordinator {
namespace {

TEST(ListenAddress, KnowsWhatIsLoopback) {
  const struct {
    const char* text;
    const char* canonical;
    bool loopback;
  } rows[] = {
      {"127.0.0.1:50051", "127.0.0.1:50051", true},
      {"127.9.8.7:0", "127.9.8.7:0", true},
      {"localhost:1", "127.0.0.1:1", true},
      {"[::1]:65535", "[::1]:65535", true},
      {"[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:1", true},
      {"[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.1]:1", false},
      {"0.0.0.0:50051", "0.0.0.0:50051", false},
      {"[::]:50051", "[::]:50051", false},
      {"10.1.2.3:50051", "10.1.2.3:50051", false},
      {"128.0.0.1:1", "128.0.0.1:1", false},
  };
  for (const auto& row : rows) {
    const auto address = ParseListenAddress(row.text);
    ASSERT_TRUE(address.ok()) << row.text << ": " << address.status();
    EXPECT_EQ(address->ToString(), row.canonical);
    EXPECT_EQ(address->loopback, row.loopback) << row.text;
  }
}

TEST(ListenAddress, RefusesWhatItCannotListenOn) {
  for (const char* text :
       {"", "127.0.0.1", ":50051", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:+1",
        "127.0.0.1: 1", "127.0.0.1:99999999999", "example.org:1", "::1:1", "[127.0.0.1]:1",
        "[::1:1", "[::1]", "256.0.0.1:1", "127.1:1", "tcp://10.0.0.1:50051", "127.0.0.1:http"}) {
    const auto address = ParseListenAddress(text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(address.status().message()), ::testing::HasSubstr(text));
  }
}

}  // namespace
}  // namespace layercake::coordinator
