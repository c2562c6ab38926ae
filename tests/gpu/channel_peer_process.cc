#include "tests/gpu/channel_peer_process.h"

#include <iostream>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda_peer_memory.h"
#include "transport/crc32c.h"
#include "transport/probe.h"

namespace layercake::testing {
namespace {

using transport::ChannelOptions;
using transport::ChannelRig;

void Print(const std::string& line) { std::cout << line << std::endl; }

// True when there is nothing more to come.
bool Report(DeviceChannels& channels, transport::ChannelReceiver& receiver) {
  for (;;) {
    const auto frame = receiver.Poll(kRows);
    if (!frame.ok()) {
      Print(frame.status().ToString());
      return true;
    }
    if (!frame->has_value()) return false;
    const auto payload = transport::ReadPayload(&channels.memory(), **frame);
    if (!payload.ok()) {
      Print(payload.status().ToString());
      return true;
    }
    const uint32_t sum =
        transport::Crc32c({reinterpret_cast<const std::byte*>(payload->data()), payload->size()});
    const absl::Status released = receiver.Release(kRows, (*frame)->slot);
    Print(absl::StrCat((*frame)->header.step, " ", payload->size(), " ", sum,
                       released.ok() ? "" : " not released"));
  }
}

void ReceiveUntilTheEnd(DeviceChannels& channels, const ChannelOptions& options,
                        const base::Clock& clock) {
  ChannelRig rig(channels.factory(), channels.factory(), options, clock);
  if (const absl::Status made = rig.CreateReceiver(); !made.ok()) {
    Print(made.ToString());
    return;
  }
  Print(absl::BytesToHexString(rig.offer));
  rig.receiver_end.Await([&] { return rig.receiver->connected() || !rig.receiver->status().ok(); });
  transport::ProbeReceiver probe(*rig.receiver, options, &channels.memory());
  absl::StatusOr<bool> proved = false;
  rig.receiver_end.Await([&] {
    proved = probe.Advance();
    return !proved.ok() || *proved;
  });
  Print(proved.ok() ? "proved" : proved.status().ToString());
  if (!proved.ok()) return;
  rig.receiver_end.Await([&] { return Report(channels, *rig.receiver); }, absl::Minutes(2));
}

// Sends what came back over a block of the device; false when a channel failed.
bool SendBack(DeviceChannels& channels, TwoWays& ways, kernels::Buffer own, size_t& answers) {
  for (;;) {
    const auto frame = ways.in->Poll(kRows);
    if (!frame.ok()) return false;
    if (!frame->has_value()) return true;
    const uint32_t bytes = (*frame)->header.payload_bytes;
    if (!channels.Receive(**frame, own).ok()) return false;
    if (!ways.in->Release(kRows, (*frame)->slot).ok()) return false;
    if (!channels.SendRows(*ways.out, own, bytes).ok()) return false;
    ++answers;
  }
}

// The same in parts.
bool MoveBack(transport::RowsMover& mover, TwoWays& ways, uint32_t bytes, size_t& answers) {
  for (;;) {
    const auto received = mover.Receive(*ways.in);
    if (!received.ok()) return false;
    if (!*received) return true;
    if (!mover.Send(*ways.out, bytes).ok()) return false;
    ++answers;
  }
}

void Answer(DeviceChannels& channels, const kernels::CudaDeviceFacts* device,
            const ChannelOptions& there, size_t rounds, const std::string& offer,
            const base::Clock& clock) {
  const uint32_t bytes = there.geometry.activation_slot_bytes;
  const auto own = channels.memory().Create(bytes);
  transport::ChannelEnd end(clock);
  TwoWays ways;
  std::unique_ptr<transport::MovingEnd> moving;
  size_t answers = 0;
  absl::Status opened = own.ok() ? ways.OpenIn(channels.factory(), there, end) : own.status();
  if (opened.ok() && device != nullptr) {
    auto made = MoveInParts(*device, bytes, end);
    opened = made.status();
    if (made.ok()) moving = *std::move(made);
  }
  Print(opened.ok() ? absl::BytesToHexString(ways.offer) : opened.ToString());
  const absl::Status connected =
      opened.ok() ? ways.ConnectOut(channels.factory(), BackOptions(there), offer, end) : opened;
  if (connected.ok()) {
    end.Await(
        [&] {
          const bool alive = moving != nullptr
                                 ? MoveBack(moving->mover(), ways, bytes, answers)
                                 : SendBack(channels, ways, own->memory->buffer(), answers);
          return !alive || answers == rounds;
        },
        absl::Minutes(1));
  }
  Print(answers == rounds ? "done" : absl::StrCat("only ", answers, " answers"));
  std::string line;
  std::getline(std::cin, line);  // the other end has what it wants
  moving.reset();
  ways.Close(end);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceChannels>> DeviceChannels::Create(
    const kernels::CudaDeviceFacts& device, const std::string& kind, const std::string& folder,
    const base::Clock& clock) {
  auto made = std::make_unique<DeviceChannels>();
  LC_ASSIGN_OR_RETURN(made->memory_, kernels::CreateCudaPeerMemory(device));
  if (kind == "cuda_ipc") {
    made->factory_ = std::make_unique<transport::CudaIpcChannelFactory>(*made->memory_, folder);
    return made;
  }
  transport::RegisterHostMemory pin = [memory = made->memory_.get()](absl::Span<std::byte> pages) {
    return memory->PinHost(pages);
  };
  if (kind == "pinned_host") {
    made->factory_ =
        std::make_unique<transport::PinnedHostChannelFactory>(transport::PinnedHostOptions{
            .socket_folder = folder, .register_host_memory = std::move(pin)});
    return made;
  }
  if (kind == "ucx") {
    LC_ASSIGN_OR_RETURN(made->ucx_, transport::UcxWorker::Create(clock, {}));
    made->factory_ = std::make_unique<transport::UcxChannelFactory>(*made->ucx_, std::move(pin));
    return made;
  }
  return absl::InvalidArgumentError(absl::StrCat("no channels between devices by \"", kind, "\""));
}

absl::Status DeviceChannels::SendRows(transport::ChannelSender& sender, kernels::Buffer from,
                                      uint32_t bytes) {
  LC_ASSIGN_OR_RETURN(const std::optional<transport::SendSlot> slot, sender.Acquire(kRows));
  if (!slot.has_value()) return absl::ResourceExhaustedError("no slot is free");
  if (slot->memory.space == kernels::MemorySpace::kDevice) {
    LC_RETURN_IF_ERROR(memory_->Copy(from, slot->memory, bytes));
  } else {
    LC_RETURN_IF_ERROR(memory_->CopyOut(from, slot->memory.address, bytes));
  }
  return sender.Commit(*slot, {.kind = transport::FrameKind::kActivation, .payload_bytes = bytes});
}

absl::Status DeviceChannels::Receive(const transport::ReceivedFrame& frame, kernels::Buffer to) {
  const kernels::Buffer body = frame.body();
  if (body.space == kernels::MemorySpace::kDevice) return memory_->Copy(body, to, body.bytes);
  return memory_->CopyIn(body.address, to, body.bytes);
}

ChannelOptions DeviceChannelOptions(uint32_t slot_bytes, uint64_t term) {
  return {.ring = {.term = term, .epoch = 1},
          .geometry = {.plan_slots = 2,
                       .plan_slot_bytes = 4096,
                       .activation_slots = 2,
                       .activation_slot_bytes = slot_bytes},
          .peer = "the other process"};
}

ChannelOptions BackOptions(ChannelOptions there) {
  ++there.ring.term;
  return there;
}

absl::Status TwoWays::OpenIn(transport::ChannelFactory& factory, const ChannelOptions& options,
                             transport::ChannelEnd& end) {
  absl::Status status;
  end.Run([&] {
    auto made = factory.CreateReceiver(options, end.context());
    status = made.status();
    if (made.ok()) in = *std::move(made);
    if (in != nullptr) offer = in->offer();
  });
  return status;
}

absl::Status TwoWays::ConnectOut(transport::ChannelFactory& factory, const ChannelOptions& options,
                                 const std::string& to, transport::ChannelEnd& end) {
  absl::Status status;
  end.Run([&] {
    auto made = factory.Connect(to, options, end.context());
    status = made.status();
    if (made.ok()) out = *std::move(made);
  });
  if (!status.ok()) return status;
  const bool settled = end.Await([&] {
    status = out->status();
    return out->connected() || !status.ok();
  });
  return settled ? status : absl::DeadlineExceededError("the channel did not connect");
}

void TwoWays::Close(transport::ChannelEnd& end) {
  end.Run([this] {
    in = nullptr;
    out = nullptr;
  });
}

absl::StatusOr<std::unique_ptr<transport::MovingEnd>> MoveInParts(
    const kernels::CudaDeviceFacts& device, uint32_t bytes, transport::ChannelEnd& end) {
  const auto make = [&](base::Executor& on_done) {
    return kernels::CreateCudaDevice(device, on_done);
  };
  return transport::MovingEnd::Create(end, make, bytes, /*in_parts=*/true);
}

kernels::CudaDeviceFacts PeerDevice(const std::vector<kernels::CudaDeviceFacts>& devices) {
  return devices.back();
}

int RunChannelPeer(const std::string& kind, const std::string& folder) {
  const base::SystemClock clock;
  const auto devices = kernels::ListCudaDevices();
  if (!devices.ok()) return 1;
  const auto channels = DeviceChannels::Create(PeerDevice(*devices), kind, folder, clock);
  if (!channels.ok()) {
    Print(channels.status().ToString());
    return 1;
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    uint32_t bytes = 0;
    uint64_t term = 0;
    size_t rounds = 0;
    std::string offer;
    words >> command >> bytes >> term >> rounds >> offer;
    if (command == "receive") {
      ReceiveUntilTheEnd(**channels, DeviceChannelOptions(bytes, term), clock);
    } else if (command == "answer" || command == "parts") {
      const kernels::CudaDeviceFacts device = PeerDevice(*devices);
      Answer(**channels, command == "parts" ? &device : nullptr, DeviceChannelOptions(bytes, term),
             rounds, absl::HexStringToBytes(offer), clock);
    } else {
      return 2;
    }
  }
  return 0;
}

}  // namespace layercake::testing
