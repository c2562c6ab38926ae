// The other end of a channel, in a process that a test kills.
//
//   channel_peer KIND ROLE FOLDER     KIND: pinned_host, cuda_ipc (over fake device memory),
//                                     ucx_tcp, ucx_shared_memory
// As `receiver` it prints its offer in hex, as `sender` it reads one from standard input. Both
// print "connected"; a sender then commits ten frames, a receiver polls and releases what comes.
// Both wait until they are killed.
#include <cstdio>
#include <iostream>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "transport/channel_rig.h"

namespace layercake::transport {
namespace {

constexpr int kFrames = 10;

std::unique_ptr<ChannelFactory> MakeFactory(absl::string_view kind, const std::string& folder,
                                            const base::Clock& clock, FakePeerMemory& memory,
                                            std::unique_ptr<UcxWorker>& worker) {
  if (kind == "cuda_ipc") return std::make_unique<CudaIpcChannelFactory>(memory, folder);
  if (kind == "pinned_host") {
    PinnedHostOptions options;
    options.socket_folder = folder;
    return std::make_unique<PinnedHostChannelFactory>(std::move(options));
  }
  auto made = UcxWorker::Create(
      clock, TestUcxOptions(kind == "ucx_tcp" ? TestKind::kUcxTcp : TestKind::kUcxSharedMemory));
  if (!made.ok()) return nullptr;
  worker = *std::move(made);
  return std::make_unique<UcxChannelFactory>(*worker);
}

// True when all ten frames went.
bool SendSome(ChannelSender& sender, int& sent) {
  while (sent < kFrames) {
    const auto slot = sender.Acquire(Lane::kActivation);
    if (!slot.ok() || !slot->has_value()) return false;
    if (!sender.Commit(**slot, {.kind = FrameKind::kActivation, .payload_bytes = 1000}).ok()) {
      return false;
    }
    ++sent;
  }
  return true;
}

// False on and on: it ends with the process.
bool ReceiveAll(ChannelReceiver& receiver) {
  for (;;) {
    const auto frame = receiver.Poll(Lane::kActivation);
    if (!frame.ok() || !frame->has_value()) return false;
    if (!receiver.Release(Lane::kActivation, (*frame)->slot).ok()) return false;
  }
}

int Main(absl::string_view kind, absl::string_view role, const std::string& folder) {
  base::SystemClock clock;
  std::unique_ptr<UcxWorker> worker;
  FakePeerMemory memory;
  const std::unique_ptr<ChannelFactory> factory = MakeFactory(kind, folder, clock, memory, worker);
  if (factory == nullptr) return 1;
  ChannelRig rig(*factory, *factory, PeerTestOptions(), clock);
  if (role == "receiver") {
    if (!rig.CreateReceiver().ok()) return 1;
    std::cout << absl::BytesToHexString(rig.offer) << std::endl;
    rig.receiver_end.Await([&] { return rig.receiver->connected(); });
    std::cout << "connected" << std::endl;
    rig.receiver_end.Await([&] { return ReceiveAll(*rig.receiver); }, absl::Minutes(5));
    return 0;
  }
  std::string offer;
  std::getline(std::cin, offer);
  if (!rig.ConnectSender(absl::HexStringToBytes(offer)).ok()) return 1;
  rig.sender_end.Await([&] { return rig.sender->connected(); });
  int sent = 0;
  rig.sender_end.Await([&] { return SendSome(*rig.sender, sent); });
  std::cout << "connected" << std::endl;
  rig.sender_end.Await([] { return false; }, absl::Minutes(5));
  return 0;
}

}  // namespace
}  // namespace layercake::transport

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: channel_peer KIND ROLE FOLDER\n");
    return 2;
  }
  return layercake::transport::Main(argv[1], argv[2], argv[3]);
}
