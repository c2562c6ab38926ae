// What the tests of every kind of channel stand on. Each test runs both ends in threads of their
// own.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/channel_rig.h"

namespace layercake::transport {

inline constexpr ChannelGeometry kSmall = {
    .plan_slots = 3, .plan_slot_bytes = 256, .activation_slots = 2, .activation_slot_bytes = 70000};

inline ChannelOptions Options(const ChannelGeometry& geometry = kSmall) {
  return {.ring = {.term = 5, .epoch = 9}, .geometry = geometry, .peer = "stage 2 (host b, cpu)"};
}

class ChannelTest : public ::testing::TestWithParam<TestKind> {
 protected:
  ChannelTest() : factories_(MakeTestFactories(GetParam(), clock_)) {}
  ChannelRig& MakeRig(const ChannelOptions& options = Options()) {
    rig_ = nullptr;
    rig_ =
        std::make_unique<ChannelRig>(*factories_->sender, *factories_->receiver, options, clock_);
    return *rig_;
  }

  const base::SystemClock clock_;
  const std::unique_ptr<TestFactories> factories_;
  std::unique_ptr<ChannelRig> rig_;
};

// On the sender's thread. The slot that was taken, once there is one.
inline bool TryAcquire(ChannelRig& rig, Lane lane, SendSlot& slot, absl::Status& status) {
  auto acquired = rig.sender->Acquire(lane);
  status = acquired.status();
  if (!acquired.ok()) return true;
  if (!acquired->has_value()) return false;
  slot = **acquired;
  return true;
}

// Half of a frame is sections, as far as a device slot has room for them.
inline uint32_t SectionBytes(size_t payload_bytes) {
  return static_cast<uint32_t>(std::min<size_t>(payload_bytes / 2, 4096));
}

// Sends `text` as one frame, from the test's thread.
inline absl::Status SendText(ChannelRig& rig, Lane lane, absl::string_view text,
                             uint64_t step = 0) {
  absl::Status status;
  SendSlot slot;
  if (!rig.sender_end.Await([&] { return TryAcquire(rig, lane, slot, status); })) {
    return absl::DeadlineExceededError("no slot");
  }
  if (!status.ok()) return status;
  rig.sender_end.Run([&] {
    const uint32_t section_bytes = SectionBytes(text.size());
    status = WritePayload(rig.sender_memory(), slot, text, section_bytes);
    if (!status.ok()) return;
    status = rig.sender->Commit(slot, {.kind = FrameKind::kActivation,
                                       .step = step,
                                       .section_bytes = section_bytes,
                                       .payload_bytes = static_cast<uint32_t>(text.size())});
  });
  return status;
}

struct Got {
  absl::Status status = absl::DeadlineExceededError("no frame");
  FrameHeader header;
  uint32_t slot = 0;
  std::string text;
};

inline Got ReceiveText(ChannelRig& rig, Lane lane, bool release = true) {
  Got got;
  rig.receiver_end.Await([&] {
    auto frame = rig.receiver->Poll(lane);
    if (frame.ok() && !frame->has_value()) return false;
    got.status = frame.status();
    if (!frame.ok()) return true;
    got.header = (*frame)->header;
    got.slot = (*frame)->slot;
    absl::StatusOr<std::string> text = ReadPayload(rig.receiver_memory(), **frame);
    got.status = text.status();
    if (!text.ok()) return true;
    got.text = *std::move(text);
    if (release) got.status = rig.receiver->Release(lane, got.slot);
    return true;
  });
  return got;
}

inline absl::Status AwaitSenderFailure(ChannelRig& rig,
                                       absl::Duration timeout = absl::Seconds(20)) {
  absl::Status status;
  rig.sender_end.Await(
      [&] {
        status = rig.sender->status();
        return !status.ok();
      },
      timeout);
  return status;
}

inline absl::Status AwaitReceiverFailure(ChannelRig& rig,
                                         absl::Duration timeout = absl::Seconds(20)) {
  absl::Status status;
  rig.receiver_end.Await(
      [&] {
        status = rig.receiver->status();
        return !status.ok();
      },
      timeout);
  return status;
}

// The error of connecting to `offer`, at once or later.
inline absl::Status ConnectError(ChannelRig& rig, const std::string& offer) {
  const absl::Status at_once = rig.ConnectSender(offer);
  return at_once.ok() ? AwaitSenderFailure(rig) : at_once;
}

// What frame `index` of a lane holds: sizes mostly small, sometimes the whole slot.
struct Stream {
  base::SeededRandom random;
  uint32_t slot_bytes;

  uint32_t NextBytes() {
    const uint64_t shift = random.Below(17);
    return static_cast<uint32_t>(
        random.Below(std::min<uint64_t>(slot_bytes, uint64_t{1} << shift) + 1));
  }
  void Fill(absl::Span<std::byte> to) {
    const uint64_t seed = random.Next();
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] = static_cast<std::byte>((seed >> (i % 57)) + i * 31);
    }
  }
};

inline absl::string_view AsText(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Every kind, by name.
inline auto EveryKind() {
  return ::testing::Values(TestKind::kLocal, TestKind::kPinnedHost, TestKind::kUcxTcp,
                           TestKind::kUcxSharedMemory, TestKind::kCudaIpc);
}
inline std::string KindNameOf(const ::testing::TestParamInfo<TestKind>& kind) {
  return TestKindName(kind.param);
}

}  // namespace layercake::transport
