// The other end is another process and is killed: how soon that is seen.
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "transport/channel_rig.h"
#include "transport/peer_process.h"

namespace layercake::transport {
namespace {

struct DeathCase {
  TestKind kind;
  const char* peer_kind;
  absl::Duration bound;
};

class PeerDeath : public ::testing::TestWithParam<DeathCase> {
 protected:
  PeerDeath() : factories_(MakeTestFactories(GetParam().kind, clock_)) {}
  PeerProcess Peer(const std::string& role) {
    return PeerProcess(
        {LAYERCAKE_CHANNEL_PEER, GetParam().peer_kind, role, factories_->folder.path()});
  }

  const base::SystemClock clock_;
  const std::unique_ptr<TestFactories> factories_;
  ChannelRig rig_{*factories_->sender, *factories_->receiver, PeerTestOptions(), clock_};
};

TEST_P(PeerDeath, OfAnIdleSenderIsSeenInTime) {
  PeerProcess peer = Peer("sender");
  ASSERT_TRUE(rig_.CreateReceiver().ok());
  ASSERT_TRUE(peer.Write(absl::BytesToHexString(rig_.offer)));
  int received = 0;
  ASSERT_TRUE(rig_.receiver_end.Await([&] {
    for (;;) {
      const auto frame = rig_.receiver->Poll(Lane::kActivation);
      if (!frame.ok() || !frame->has_value()) return received == 10;
      ++received;
      EXPECT_TRUE(rig_.receiver->Release(Lane::kActivation, (*frame)->slot).ok());
    }
  }));
  ASSERT_EQ(peer.ReadLine(), "connected");
  const base::Instant killed = clock_.Now();
  peer.Kill();
  absl::Status status;
  ASSERT_TRUE(rig_.receiver_end.Await([&] { return !(status = rig_.receiver->status()).ok(); }));
  const absl::Duration seen_after = clock_.Now() - killed;
  RecordProperty("seen_after", absl::FormatDuration(seen_after));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("the other process"), std::string::npos) << status;
  EXPECT_LT(seen_after, GetParam().bound);
}

TEST_P(PeerDeath, OfAnIdleReceiverIsSeenInTime) {
  PeerProcess peer = Peer("receiver");
  const std::string offer = absl::HexStringToBytes(peer.ReadLine());
  ASSERT_TRUE(rig_.ConnectSender(offer).ok());
  ASSERT_TRUE(rig_.sender_end.Await([&] { return rig_.sender->connected(); }));
  ASSERT_EQ(peer.ReadLine(), "connected");
  const base::Instant killed = clock_.Now();
  peer.Kill();
  absl::Status status;
  ASSERT_TRUE(rig_.sender_end.Await([&] { return !(status = rig_.sender->status()).ok(); }));
  const absl::Duration seen_after = clock_.Now() - killed;
  RecordProperty("seen_after", absl::FormatDuration(seen_after));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_LT(seen_after, GetParam().bound);
}

TEST_P(PeerDeath, BeforeTheConnectionIsAnErrorOfConnecting) {
  std::string offer;
  {
    PeerProcess peer = Peer("receiver");
    offer = absl::HexStringToBytes(peer.ReadLine());
  }
  absl::Status status = rig_.ConnectSender(offer);
  if (status.ok()) {
    rig_.sender_end.Await([&] { return !(status = rig_.sender->status()).ok(); });
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

INSTANTIATE_TEST_SUITE_P(
    Every, PeerDeath,
    ::testing::Values(DeathCase{TestKind::kPinnedHost, "pinned_host", absl::Milliseconds(200)},
                      DeathCase{TestKind::kCudaIpc, "cuda_ipc", absl::Milliseconds(200)},
                      DeathCase{TestKind::kUcxTcp, "ucx_tcp", absl::Seconds(3)},
                      DeathCase{TestKind::kUcxSharedMemory, "ucx_shared_memory", absl::Seconds(3)}),
    [](const ::testing::TestParamInfo<DeathCase>& c) { return TestKindName(c.param.kind); });

}  // namespace
}  // namespace layercake::transport
