// Random weights, activations and executors for the tests of this folder.
#pragma once

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/random.h"
#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/half.h"
#include "kernels/device.h"
#include "kernels/weight_type.h"

namespace layercake::kernels {

inline constexpr WeightType kAllTypes[] = {
    WeightType::kF32,  WeightType::kF16,    WeightType::kBF16,   WeightType::kQ4_0,
    WeightType::kQ4_1, WeightType::kQ5_0,   WeightType::kQ5_1,   WeightType::kQ8_0,
    WeightType::kQ2_K, WeightType::kQ3_K,   WeightType::kQ4_K,   WeightType::kQ5_K,
    WeightType::kQ6_K, WeightType::kIQ4_NL, WeightType::kIQ4_XS, WeightType::kMXFP4};

inline float Uniform(base::Random& random, float low, float high) {
  return low + (high - low) * static_cast<float>(random.Unit());
}

inline std::vector<float> RandomFloats(base::Random& random, int64_t count, float magnitude = 1) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = Uniform(random, -magnitude, magnitude);
  return values;
}

inline std::vector<float> Poisoned(int64_t count) {
  return std::vector<float>(static_cast<size_t>(count), std::numeric_limits<float>::quiet_NaN());
}

inline Buffer BufferOf(std::vector<float>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float),
          MemorySpace::kHost};
}

// Offsets of a block's f16 scales and minima.
inline std::vector<int> HalfOffsets(WeightType type) {
  switch (type) {
    case WeightType::kQ2_K:
      return {80, 82};
    case WeightType::kQ3_K:
      return {108};
    case WeightType::kQ6_K:
      return {208};
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    default:
      return {0};
  }
}

// n rows of k weights: any bits, scales of about 0.01 of either sign.
inline std::vector<uint8_t> RandomWeights(base::Random& random, WeightType type, int64_t n,
                                          int64_t k) {
  std::vector<uint8_t> bytes(static_cast<size_t>(n) * RowBytes(type, k));
  const auto put_half = [&](size_t at, float value) {
    const uint16_t half = FloatToHalf(value);
    std::memcpy(bytes.data() + at, &half, sizeof half);
  };
  if (IsFloatType(type)) {
    for (size_t i = 0; i < static_cast<size_t>(n * k); ++i) {
      const float value = Uniform(random, -0.2f, 0.2f);
      if (type == WeightType::kF32) std::memcpy(bytes.data() + 4 * i, &value, 4);
      if (type == WeightType::kF16) put_half(2 * i, value);
      if (type == WeightType::kBF16) {
        const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
        std::memcpy(bytes.data() + 2 * i, &bits, 2);
      }
    }
    return bytes;
  }
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
  const auto block = static_cast<size_t>(BlockShapeOf(type).bytes);
  for (size_t at = 0; at < bytes.size(); at += block) {
    if (type == WeightType::kMXFP4) {
      bytes[at] = static_cast<uint8_t>(118 + random.Below(5));
      continue;
    }
    for (const int offset : HalfOffsets(type)) {
      put_half(at + static_cast<size_t>(offset), Uniform(random, -0.02f, 0.02f));
    }
  }
  return bytes;
}

inline std::vector<float> Dequantized(WeightType type, const std::vector<uint8_t>& bytes, int64_t n,
                                      int64_t k) {
  std::vector<float> values = Poisoned(n * k);
  for (int64_t row = 0; row < n; ++row) {
    DequantizeRow(type, bytes.data() + static_cast<size_t>(row) * RowBytes(type, k), k,
                  values.data() + row * k);
  }
  return values;
}

// Activations as a product takes them, with the memory they live in.
struct PreparedActivations {
  std::vector<float> values;
  std::vector<int16_t> ints;
  std::vector<float> scales, sums, half_sums;

  PreparedActivations(const CpuKernels& kernels, std::vector<float> x, int64_t rows, int64_t k)
      : values(std::move(x)) {
    if (k % kGroup != 0) return;
    const int64_t groups = PaddedGroups(k);
    ints.resize(static_cast<size_t>(rows * k));
    scales = Poisoned(rows * groups);
    sums = Poisoned(rows * groups);
    half_sums = Poisoned(2 * rows * groups);
    for (int64_t r = 0; r < rows; ++r) {
      kernels.quantize_row(values.data() + r * k, k, ints.data() + r * k,
                           scales.data() + r * groups, sums.data() + r * groups,
                           half_sums.data() + 2 * r * groups);
    }
  }

  Activations View() const {
    return {values.data(), ints.data(), scales.data(), sums.data(), half_sums.data()};
  }
};

// Keeps completions until somebody runs them, from any thread.
class CollectingExecutor final : public base::Executor {
 public:
  bool Post(base::Task task) override {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    posted_.notify_one();
    return true;
  }

  // Waits until one task was posted and runs it here.
  void RunOne() {
    base::Task task;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return !tasks_.empty(); });
      task = std::move(tasks_.front());
      tasks_.erase(tasks_.begin());
    }
    task();
  }

  size_t waiting() {
    const std::lock_guard lock(mutex_);
    return tasks_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::vector<base::Task> tasks_;
};

// Runs `work` on the device and returns its status.
inline absl::Status RunOn(Device& device, CollectingExecutor& executor, Device::Work work) {
  absl::Status status = absl::UnknownError("not run");
  device.Submit(std::move(work), [&status](absl::Status result) { status = std::move(result); });
  executor.RunOne();
  return status;
}

}  // namespace layercake::kernels
