// For backends that put operations off until something is read back (cuda_ops.h): what of a step
// is known before its input has come can be asked for, and is held back until it is there.
//
//   BeginStep, operations, Hold          while others compute
//   copies of the device                 they go before what is held
//   Resume, further operations, Finish   once the input is on its way to the device
//
// Thread rule: as Ops says.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace layercake::kernels {

class HeldOps {
 public:
  virtual ~HeldOps() = default;
  // What was asked for since BeginStep is not begun before Resume. Another BeginStep forgets it.
  virtual absl::Status Hold() = 0;
  // `tokens` take the place of those of Embed, if it is among what is held, and are as many.
  virtual absl::Status Resume(absl::Span<const int32_t> tokens) = 0;
};

}  // namespace layercake::kernels
