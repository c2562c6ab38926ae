// What the host tells the kernels of one step: small arrays, gathered in pinned memory and sent to
// the device in one copy. The same arrays in the same order get the same addresses, so a recorded
// graph finds them again.
//
// Thread rule: inside work submitted to the device. Memory that was sent may be overwritten after
// the stream was waited for: Rewind then, not before.
#pragma once

#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/context.h"

namespace layercake::kernels::cuda {

class StepBlock {
 public:
  StepBlock() = default;
  static absl::StatusOr<StepBlock> Create(const Context& context, size_t bytes);

  // Room for `count` values: where the host writes them, and where the device will read them.
  // ResourceExhausted when the block is too small for what was promised.
  template <typename T>
  struct Place {
    T* host = nullptr;
    const T* device = nullptr;
  };
  template <typename T>
  absl::StatusOr<Place<T>> Reserve(size_t count) {
    auto offset = ReserveBytes(count * sizeof(T));
    if (!offset.ok()) return offset.status();
    return Place<T>{reinterpret_cast<T*>(host_.as<std::byte>() + *offset),
                    reinterpret_cast<const T*>(device_.as<std::byte>() + *offset)};
  }
  template <typename T>
  absl::StatusOr<const T*> Append(absl::Span<const T> values) {
    auto place = Reserve<T>(values.size());
    if (!place.ok()) return place.status();
    if (!values.empty()) std::memcpy(place->host, values.data(), values.size() * sizeof(T));
    return place->device;
  }

  // Enqueues the copy of what was written since the last one.
  absl::Status Send(const Context& context);

  size_t used() const { return used_; }
  // Forgets everything from `used` on.
  void Rewind(size_t used);
  size_t bytes() const { return host_.bytes(); }

 private:
  absl::StatusOr<size_t> ReserveBytes(size_t bytes);

  PinnedArray host_;
  DeviceArray device_;
  size_t used_ = 0;
  size_t sent_ = 0;
};

}  // namespace layercake::kernels::cuda
