// The other end is another process and is killed: how soon that is seen.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "transport/channel_rig.h"

namespace layercake::transport {
namespace {

// A channel_peer with pipes to its standard input and output.
class PeerProcess {
 public:
  PeerProcess(const std::string& kind, const std::string& role, const std::string& folder) {
    std::array<int, 2> to{};
    std::array<int, 2> from{};
    if (pipe2(to.data(), O_CLOEXEC) != 0 || pipe2(from.data(), O_CLOEXEC) != 0) std::abort();
    base::UniqueFd their_input(to[0]);
    base::UniqueFd their_output(from[1]);
    input_.Reset(to[1]);
    output_.Reset(from[0]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, their_input.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, their_output.get(), STDOUT_FILENO);
    std::array<std::string, 4> words = {LAYERCAKE_CHANNEL_PEER, kind, role, folder};
    std::array<char*, 5> arguments = {words[0].data(), words[1].data(), words[2].data(),
                                      words[3].data(), nullptr};
    const int error =
        posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) pid_ = -1;
  }
  ~PeerProcess() { Kill(); }

  void Write(const std::string& line) const {
    const std::string text = line + "\n";
    EXPECT_EQ(write(input_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Empty when it ended.
  std::string ReadLine() const {
    std::string line;
    char c = 0;
    while (read(output_.get(), &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  // And reaps: UCX takes a process that waits to be reaped for a living one.
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  base::UniqueFd input_;
  base::UniqueFd output_;
};

struct DeathCase {
  TestKind kind;
  const char* peer_kind;
  absl::Duration bound;
};

class PeerDeath : public ::testing::TestWithParam<DeathCase> {
 protected:
  PeerDeath() : factories_(MakeTestFactories(GetParam().kind, clock_)) {}

  const base::SystemClock clock_;
  const std::unique_ptr<TestFactories> factories_;
  ChannelRig rig_{*factories_->sender, *factories_->receiver, PeerTestOptions(), clock_};
};

TEST_P(PeerDeath, OfAnIdleSenderIsSeenInTime) {
  PeerProcess peer(GetParam().peer_kind, "sender", factories_->folder.path());
  ASSERT_TRUE(rig_.CreateReceiver().ok());
  peer.Write(absl::BytesToHexString(rig_.offer));
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
  PeerProcess peer(GetParam().peer_kind, "receiver", factories_->folder.path());
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
    PeerProcess peer(GetParam().peer_kind, "receiver", factories_->folder.path());
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
                      DeathCase{TestKind::kUcxTcp, "ucx_tcp", absl::Seconds(3)},
                      DeathCase{TestKind::kUcxSharedMemory, "ucx_shared_memory", absl::Seconds(3)}),
    [](const ::testing::TestParamInfo<DeathCase>& c) { return TestKindName(c.param.kind); });

}  // namespace
}  // namespace layercake::transport
