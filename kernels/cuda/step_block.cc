#include "kernels/cuda/step_block.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace layercake::kernels::cuda {
namespace {

constexpr size_t kAlignment = 16;

}  // namespace

absl::StatusOr<StepBlock> StepBlock::Create(const Context& context, size_t bytes) {
  StepBlock block;
  LC_ASSIGN_OR_RETURN(block.host_, PinnedArray::Allocate(context, bytes, "the data of a step"));
  LC_ASSIGN_OR_RETURN(block.device_, DeviceArray::Allocate(context, bytes, "the data of a step"));
  return block;
}

absl::StatusOr<size_t> StepBlock::ReserveBytes(size_t bytes) {
  const size_t offset = used_;
  if (bytes > host_.bytes() - offset) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a step has ", offset, " + ", bytes, " bytes of data; there is room for ", host_.bytes()));
  }
  used_ = std::min(host_.bytes(), (offset + bytes + kAlignment - 1) / kAlignment * kAlignment);
  return offset;
}

absl::Status StepBlock::Send(const Context& context) {
  if (sent_ >= used_) return absl::OkStatus();
  const size_t from = sent_;
  sent_ = used_;
  return CudaStatus(cudaMemcpyAsync(device_.as<std::byte>() + from, host_.as<std::byte>() + from,
                                    used_ - from, cudaMemcpyHostToDevice, context.stream),
                    "send the data of a step");
}

void StepBlock::Rewind(size_t used) {
  used_ = used;
  sent_ = std::min(sent_, used);
}

}  // namespace layercake::kernels::cuda
