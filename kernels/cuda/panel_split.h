// How a matrix is cut into panels of rows that are unpacked and multiplied one after the other.
// Pure; any thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace layercake::kernels::cuda {

// Bytes of the largest panel. Larger panels fill the device better; this one holds 26,214 rows of
// 5,120 columns, many times what one wave of tiles covers.
inline constexpr int64_t kMaxPanelBytes = int64_t{256} << 20;
// Panels begin at multiples of this: of the units and of the products' tiles.
inline constexpr int64_t kPanelRowStep = 128;

// Rows of each panel (the last may have fewer) of 2-byte weights in a buffer of `panel_bytes`: as
// few panels as fit, about equal. 0 when not even kPanelRowStep rows (or the n there are) fit.
constexpr int64_t PanelRows(int64_t n, int64_t k, int64_t panel_bytes) {
  const int64_t fitting = panel_bytes / 2 / k;
  if (n <= fitting) return n;
  const int64_t most = fitting / kPanelRowStep * kPanelRowStep;
  if (most == 0) return 0;
  const int64_t panels = (n + most - 1) / most;
  const int64_t each = (n + panels - 1) / panels;
  return (each + kPanelRowStep - 1) / kPanelRowStep * kPanelRowStep;
}

// Bytes of the panel for matrices of up to `max_weights` weights.
constexpr int64_t PanelBytes(int64_t max_weights) {
  return max_weights > kMaxPanelBytes / 2 ? kMaxPanelBytes : 2 * std::max<int64_t>(max_weights, 0);
}

}  // namespace layercake::kernels::cuda
