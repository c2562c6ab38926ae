// One hop there and one back between two processes, each with its device (the first and the last,
// or one for both): from device memory to device memory, every copy and wake-up included, as a step
// does it. Prints the least and the median of one hop in microseconds.
// Nobody looks ahead for what comes: every thread that waits sleeps, of ucx also the one of UCX.
// A kind that does not run here is left out, aloud.
//
// The sizes are the activations of one token (10 KB: 5,120 values of 2 bytes), of 64 and of 512.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/gpu/channel_peer_process.h"
#include "transport/peer_process.h"

namespace layercake::testing {
namespace {

// Sends, waits for the answer, and again. receive() is false when nothing is there yet. Nothing
// when a channel failed.
std::vector<double> PingPong(transport::ChannelEnd& end, size_t rounds, const base::Clock& clock,
                             absl::FunctionRef<absl::Status()> send,
                             absl::FunctionRef<absl::StatusOr<bool>()> receive) {
  std::vector<double> hops;
  bool failed = false;
  base::Instant sent;
  const auto send_now = [&] {
    sent = clock.Now();
    failed = !send().ok();
  };
  end.Run(send_now);
  end.Await(
      [&] {
        while (!failed && hops.size() < rounds) {
          const absl::StatusOr<bool> received = receive();
          if (received.ok() && !*received) return false;
          failed = !received.ok();
          hops.push_back(absl::ToDoubleMicroseconds(clock.Now() - sent) / 2);
          if (!failed && hops.size() < rounds) send_now();
        }
        return true;
      },
      absl::Minutes(1));
  if (failed) hops.clear();
  std::sort(hops.begin(), hops.end());
  return hops;
}

std::vector<double> PingPongWhole(DeviceChannels& channels, TwoWays& ways,
                                  transport::ChannelEnd& end, kernels::Buffer own, uint32_t bytes,
                                  size_t rounds, const base::Clock& clock) {
  return PingPong(
      end, rounds, clock, [&] { return channels.SendRows(*ways.out, own, bytes); },
      [&]() -> absl::StatusOr<bool> {
        LC_ASSIGN_OR_RETURN(const auto frame, ways.in->Poll(kRows));
        if (!frame.has_value()) return false;
        LC_RETURN_IF_ERROR(channels.Receive(*frame, own));
        LC_RETURN_IF_ERROR(ways.in->Release(kRows, frame->slot));
        return true;
      });
}

// The same with frames in parts: copies of one part beside the checks of another.
std::vector<double> PingPongInParts(transport::RowsMover& mover, TwoWays& ways,
                                    transport::ChannelEnd& end, uint32_t bytes, size_t rounds,
                                    const base::Clock& clock) {
  return PingPong(
      end, rounds, clock, [&] { return mover.Send(*ways.out, bytes); },
      [&] { return mover.Receive(*ways.in); });
}

// `device`: of frames in parts; null: whole frames.
void Measure(DeviceChannels& channels, const kernels::CudaDeviceFacts* device,
             const transport::PeerProcess& peer, const std::string& kind, uint32_t bytes,
             size_t rounds, uint64_t term, const base::Clock& clock) {
  const transport::ChannelOptions there = DeviceChannelOptions(bytes, term);
  transport::ChannelEnd end(clock);
  TwoWays ways;
  std::unique_ptr<transport::MovingEnd> moving;
  const auto own = channels.memory().Create(bytes);
  absl::Status status = own.status();
  if (status.ok()) status = ways.OpenIn(channels.factory(), BackOptions(there), end);
  if (status.ok() && device != nullptr) {
    auto made = MoveInParts(*device, bytes, end);
    status = made.status();
    if (made.ok()) moving = *std::move(made);
  }
  if (status.ok()) {
    peer.Write(absl::StrCat(device != nullptr ? "parts " : "answer ", bytes, " ", term, " ", rounds,
                            " ", absl::BytesToHexString(ways.offer)));
    status =
        ways.ConnectOut(channels.factory(), there, absl::HexStringToBytes(peer.ReadLine()), end);
  }
  if (!status.ok()) {
    std::printf("%-12s %8u bytes: %s\n", kind.c_str(), bytes, status.ToString().c_str());
  } else {
    const std::vector<double> hops =
        moving != nullptr
            ? PingPongInParts(moving->mover(), ways, end, bytes, rounds, clock)
            : PingPongWhole(channels, ways, end, own->memory->buffer(), bytes, rounds, clock);
    const std::string word = peer.ReadLine();
    std::printf("%-12s %8u bytes: %8.1f us least, %8.1f us median of %zu (%s)\n", kind.c_str(),
                bytes, hops.empty() ? 0 : hops.front(), hops.empty() ? 0 : hops[hops.size() / 2],
                hops.size(), word.c_str());
    peer.Write("end");
  }
  moving.reset();
  ways.Close(end);
}

// Channels that cannot be made: their status. What goes wrong later stands in the lines.
absl::Status MeasureKind(const std::string& kind,
                         const std::vector<kernels::CudaDeviceFacts>& devices,
                         const std::string& folder, const base::Clock& clock) {
  const transport::PeerProcess peer({"/proc/self/exe", "--peer", kind, folder});
  LC_ASSIGN_OR_RETURN(const auto channels,
                      DeviceChannels::Create(devices.front(), kind, folder, clock));
  std::printf("%s and %s\n", devices.front().uuid.c_str(), PeerDevice(devices).uuid.c_str());
  Measure(*channels, nullptr, peer, kind, 10 << 10, 1000, 1, clock);
  Measure(*channels, nullptr, peer, kind, 640 << 10, 500, 3, clock);
  Measure(*channels, nullptr, peer, kind, 5 << 20, 200, 5, clock);
  if (kind == "pinned_host") {
    Measure(*channels, &devices.front(), peer, "in parts", 640 << 10, 500, 7, clock);
    Measure(*channels, &devices.front(), peer, "in parts", 5 << 20, 200, 9, clock);
  }
  return absl::OkStatus();
}

int Main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was measured is seen, whatever ends this
  const base::SystemClock clock;
  const transport::TemporaryFolder folder;
  const auto devices = kernels::ListCudaDevices();
  if (!devices.ok()) {
    std::printf("%s\n", devices.status().ToString().c_str());
    return 1;
  }
  int measured = 0;
  for (const std::string kind : {"cuda_ipc", "pinned_host", "ucx"}) {
    const absl::Status status = MeasureKind(kind, *devices, folder.path(), clock);
    if (!status.ok()) std::printf("%-12s left out: %s\n", kind.c_str(), status.ToString().c_str());
    if (status.ok()) ++measured;
  }
  return measured > 0 ? 0 : 1;
}

}  // namespace
}  // namespace layercake::testing

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--peer") {
    return layercake::testing::RunChannelPeer(argv[2], argv[3]);
  }
  return layercake::testing::Main();
}
