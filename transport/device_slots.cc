#include "transport/device_slots.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/little_endian.h"

namespace layercake::transport {
namespace {

// Description, little-endian: stamp 16 bytes, ring_bytes u64, device_bytes u32, device, handle.
constexpr size_t kStampBytes = sizeof(Secret);
constexpr size_t kRingBytesAt = kStampBytes;
constexpr size_t kDeviceBytesAt = kRingBytesAt + 8;
constexpr size_t kDeviceAt = kDeviceBytesAt + 4;
constexpr size_t kMaxDescriptionBytes = 1000;
constexpr uint32_t kPageBytes = 4096;

// At most 2^10 slots of 2^30 bytes: nothing wraps.
size_t Stride(const ChannelGeometry& geometry) {
  return (size_t{geometry.activation_slot_bytes} + DeviceSlots::kAlignment - 1) /
         DeviceSlots::kAlignment * DeviceSlots::kAlignment;
}
size_t SlotsBytes(const ChannelGeometry& geometry) {
  return Stride(geometry) * geometry.activation_slots;
}
// The stamp takes the place of one more, small slot.
size_t RingBytes(const ChannelGeometry& geometry) {
  return SlotsBytes(geometry) + DeviceSlots::kAlignment;
}

kernels::Buffer StampOf(const kernels::DeviceMemory& memory, const ChannelGeometry& geometry) {
  const kernels::Buffer ring = memory.buffer();
  return {ring.address + SlotsBytes(geometry), kStampBytes, ring.space};
}

struct Description {
  Secret stamp{};
  uint64_t ring_bytes = 0;
  std::string device;
  std::string handle;
};

std::string Encode(const Description& description) {
  std::string text(kDeviceAt, '\0');
  auto* const at = reinterpret_cast<std::byte*>(text.data());
  std::memcpy(at, description.stamp.data(), kStampBytes);
  StoreLittleEndian(at + kRingBytesAt, description.ring_bytes);
  StoreLittleEndian(at + kDeviceBytesAt, static_cast<uint32_t>(description.device.size()));
  absl::StrAppend(&text, description.device, description.handle);
  return text;
}

absl::StatusOr<Description> Decode(absl::string_view text) {
  const auto* const at = reinterpret_cast<const std::byte*>(text.data());
  if (text.size() < kDeviceAt || text.size() > kMaxDescriptionBytes ||
      LoadLittleEndian<uint32_t>(at + kDeviceBytesAt) > text.size() - kDeviceAt) {
    return absl::DataLossError(absl::StrCat("refuse the description of a ring in device memory: ",
                                            text.size(), " bytes that are none"));
  }
  Description description;
  std::memcpy(description.stamp.data(), at, kStampBytes);
  description.ring_bytes = LoadLittleEndian<uint64_t>(at + kRingBytesAt);
  const size_t device_bytes = LoadLittleEndian<uint32_t>(at + kDeviceBytesAt);
  description.device = std::string(text.substr(kDeviceAt, device_bytes));
  description.handle = std::string(text.substr(kDeviceAt + device_bytes));
  return description;
}

}  // namespace

uint32_t DeviceSlots::SectionBytes(uint32_t activation_slot_bytes) {
  return (activation_slot_bytes / 32 + 2 * kPageBytes - 1) / kPageBytes * kPageBytes;
}

ChannelGeometry DeviceSlots::HostGeometry(const ChannelGeometry& geometry) {
  ChannelGeometry host = geometry;
  host.activation_slot_bytes = SectionBytes(geometry.activation_slot_bytes);
  return host;
}

absl::StatusOr<DeviceSlots> DeviceSlots::Create(kernels::PeerMemory& memory,
                                                const ChannelGeometry& geometry) {
  const size_t ring_bytes = RingBytes(geometry);
  LC_ASSIGN_OR_RETURN(kernels::PeerMemory::Exported exported, memory.Create(ring_bytes));
  const Description description{.stamp = MakeSecret(),
                                .ring_bytes = ring_bytes,
                                .device = memory.device(),
                                .handle = std::move(exported.handle)};
  LC_RETURN_IF_ERROR(
      memory.CopyIn(description.stamp.data(), StampOf(*exported.memory, geometry), kStampBytes));
  DeviceSlots slots;
  slots.memory_ = std::move(exported.memory);
  slots.description_ = Encode(description);
  slots.stride_ = Stride(geometry);
  slots.slot_bytes_ = geometry.activation_slot_bytes;
  if (slots.description_.size() <= kMaxDescriptionBytes) return slots;
  return absl::InternalError(absl::StrCat("the handle of a ring on ", description.device, " has ",
                                          description.handle.size(), " bytes, too many to tell"));
}

absl::StatusOr<DeviceSlots> DeviceSlots::Open(kernels::PeerMemory& memory,
                                              const ChannelGeometry& geometry,
                                              absl::string_view description) {
  LC_ASSIGN_OR_RETURN(const Description ring, Decode(description));
  const std::string what =
      absl::StrCat("map the slots on ", ring.device, " from ", memory.device());
  if (ring.ring_bytes != RingBytes(geometry)) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": their ring has ", ring.ring_bytes,
                                                      " bytes, not ", RingBytes(geometry)));
  }
  absl::StatusOr<std::unique_ptr<kernels::DeviceMemory>> opened =
      memory.Open(ring.handle, RingBytes(geometry));
  if (!opened.ok()) {
    return absl::Status(opened.status().code(),
                        absl::StrCat(what, ": ", opened.status().message()));
  }
  Secret stamp{};
  LC_RETURN_IF_ERROR(memory.CopyOut(StampOf(**opened, geometry), stamp.data(), kStampBytes));
  if (stamp != ring.stamp) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": the mapping shows another ring, or copies do not arrive"));
  }
  DeviceSlots slots;
  slots.memory_ = *std::move(opened);
  slots.stride_ = Stride(geometry);
  slots.slot_bytes_ = geometry.activation_slot_bytes;
  return slots;
}

kernels::Buffer DeviceSlots::Slot(uint32_t slot) const {
  const kernels::Buffer ring = memory_->buffer();
  return {ring.address + slot * stride_, slot_bytes_, ring.space};
}

}  // namespace layercake::transport
