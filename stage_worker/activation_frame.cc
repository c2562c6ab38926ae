#include "stage_worker/activation_frame.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "layercake/v1/control.pb.h"

namespace layercake::stage_worker {

size_t MaxActivationSectionBytes(int max_rows) {
  // rows and width: a tag and five bytes each. Each list: a tag and a length of five bytes, then
  // at most three bytes a row (row indices < 2^16; stages < 2^10).
  return 12 + 2 * 6 + 6 * static_cast<size_t>(max_rows);
}

std::optional<uint32_t> MinActivationSlotBytes(int max_rows, uint32_t hidden) {
  const auto row_bytes = base::CheckedMul(hidden, sizeof(float));
  if (!row_bytes) return std::nullopt;
  const auto rows_bytes = base::CheckedMul(*row_bytes, static_cast<uint64_t>(max_rows));
  if (!rows_bytes) return std::nullopt;
  const auto total = base::CheckedAdd(*rows_bytes, MaxActivationSectionBytes(max_rows));
  if (!total || *total > std::numeric_limits<uint32_t>::max()) return std::nullopt;
  return static_cast<uint32_t>(*total);
}

std::string EncodeActivationSection(absl::Span<const int32_t> non_finite, uint32_t hidden) {
  v1::ActivationHeader section;
  section.set_rows(static_cast<uint32_t>(non_finite.size()));
  section.set_width(hidden);
  for (size_t row = 0; row < non_finite.size(); ++row) {
    if (non_finite[row] == kFinite) continue;
    section.add_non_finite_rows(static_cast<uint32_t>(row));
    section.add_non_finite_stages(static_cast<uint32_t>(non_finite[row]));
  }
  return section.SerializeAsString();
}

namespace {

absl::StatusOr<std::vector<int32_t>> MarksOf(const v1::ActivationHeader& section, int rows,
                                             int stage) {
  if (section.non_finite_rows_size() > rows ||
      section.non_finite_rows_size() != section.non_finite_stages_size()) {
    return absl::DataLossError(
        absl::StrCat("activation section marks ", section.non_finite_rows_size(), " rows with ",
                     section.non_finite_stages_size(), " stages, of ", rows));
  }
  std::vector<int32_t> marks(static_cast<size_t>(rows), kFinite);
  for (int i = 0; i < section.non_finite_rows_size(); ++i) {
    const uint32_t row = section.non_finite_rows(i);
    const uint32_t seen_by = section.non_finite_stages(i);
    if (row >= static_cast<uint32_t>(rows) || seen_by >= static_cast<uint32_t>(stage)) {
      return absl::DataLossError(absl::StrCat("activation section marks row ", row, " of ", rows,
                                              " by stage ", seen_by, ", received at stage ",
                                              stage));
    }
    marks[row] = static_cast<int32_t>(seen_by);
  }
  return marks;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> DecodeActivation(const transport::FrameHeader& header,
                                                      absl::Span<const std::byte> section_bytes,
                                                      size_t row_bytes, uint64_t step, int rows,
                                                      uint32_t hidden, int stage) {
  if (header.kind != transport::FrameKind::kActivation) {
    return absl::FailedPreconditionError(
        absl::StrCat("frame of kind ", static_cast<int>(header.kind), " on the activation lane"));
  }
  if (header.step != step) {
    return absl::FailedPreconditionError(
        absl::StrCat("activation of step ", header.step, " came, expected step ", step));
  }
  if (section_bytes.size() != header.section_bytes ||
      section_bytes.size() + row_bytes != header.payload_bytes) {
    return absl::DataLossError(absl::StrCat("activation of step ", step, ": a section of ",
                                            section_bytes.size(), " and rows of ", row_bytes,
                                            " bytes, header says ", header.payload_bytes,
                                            " with a section of ", header.section_bytes));
  }
  v1::ActivationHeader section;
  if (header.section_bytes > MaxActivationSectionBytes(rows) ||
      !section.ParseFromArray(section_bytes.data(), static_cast<int>(header.section_bytes))) {
    return absl::DataLossError(absl::StrCat("activation of step ", step, ": section of ",
                                            header.section_bytes, " bytes cannot be read"));
  }
  if (section.rows() != static_cast<uint32_t>(rows) || section.width() != hidden) {
    return absl::FailedPreconditionError(
        absl::StrCat("activation of step ", step, " is (", section.rows(), ", ", section.width(),
                     "), its plan says (", rows, ", ", hidden, ")"));
  }
  const uint64_t expected = uint64_t{section.rows()} * hidden * sizeof(float);
  if (row_bytes != expected) {
    return absl::DataLossError(absl::StrCat("activation of step ", step, ": ", row_bytes,
                                            " bytes of rows, expected ", expected));
  }
  return MarksOf(section, rows, stage);
}

}  // namespace layercake::stage_worker
