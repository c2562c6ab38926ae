#include "stage_worker/activation_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

namespace layercake::stage_worker {
namespace {

using ::testing::ElementsAre;

struct Frame {
  transport::FrameHeader header;
  std::vector<std::byte> payload;
};

Frame MakeFrame(const std::vector<int32_t>& marks, uint32_t hidden) {
  const std::string section = EncodeActivationSection(marks, hidden);
  Frame frame;
  frame.payload.resize(section.size() + marks.size() * hidden * sizeof(float));
  std::memcpy(frame.payload.data(), section.data(), section.size());
  frame.header.kind = transport::FrameKind::kActivation;
  frame.header.step = 4;
  frame.header.section_bytes = static_cast<uint32_t>(section.size());
  frame.header.payload_bytes = static_cast<uint32_t>(frame.payload.size());
  return frame;
}

absl::StatusOr<std::vector<int32_t>> Decode(const Frame& frame, int rows) {
  const size_t section = std::min<size_t>(frame.header.section_bytes, frame.payload.size());
  return DecodeActivation(frame.header, absl::MakeConstSpan(frame.payload).first(section),
                          frame.payload.size() - section, 4, rows, 8, 2);
}

TEST(ActivationFrame, CarriesTheMarksOfItsRows) {
  const Frame frame = MakeFrame({kFinite, 0, kFinite, 1}, 8);
  const auto marks = Decode(frame, 4);
  ASSERT_TRUE(marks.ok()) << marks.status();
  EXPECT_THAT(*marks, ElementsAre(kFinite, 0, kFinite, 1));
}

TEST(ActivationFrame, MayHaveNoRows) {
  const Frame frame = MakeFrame({}, 8);
  const auto marks = Decode(frame, 0);
  ASSERT_TRUE(marks.ok()) << marks.status();
  EXPECT_TRUE(marks->empty());
}

TEST(ActivationFrame, RefusesWhatIsNotTheStepsOwn) {
  struct Case {
    std::string name;
    std::function<void(Frame&)> change;
    absl::StatusCode code;
  };
  const std::vector<Case> cases = {
      {"kind", [](Frame& f) { f.header.kind = transport::FrameKind::kProbe; },
       absl::StatusCode::kFailedPrecondition},
      {"step", [](Frame& f) { f.header.step = 5; }, absl::StatusCode::kFailedPrecondition},
      {"short", [](Frame& f) { f.payload.pop_back(); }, absl::StatusCode::kDataLoss},
      {"short and said so",
       [](Frame& f) {
         f.payload.pop_back();
         f.header.payload_bytes -= 1;
       },
       absl::StatusCode::kDataLoss},
      {"section beyond the payload", [](Frame& f) { f.header.section_bytes = 1 << 20; },
       absl::StatusCode::kDataLoss},
      {"section that is none", [](Frame& f) { f.payload[0] = std::byte{0xff}; },
       absl::StatusCode::kDataLoss},
      {"another width",
       [](Frame& f) {
         f = MakeFrame({0, 1}, 16);
       },
       absl::StatusCode::kFailedPrecondition},
      {"another row count",
       [](Frame& f) {
         f = MakeFrame({0, 1, 0}, 8);
       },
       absl::StatusCode::kFailedPrecondition},
      {"a mark of a stage that comes later",
       [](Frame& f) {
         f = MakeFrame({0, 2}, 8);
       },
       absl::StatusCode::kDataLoss},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    Frame frame = MakeFrame({0, 1}, 8);
    ASSERT_TRUE(Decode(frame, 2).ok());
    test.change(frame);
    EXPECT_EQ(Decode(frame, 2).status().code(), test.code);
  }
}

TEST(ActivationFrame, FitsItsSlotWithEveryRowMarked) {
  for (const int rows : {1, 3, 256, 1 << 16}) {
    const std::vector<int32_t> marks(static_cast<size_t>(rows), 1022);
    EXPECT_LE(EncodeActivationSection(marks, 1 << 17).size(), MaxActivationSectionBytes(rows));
  }
  EXPECT_EQ(MinActivationSlotBytes(2, 8), 2 * 8 * 4 + MaxActivationSectionBytes(2));
  EXPECT_FALSE(MinActivationSlotBytes(1 << 16, 1 << 17).has_value());
}

}  // namespace
}  // namespace layercake::stage_worker
