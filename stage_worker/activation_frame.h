// What an activation frame carries: a v1.ActivationHeader section, then the residual stream of the
// step's rows, (rows, hidden) float32. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/frame.h"

namespace layercake::stage_worker {

// The first stage that saw a NaN or an infinity in a row; kFinite when none did. One per row.
inline constexpr int32_t kFinite = -1;

// Bytes that the header section takes at most, with every row marked.
size_t MaxActivationSectionBytes(int max_rows);
// What an activation slot must hold, or nullopt when that does not fit 32 bits.
std::optional<uint32_t> MinActivationSlotBytes(int max_rows, uint32_t hidden);

// `non_finite` is (rows) long.
std::string EncodeActivationSection(absl::Span<const int32_t> non_finite, uint32_t hidden);

// Checks a frame against the step it should belong to and gives the marks of its rows.
// `section` is in host memory; the rows behind it are `row_bytes` long, wherever they lie.
// FailedPrecondition: another step, kind, row count or width. DataLoss: sizes that do not fit, a
// section that does not parse, marks out of range.
absl::StatusOr<std::vector<int32_t>> DecodeActivation(const transport::FrameHeader& header,
                                                      absl::Span<const std::byte> section,
                                                      size_t row_bytes, uint64_t step, int rows,
                                                      uint32_t hidden, int stage);

}  // namespace layercake::stage_worker
