// Channels in device memory between two processes: on one GPU, or on the first and the last.
#include <cstdio>
#include <string>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda_peer_memory.h"
#include "tests/gpu/channel_peer_process.h"
#include "transport/crc32c.h"
#include "transport/peer_process.h"
#include "transport/probe.h"

namespace layercake::testing {
namespace {

using transport::ChannelOptions;
using transport::ChannelRig;
using transport::PeerProcess;

// Copies of one device to another that report success and leave out the end of one of them.
class LyingMemory final : public kernels::PeerMemory {
 public:
  LyingMemory(kernels::PeerMemory& real, int harmed) : real_(real), harmed_(harmed) {}
  std::string device() const override { return real_.device(); }
  absl::StatusOr<Exported> Create(size_t bytes) override { return real_.Create(bytes); }
  absl::StatusOr<std::unique_ptr<kernels::DeviceMemory>> Open(absl::string_view handle,
                                                              size_t bytes) override {
    return real_.Open(handle, bytes);
  }
  absl::Status CopyIn(const std::byte* host, kernels::Buffer block, size_t bytes) override {
    return real_.CopyIn(host, block, bytes);
  }
  absl::Status CopyOut(kernels::Buffer block, std::byte* host, size_t bytes) override {
    return real_.CopyOut(block, host, bytes);
  }
  absl::Status Copy(kernels::Buffer from, kernels::Buffer to, size_t bytes) override {
    return real_.Copy(from, to, copies_++ == harmed_ ? bytes - 16 : bytes);
  }
  absl::StatusOr<base::Task> PinHost(absl::Span<std::byte> pages) override {
    return real_.PinHost(pages);
  }

 private:
  kernels::PeerMemory& real_;
  const int harmed_;
  int copies_ = 0;
};

class CudaChannel : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto devices = kernels::ListCudaDevices();
    if (!devices.ok()) GTEST_SKIP() << "no CUDA device: " << devices.status();
    device_ = devices->front();
  }
  PeerProcess Peer(const std::string& kind) const {
    return PeerProcess({"/proc/self/exe", "--peer", kind, folder_.path()});
  }
  // Connects `rig`'s sender to a receiver of the peer; what the sender's probe said.
  absl::StatusOr<transport::ProbeReport> Connect(const PeerProcess& peer, ChannelRig& rig) {
    const ChannelOptions& options = rig.options;
    peer.Write(
        absl::StrCat("receive ", options.geometry.activation_slot_bytes, " ", options.ring.term));
    const std::string offer = peer.ReadLine();
    const absl::Status connected = rig.ConnectSender(absl::HexStringToBytes(offer));
    if (!connected.ok()) return connected;
    transport::ProbeSender probe(*rig.sender, options, clock_, rig.sender_memory());
    absl::StatusOr<bool> proved = false;
    rig.sender_end.Await([&] {
      const absl::Status status = rig.sender->status();
      if (!status.ok()) proved = status;
      if (status.ok() && rig.sender->connected()) proved = probe.Advance();
      return !proved.ok() || *proved;
    });
    if (!proved.ok()) return proved.status();
    return probe.report();
  }
  // One frame with a section of 20 bytes; what the peer should say of it.
  std::string SendRandom(ChannelRig& rig, uint64_t step, uint32_t bytes) {
    base::SeededRandom random(step);
    std::string payload(bytes, '\0');
    for (char& c : payload) c = static_cast<char>(random.Next());
    rig.sender_end.Await([&] {
      const auto slot = rig.sender->Acquire(kRows);
      if (slot.ok() && !slot->has_value()) return false;
      EXPECT_TRUE(slot.ok()) << slot.status();
      if (!slot.ok()) return true;
      EXPECT_EQ(transport::WritePayload(rig.sender_memory(), **slot, payload, 20),
                absl::OkStatus());
      EXPECT_EQ(rig.sender->Commit(**slot, {.kind = transport::FrameKind::kActivation,
                                            .step = step,
                                            .section_bytes = 20,
                                            .payload_bytes = bytes}),
                absl::OkStatus());
      return true;
    });
    const uint32_t sum =
        transport::Crc32c({reinterpret_cast<const std::byte*>(payload.data()), payload.size()});
    return absl::StrCat(step, " ", bytes, " ", sum);
  }
  // Long rows there and back between two devices, the copies work of the devices, in parts as far
  // as the kind takes parts: what comes back is what was sent.
  void MoveThereAndBack(const std::string& kind) {
    constexpr uint32_t kBytes = (5 << 20) + 64;
    constexpr size_t kRounds = 5;
    const auto channels = DeviceChannels::Create(device_, kind, folder_.path(), clock_);
    ASSERT_TRUE(channels.ok()) << channels.status();
    const PeerProcess peer = Peer(kind);
    const ChannelOptions there = DeviceChannelOptions(kBytes, 1);
    transport::ChannelEnd end(clock_);
    TwoWays ways;
    ASSERT_EQ(ways.OpenIn((*channels)->factory(), BackOptions(there), end), absl::OkStatus());
    auto moving = MoveInParts(device_, kBytes, end);
    ASSERT_TRUE(moving.ok()) << moving.status();
    peer.Write(
        absl::StrCat("parts ", kBytes, " 1 ", kRounds, " ", absl::BytesToHexString(ways.offer)));
    ASSERT_EQ(ways.ConnectOut((*channels)->factory(), there,
                              absl::HexStringToBytes(peer.ReadLine()), end),
              absl::OkStatus());
    transport::RowsMover& mover = (*moving)->mover();
    base::SeededRandom random(5);
    std::vector<std::byte> rows(kBytes);
    std::vector<std::byte> back(kBytes);
    for (size_t round = 0; round < kRounds; ++round) {
      for (std::byte& b : rows) b = static_cast<std::byte>(random.Below(256));
      absl::StatusOr<bool> received = false;
      end.Run([&] {
        ASSERT_EQ((*channels)->memory().CopyIn(rows.data(), (*moving)->block(), kBytes),
                  absl::OkStatus());
        ASSERT_EQ(mover.Send(*ways.out, kBytes), absl::OkStatus());
      });
      ASSERT_TRUE(end.Await([&] {
        received = mover.Receive(*ways.in);
        return !received.ok() || *received;
      }));
      ASSERT_EQ(received.status(), absl::OkStatus());
      end.Run([&] {
        EXPECT_EQ((*channels)->memory().CopyOut((*moving)->block(), back.data(), kBytes),
                  absl::OkStatus());
      });
      EXPECT_TRUE(back == rows) << "round " << round;
    }
    EXPECT_EQ(peer.ReadLine(), "done");
    peer.Write("end");
    moving->reset();
    ways.Close(end);
  }

  const base::SystemClock clock_;
  const transport::TemporaryFolder folder_;
  kernels::CudaDeviceFacts device_;
};

TEST_F(CudaChannel, CarriesProvedFramesToAnotherProcess) {
  for (const std::string kind : {"cuda_ipc", "pinned_host", "ucx"}) {
    SCOPED_TRACE(kind);
    const auto channels = DeviceChannels::Create(device_, kind, folder_.path(), clock_);
    ASSERT_TRUE(channels.ok()) << channels.status();
    const PeerProcess peer = Peer(kind);
    // A ring after the other between the same processes: none is taken for an older one.
    for (uint64_t term = 1; term <= 3; ++term) {
      ChannelRig rig((*channels)->factory(), (*channels)->factory(),
                     DeviceChannelOptions(5 << 20, term), clock_);
      const auto report = Connect(peer, rig);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(peer.ReadLine(), "proved");
      std::printf("%s, ring %d: %s\n", kind.c_str(), static_cast<int>(term),
                  report->ToString().c_str());
      uint64_t step = 0;
      for (const uint32_t bytes : {20u, 10u << 10, 640u << 10, 5u << 20, 10u << 10}) {
        const std::string expected = SendRandom(rig, ++step, bytes);
        EXPECT_EQ(peer.ReadLine(), expected);
      }
      rig.DestroySender();
      EXPECT_TRUE(absl::StartsWith(peer.ReadLine(), "UNAVAILABLE")) << "the peer sees the end";
    }
  }
}

TEST_F(CudaChannel, SeesThePeerDieAndMayStillWriteToItsMemory) {
  const auto channels = DeviceChannels::Create(device_, "cuda_ipc", folder_.path(), clock_);
  ASSERT_TRUE(channels.ok()) << channels.status();
  const auto own = (*channels)->memory().Create(1 << 20);
  ASSERT_TRUE(own.ok()) << own.status();
  for (uint64_t term = 1; term <= 2; ++term) {
    PeerProcess peer = Peer("cuda_ipc");
    ChannelRig rig((*channels)->factory(), (*channels)->factory(),
                   DeviceChannelOptions(1 << 20, term), clock_);
    const auto report = Connect(peer, rig);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(peer.ReadLine(), "proved");
    transport::SendSlot slot;
    ASSERT_TRUE(rig.sender_end.Await([&] {
      const auto acquired = rig.sender->Acquire(kRows);
      if (!acquired.ok() || !acquired->has_value()) return false;
      slot = **acquired;
      return true;
    }));
    const base::Instant killed = clock_.Now();
    peer.Kill();
    absl::Status status;
    rig.sender_end.Await([&] { return !(status = rig.sender->status()).ok(); });
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    // Killing waits for the driver to take the process down.
    EXPECT_LT(clock_.Now() - killed, absl::Seconds(5));
    // What a sender that does not know yet would do.
    rig.sender_end.Run([&] {
      EXPECT_EQ((*channels)->memory().Copy(own->memory->buffer(), slot.memory, 1 << 20),
                absl::OkStatus());
    });
  }
}

// CASES E4, between real devices.
TEST_F(CudaChannel, IsNotTrustedWhenACopyLeavesBytesOut) {
  const auto channels = DeviceChannels::Create(device_, "cuda_ipc", folder_.path(), clock_);
  ASSERT_TRUE(channels.ok()) << channels.status();
  const PeerProcess peer = Peer("cuda_ipc");
  uint64_t term = 0;
  for (const int harmed : {0, 7, 9}) {
    LyingMemory memory((*channels)->memory(), harmed);
    transport::CudaIpcChannelFactory factory(memory, folder_.path());
    ChannelRig rig(factory, factory, DeviceChannelOptions(640 << 10, ++term), clock_);
    const auto report = Connect(peer, rig);
    EXPECT_FALSE(report.ok());
    EXPECT_THAT(peer.ReadLine(), ::testing::HasSubstr("DATA_LOSS: probe cuda_ipc"));
  }
}

TEST_F(CudaChannel, MovesLongRowsInPartsOverPinnedHost) { MoveThereAndBack("pinned_host"); }

TEST_F(CudaChannel, MovesLongRowsOverUcx) { MoveThereAndBack("ucx"); }

TEST_F(CudaChannel, SaysWhyAHandleOfThisProcessCannotBeOpened) {
  const auto memory = kernels::CreateCudaPeerMemory(device_);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto block = (*memory)->Create(100);
  ASSERT_TRUE(block.ok()) << block.status();
  const absl::Status same = (*memory)->Open(block->handle, 100).status();
  EXPECT_TRUE(absl::IsInternal(same)) << same;
  EXPECT_THAT(same.message(), ::testing::HasSubstr(device_.uuid));
  EXPECT_TRUE(absl::IsInvalidArgument((*memory)->Open("short", 100).status()));
  EXPECT_FALSE((*memory)->Open(std::string(block->handle.size(), 'x'), 100).ok());
  // None of it did harm.
  std::string text = "still here";
  ASSERT_TRUE((*memory)
                  ->CopyIn(reinterpret_cast<const std::byte*>(text.data()), block->memory->buffer(),
                           text.size())
                  .ok());
  std::string back(text.size(), ' ');
  ASSERT_TRUE(
      (*memory)
          ->CopyOut(block->memory->buffer(), reinterpret_cast<std::byte*>(back.data()), back.size())
          .ok());
  EXPECT_EQ(back, text);
}

}  // namespace
}  // namespace layercake::testing

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--peer") {
    return layercake::testing::RunChannelPeer(argv[2], argv[3]);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
