// Blocks that were saved come back to the bit, in the order of the stream.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/gpu_test_support.h"
#include "kernels/cuda/kv_cache.h"

namespace layercake::kernels::cuda {
namespace {

class CudaSavedBlocks : public GpuTest {
 protected:
  std::vector<uint8_t> Read(const CudaKvCache& cache) {
    std::vector<uint8_t> bytes(KvCacheBytes(cache.spec()));
    EXPECT_EQ(cudaMemcpyAsync(bytes.data(), cache.View(0).keys, bytes.size(),
                              cudaMemcpyDeviceToHost, context_.stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(context_.stream), cudaSuccess);
    return bytes;
  }
  void Write(const CudaKvCache& cache, const std::vector<uint8_t>& bytes) {
    EXPECT_EQ(cudaMemcpyAsync(cache.View(0).keys, bytes.data(), bytes.size(),
                              cudaMemcpyHostToDevice, context_.stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(context_.stream), cudaSuccess);
  }
};

TEST_F(CudaSavedBlocks, ComeBackToTheBitAndTouchNothingElse) {
  constexpr uint64_t kSeed = 20261129;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  base::SeededRandom random(kSeed);
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16, KvType::kQ8_0}) {
    SCOPED_TRACE(KvTypeName(type));
    const KvCacheSpec spec = {3, 5, 16, 2, 80, type, /*host_blocks=*/3};
    auto cache = CudaKvCache::Create(context_, spec);
    ASSERT_TRUE(cache.ok()) << cache.status();
    std::vector<uint8_t> bytes(KvCacheBytes(spec));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Below(256));
    Write(**cache, bytes);
    const size_t distance = bytes.size() / (3 * 2);
    const size_t part_bytes = distance / 5;
    // What a block holds, or nothing for a host block that was never saved to.
    std::vector<std::vector<uint8_t>> saved(3);
    for (int i = 0; i < 40; ++i) {
      const auto block = static_cast<size_t>(random.Below(5));
      const auto host_block = static_cast<size_t>(random.Below(3));
      const bool saves = random.Below(2) == 0;
      if (!saves && saved[host_block].empty()) continue;
      std::vector<uint8_t>& host = saved[host_block];
      host.resize(3 * 2 * part_bytes);
      for (size_t part = 0; part < 3 * 2; ++part) {
        const auto on_device =
            bytes.begin() + static_cast<ptrdiff_t>(part * distance + block * part_bytes);
        const auto on_host = host.begin() + static_cast<ptrdiff_t>(part * part_bytes);
        const auto count = static_cast<ptrdiff_t>(part_bytes);
        if (saves) {
          std::copy(on_device, on_device + count, on_host);
        } else {
          std::copy(on_host, on_host + count, on_device);
        }
      }
      const absl::Status copied =
          saves ? (*cache)->SaveBlock(static_cast<int>(block), static_cast<int>(host_block))
                : (*cache)->RestoreBlock(static_cast<int>(host_block), static_cast<int>(block));
      ASSERT_TRUE(copied.ok()) << copied;
    }
    EXPECT_TRUE(Read(**cache) == bytes);
  }
}

}  // namespace
}  // namespace layercake::kernels::cuda
