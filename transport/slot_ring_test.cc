#include "transport/slot_ring.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gtest/gtest.h"

namespace layercake::transport {
namespace {

constexpr RingId kRing = {.term = 3, .epoch = 8};
constexpr ChannelGeometry kGeometry = {
    .plan_slots = 3, .plan_slot_bytes = 100, .activation_slots = 2, .activation_slot_bytes = 50};

FrameHeader Header(uint64_t sequence, Lane lane = Lane::kPlan, uint32_t payload_bytes = 10) {
  return {.kind = FrameKind::kPlan,
          .lane = lane,
          .ring = kRing,
          .sequence = sequence,
          .payload_bytes = payload_bytes};
}

TEST(SlotRing, GivesEverySlotOnceAndThenNone) {
  SenderRing ring(kRing, kGeometry);
  std::set<uint32_t> slots;
  for (int i = 0; i < 3; ++i) slots.insert(ring.Acquire(Lane::kPlan).value());
  EXPECT_EQ(slots, (std::set<uint32_t>{0, 1, 2}));
  EXPECT_FALSE(ring.Acquire(Lane::kPlan).has_value());
  EXPECT_TRUE(ring.Acquire(Lane::kActivation).has_value());
}

TEST(SlotRing, CountsFramesPerLaneFromZero) {
  SenderRing ring(kRing, kGeometry);
  for (uint64_t i = 0; i < 2; ++i) {
    for (const Lane lane : {Lane::kPlan, Lane::kActivation}) {
      const uint32_t slot = ring.Acquire(lane).value();
      const auto header = ring.Commit(lane, slot, {.step = 9, .payload_bytes = 5});
      ASSERT_TRUE(header.ok());
      EXPECT_EQ(header->sequence, i);
      EXPECT_EQ(header->lane, lane);
      EXPECT_EQ(header->ring, kRing);
      EXPECT_EQ(header->step, 9u);
    }
  }
}

TEST(SlotRing, RefusesCommitsOutOfOrderTwiceOrNeverAcquired) {
  SenderRing ring(kRing, kGeometry);
  EXPECT_TRUE(absl::IsFailedPrecondition(ring.Commit(Lane::kPlan, 0, {}).status()));
  const uint32_t first = ring.Acquire(Lane::kPlan).value();
  const uint32_t second = ring.Acquire(Lane::kPlan).value();
  EXPECT_TRUE(absl::IsFailedPrecondition(ring.Commit(Lane::kPlan, second, {}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(ring.Commit(Lane::kActivation, first, {}).status()));
  EXPECT_TRUE(ring.Commit(Lane::kPlan, first, {}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(ring.Commit(Lane::kPlan, first, {}).status()));
  EXPECT_TRUE(ring.Commit(Lane::kPlan, second, {}).ok());
}

TEST(SlotRing, RefusesCreditsForSlotsThatAreNotUnderWay) {
  SenderRing ring(kRing, kGeometry);
  EXPECT_TRUE(absl::IsDataLoss(ring.Credit(Lane::kPlan, 0)));
  EXPECT_TRUE(absl::IsDataLoss(ring.Credit(Lane::kPlan, 3)));
  EXPECT_TRUE(absl::IsDataLoss(ring.Credit(Lane::kPlan, 0xffffffff)));
  const uint32_t slot = ring.Acquire(Lane::kPlan).value();
  EXPECT_TRUE(absl::IsDataLoss(ring.Credit(Lane::kPlan, slot)));
  ASSERT_TRUE(ring.Commit(Lane::kPlan, slot, {}).ok());
  EXPECT_TRUE(absl::IsDataLoss(ring.Credit(Lane::kActivation, slot)));
  EXPECT_TRUE(ring.Credit(Lane::kPlan, slot).ok());
  EXPECT_TRUE(absl::IsDataLoss(ring.Credit(Lane::kPlan, slot)));
}

TEST(SlotRing, RefusesFramesOfAnOlderEpochOrTerm) {
  ReceiverRing ring(kRing, kGeometry);
  FrameHeader old_epoch = Header(0);
  old_epoch.ring.epoch = 7;
  EXPECT_TRUE(absl::IsFailedPrecondition(ring.Accept(Lane::kPlan, 0, old_epoch)));
  FrameHeader old_term = Header(0);
  old_term.ring.term = 2;
  EXPECT_TRUE(absl::IsFailedPrecondition(ring.Accept(Lane::kPlan, 0, old_term)));
  EXPECT_TRUE(ring.Accept(Lane::kPlan, 0, Header(0)).ok());
}

TEST(SlotRing, RefusesGapsRepeatsAndFramesInTheWrongPlace) {
  ReceiverRing ring(kRing, kGeometry);
  EXPECT_TRUE(absl::IsFailedPrecondition(ring.Accept(Lane::kPlan, 0, Header(1))));
  EXPECT_TRUE(absl::IsDataLoss(ring.Accept(Lane::kActivation, 0, Header(0))));
  EXPECT_TRUE(absl::IsDataLoss(ring.Accept(Lane::kPlan, 3, Header(0))));
  EXPECT_TRUE(absl::IsDataLoss(ring.Accept(Lane::kPlan, 0, Header(0, Lane::kPlan, 101))));
  EXPECT_EQ(ring.Held(Lane::kPlan), 0u);
  EXPECT_TRUE(ring.Accept(Lane::kPlan, 0, Header(0, Lane::kPlan, 100)).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(ring.Accept(Lane::kPlan, 1, Header(0))));
  EXPECT_TRUE(absl::IsDataLoss(ring.Accept(Lane::kPlan, 0, Header(1))));
  EXPECT_TRUE(ring.Accept(Lane::kPlan, 2, Header(1)).ok());
}

TEST(SlotRing, RefusesADoubleRelease) {
  ReceiverRing ring(kRing, kGeometry);
  EXPECT_TRUE(absl::IsFailedPrecondition(ring.Release(Lane::kPlan, 0)));
  ASSERT_TRUE(ring.Accept(Lane::kPlan, 0, Header(0)).ok());
  EXPECT_TRUE(ring.Release(Lane::kPlan, 0).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(ring.Release(Lane::kPlan, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(ring.Release(Lane::kPlan, 3)));
}

// Both ends over a wire that keeps order, with calls right and wrong in random order: every frame
// arrives once, in order, in the slot it was written to; a slot is never written while it is read;
// wrong calls change nothing; in the end everything is free again.
void RunRandomly(uint64_t seed) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  base::SeededRandom random(seed);
  const auto some = [&](uint64_t limit) { return static_cast<uint32_t>(1 + random.Below(limit)); };
  const ChannelGeometry geometry = {.plan_slots = some(6),
                                    .plan_slot_bytes = some(1000),
                                    .activation_slots = some(6),
                                    .activation_slot_bytes = some(1000)};
  SenderRing sender(kRing, geometry);
  ReceiverRing receiver(kRing, geometry);
  struct LaneModel {
    std::deque<uint32_t> acquired;
    std::deque<std::pair<uint32_t, FrameHeader>> wire;
    std::deque<uint32_t> credits;
    std::vector<uint32_t> held;
    uint64_t committed = 0;
    uint64_t accepted = 0;
  };
  std::array<LaneModel, kLaneCount> models;
  for (int step = 0; step < 3000; ++step) {
    const auto lane = static_cast<Lane>(random.Below(kLaneCount));
    LaneModel& model = models[static_cast<size_t>(lane)];
    const uint32_t slots = LaneSlots(geometry, lane);
    const size_t busy =
        model.acquired.size() + model.wire.size() + model.held.size() + model.credits.size();
    switch (random.Below(7)) {
      case 0: {
        const std::optional<uint32_t> slot = sender.Acquire(lane);
        ASSERT_EQ(slot.has_value(), busy < slots);
        if (slot) model.acquired.push_back(*slot);
        break;
      }
      case 1: {
        if (model.acquired.empty()) break;
        const auto bytes = static_cast<uint32_t>(random.Below(LaneSlotBytes(geometry, lane) + 1));
        const auto header = sender.Commit(lane, model.acquired.front(), {.payload_bytes = bytes});
        ASSERT_TRUE(header.ok()) << header.status();
        ASSERT_EQ(header->sequence, model.committed++);
        model.wire.emplace_back(model.acquired.front(), *header);
        model.acquired.pop_front();
        break;
      }
      case 2: {
        if (model.wire.empty()) break;
        const auto [slot, header] = model.wire.front();
        ASSERT_EQ(receiver.Accept(lane, slot, header), absl::OkStatus());
        ASSERT_EQ(header.sequence, model.accepted++);
        model.wire.pop_front();
        model.held.push_back(slot);
        break;
      }
      case 3: {
        if (model.held.empty()) break;
        const size_t which = random.Below(model.held.size());
        ASSERT_TRUE(receiver.Release(lane, model.held[which]).ok());
        model.credits.push_back(model.held[which]);
        model.held.erase(model.held.begin() + static_cast<ptrdiff_t>(which));
        break;
      }
      case 4: {
        if (model.credits.empty()) break;
        ASSERT_TRUE(sender.Credit(lane, model.credits.front()).ok());
        model.credits.pop_front();
        break;
      }
      case 5: {  // wrong calls of the sender
        const auto slot = static_cast<uint32_t>(random.Below(slots + 2));
        const bool next = !model.acquired.empty() && model.acquired.front() == slot;
        const uint32_t too_long = LaneSlotBytes(geometry, lane) + 1;
        ASSERT_FALSE(sender.Commit(lane, slot, {.payload_bytes = next ? too_long : 0}).ok());
        if (std::count(model.acquired.begin(), model.acquired.end(), slot) > 0) {
          ASSERT_FALSE(sender.Credit(lane, slot).ok());
        }
        break;
      }
      default: {  // wrong frames and calls at the receiver
        FrameHeader header{.lane = lane, .ring = kRing, .sequence = model.accepted};
        const auto slot = static_cast<uint32_t>(random.Below(slots));
        switch (random.Below(5)) {
          case 0:
            header.sequence += 1 + random.Below(9);
            break;
          case 1:
            header.sequence -= 1 + random.Below(9);
            break;
          case 2:
            header.ring.epoch -= 1;
            break;
          case 3:
            header.ring.term += 1;
            break;
          default:
            header.payload_bytes = LaneSlotBytes(geometry, lane) + 1;
            break;
        }
        ASSERT_FALSE(receiver.Accept(lane, slot, header).ok());
        if (std::count(model.held.begin(), model.held.end(), slot) == 0) {
          ASSERT_FALSE(receiver.Release(lane, slot).ok());
        }
      }
    }
    ASSERT_EQ(sender.InFlight(lane), model.wire.size() + model.held.size() + model.credits.size());
    ASSERT_EQ(receiver.Held(lane), model.held.size());
  }
}

TEST(SlotRing, KeepsItsRulesOverRandomCalls) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    RunRandomly(seed);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace layercake::transport
