#include "transport/channel.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace layercake::transport {
namespace {

constexpr std::array<TransportKind, 4> kKinds = {TransportKind::kLocal, TransportKind::kPinnedHost,
                                                 TransportKind::kUcx, TransportKind::kCudaIpc};
constexpr uint32_t kMaxSlots = 1024;
constexpr uint32_t kMaxSlotBytes = 1u << 30;
constexpr uint64_t kMaxRingBytes = uint64_t{64} << 30;

absl::Status CheckRange(absl::string_view name, uint32_t value, uint32_t limit) {
  if (value >= 1 && value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a channel needs ", name, " from 1 to ", limit, ", not ", value));
}

}  // namespace

kernels::Buffer ReceivedFrame::sections() const {
  if (payload.space == kernels::MemorySpace::kDevice) return section;
  return {payload.address, header.section_bytes, payload.space};
}

kernels::Buffer ReceivedFrame::body() const {
  if (payload.space == kernels::MemorySpace::kDevice) return payload;
  return {payload.address + header.section_bytes, payload.bytes - header.section_bytes,
          payload.space};
}

absl::string_view TransportKindName(TransportKind kind) {
  switch (kind) {
    case TransportKind::kLocal:
      return "local";
    case TransportKind::kPinnedHost:
      return "pinned_host";
    case TransportKind::kUcx:
      return "ucx";
    case TransportKind::kCudaIpc:
      return "cuda_ipc";
  }
  return "unknown";
}

absl::StatusOr<TransportKind> ParseTransportKind(absl::string_view name) {
  for (const TransportKind kind : kKinds) {
    if (name == TransportKindName(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown transport \"", name, "\"; there are local, pinned_host, ucx and cuda_ipc"));
}

absl::Status ValidateGeometry(const ChannelGeometry& geometry) {
  LC_RETURN_IF_ERROR(CheckRange("plan_slots", geometry.plan_slots, kMaxSlots));
  LC_RETURN_IF_ERROR(CheckRange("plan_slot_bytes", geometry.plan_slot_bytes, kMaxSlotBytes));
  LC_RETURN_IF_ERROR(CheckRange("activation_slots", geometry.activation_slots, kMaxSlots));
  LC_RETURN_IF_ERROR(
      CheckRange("activation_slot_bytes", geometry.activation_slot_bytes, kMaxSlotBytes));
  // At most 2^10 * 2^30 each: no product wraps.
  const uint64_t ring_bytes = uint64_t{geometry.plan_slots} * geometry.plan_slot_bytes +
                              uint64_t{geometry.activation_slots} * geometry.activation_slot_bytes;
  if (ring_bytes > kMaxRingBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a channel of ", ring_bytes,
                                                   " bytes exceeds the limit of ", kMaxRingBytes,
                                                   "; use fewer or smaller slots"));
  }
  return absl::OkStatus();
}

}  // namespace layercake::transport
