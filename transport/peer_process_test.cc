#include "transport/peer_process.h"

#include <gtest/gtest.h>

namespace layercake::transport {
namespace {

TEST(PeerProcess, AnswersLineByLine) {
  PeerProcess peer({"/bin/cat"});
  ASSERT_TRUE(peer.Write("one"));
  ASSERT_TRUE(peer.Write("two"));
  EXPECT_EQ(peer.ReadLine(), "one");
  EXPECT_EQ(peer.ReadLine(), "two");
}

TEST(PeerProcess, SaysThatItHasEnded) {
  PeerProcess peer({"/bin/true"});
  EXPECT_EQ(peer.ReadLine(), "");
  // Its output closes a moment before its input.
  bool alive = true;
  for (int i = 0; i < 1'000'000 && alive; ++i) alive = peer.Write("anybody there?");
  EXPECT_FALSE(alive);
}

TEST(PeerProcess, AProgramThatIsNotThereReadsAsOneThatEnded) {
  PeerProcess peer({"/no/such/program"});
  EXPECT_EQ(peer.ReadLine(), "");
  EXPECT_FALSE(peer.Write("anybody there?"));
}

}  // namespace
}  // namespace layercake::transport
