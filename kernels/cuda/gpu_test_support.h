// A device, arrays on it and errors by norm, for the tests of this folder that need a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/kernels_test_support.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/device_facts.h"

namespace layercake::kernels::cuda {

// Device 0 and a stream of its own; every test of the suite skips without a device.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    ASSERT_EQ(DescribeDevice(0, &context_), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking), cudaSuccess);
  }

  void TearDown() override {
    if (context_.stream == nullptr) return;
    EXPECT_EQ(cudaStreamDestroy(context_.stream), cudaSuccess);
  }

  // A copy on the device.
  template <typename T>
  DeviceArray Upload(const std::vector<T>& values) {
    auto array = DeviceArray::Allocate(context_, values.size() * sizeof(T), "a test's array");
    EXPECT_TRUE(array.ok()) << array.status();
    if (!array.ok()) return DeviceArray();
    EXPECT_EQ(cudaMemcpyAsync(array->address(), values.data(), values.size() * sizeof(T),
                              cudaMemcpyHostToDevice, context_.stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(context_.stream), cudaSuccess);
    return *std::move(array);
  }

  // The first `count` values of the array, after all work before.
  template <typename T>
  std::vector<T> Download(const DeviceArray& array, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    EXPECT_EQ(cudaMemcpyAsync(values.data(), array.address(), values.size() * sizeof(T),
                              cudaMemcpyDeviceToHost, context_.stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(context_.stream), cudaSuccess);
    return values;
  }

  Context context_;
};

// ||out - reference|| / ||reference||; NaN when anything in out is.
inline double RelativeError(const std::vector<float>& out, const std::vector<double>& reference) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double d = static_cast<double>(out[i]) - reference[i];
    difference += d * d;
    norm += reference[i] * reference[i];
  }
  return std::sqrt(difference / norm);
}

// (rows, n) = x (rows, k) * w (n, k)^T in double.
inline std::vector<double> ReferenceProduct(const std::vector<float>& x,
                                            const std::vector<float>& w, int64_t rows, int64_t n,
                                            int64_t k) {
  std::vector<double> out(static_cast<size_t>(rows * n));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      const float* const a = x.data() + r * k;
      const float* const b = w.data() + i * k;
      for (int64_t c = 0; c < k; ++c) sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
      out[static_cast<size_t>(r * n + i)] = sum;
    }
  }
  return out;
}

// Activations as they come: most of about 1, a few of a hundred times that, rows of other sizes.
inline std::vector<float> HeavyTailedRows(base::Random& random, int64_t rows, int64_t k) {
  std::vector<float> x = RandomFloats(random, rows * k);
  for (int64_t r = 0; r < rows; ++r) {
    const float size = std::ldexp(1.0f, static_cast<int>(random.Below(9)) - 4);
    for (int64_t c = 0; c < k; ++c) {
      float& value = x[static_cast<size_t>(r * k + c)];
      value *= random.Below(200) == 0 ? 100 * size : size;
    }
  }
  return x;
}

inline uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace layercake::kernels::cuda
