#include "kernels/cpu/cpu_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <semaphore>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/kernels_test_support.h"

namespace layercake::kernels {
namespace {

using ::testing::HasSubstr;

TEST(ThreadPool, RunsEveryChunkOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    for (const int spin_us : {0, 50}) {
      ThreadPool pool(threads, spin_us);
      for (const int64_t chunks : {0, 1, 2, 7, 100, 5000}) {
        std::vector<std::atomic<int>> counts(static_cast<size_t>(chunks));
        pool.Run(chunks, [&](int64_t chunk, int thread) {
          EXPECT_GE(thread, 0);
          EXPECT_LT(thread, threads);
          counts[static_cast<size_t>(chunk)].fetch_add(1, std::memory_order_relaxed);
        });
        for (const auto& count : counts) ASSERT_EQ(count.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, MakesAChunksWritesVisibleAfterTheLoop) {
  ThreadPool pool(3, 20);
  std::vector<int64_t> values(64, 0);  // plain: a race would show under ThreadSanitizer
  for (int64_t round = 1; round <= 2000; ++round) {
    pool.Run(64, [&](int64_t chunk, int) { values[static_cast<size_t>(chunk)] += chunk + round; });
  }
  for (int64_t chunk = 0; chunk < 64; ++chunk) {
    EXPECT_EQ(values[static_cast<size_t>(chunk)], 2000 * chunk + 2000 * 2001 / 2);
  }
}

TEST(ThreadPool, RunsMoreChunksThanItsTicketCounts) {
  ThreadPool pool(2, 0);
  std::atomic<int64_t> sum{0};
  constexpr int64_t kChunks = (int64_t{1} << 21) + 3;
  pool.Run(kChunks, [&](int64_t chunk, int) { sum.fetch_add(chunk, std::memory_order_relaxed); });
  EXPECT_EQ(sum.load(), kChunks * (kChunks - 1) / 2);
}

TEST(CpuDevice, RefusesOptionsOutOfRange) {
  CollectingExecutor executor;
  EXPECT_EQ(CreateCpuDevice({.threads = 0}, executor).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CreateCpuDevice({.threads = 100000}, executor).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CreateCpuDevice({.threads = 1, .spin_us = -1}, executor).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CpuDevice, RunsWorkInOrderAndPostsCompletionsThroughTheExecutor) {
  CollectingExecutor executor;
  const auto device = *CreateCpuDevice({.threads = 2}, executor);
  EXPECT_EQ(device->name(), "cpu");
  std::vector<int> ran;   // the device thread's
  std::vector<int> done;  // this thread's
  for (int i = 0; i < 100; ++i) {
    device->Submit(
        [&ran, i] {
          ran.push_back(i);
          return i == 50 ? absl::DataLossError("bad step") : absl::OkStatus();
        },
        [&done, i](absl::Status status) {
          EXPECT_EQ(status.ok(), i != 50) << status;
          done.push_back(i);
        });
  }
  EXPECT_TRUE(done.empty());
  for (int i = 0; i < 100; ++i) executor.RunOne();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(ran, expected);
  EXPECT_EQ(done, expected);
}

TEST(CpuDevice, FinishesTheRunningWorkAndCancelsTheRestWhenDestroyed) {
  CollectingExecutor executor;
  std::binary_semaphore begun(0), go(0);
  std::vector<absl::StatusCode> codes;
  bool second_ran = false;
  {
    auto device = *CreateCpuDevice({.threads = 2}, executor);
    const auto record = [&codes](absl::Status status) { codes.push_back(status.code()); };
    device->Submit(
        [&] {
          begun.release();
          go.acquire();
          return absl::OkStatus();
        },
        record);
    begun.acquire();
    device->Submit(
        [&] {
          second_ran = true;
          return absl::OkStatus();
        },
        record);
    // The destructor must run while the first work does; it lets it go on from another thread.
    std::thread opener([&] { go.release(); });
    device.reset();
    opener.join();
  }
  ASSERT_EQ(executor.waiting(), 2u);
  executor.RunOne();
  executor.RunOne();
  EXPECT_EQ(codes[0], absl::StatusCode::kOk);
  // Whether the second had begun is a race that both sides may win.
  EXPECT_EQ(codes[1], second_ran ? absl::StatusCode::kOk : absl::StatusCode::kCancelled);
}

TEST(CpuDevice, TurnsMemoryExhaustionInAStepIntoAStatus) {
  CollectingExecutor executor;
  const auto device = *CreateCpuDevice({}, executor);
  const absl::Status status =
      RunOn(*device, executor, []() -> absl::Status { throw std::bad_alloc(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(CpuDevice, AllocatesZeroedAlignedMemoryOrSaysHowMuchIsMissing) {
  CollectingExecutor executor;
  const auto device = *CreateCpuDevice({}, executor);
  const auto memory = *device->Allocate(100'000);
  const Buffer buffer = memory->buffer();
  EXPECT_EQ(buffer.bytes, 100'000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.address) % 256, 0u);
  EXPECT_TRUE(std::all_of(buffer.address, buffer.address + buffer.bytes,
                          [](std::byte b) { return b == std::byte{0}; }));
  const std::string text = "layers";
  ASSERT_TRUE(
      device->CopyIn(reinterpret_cast<const std::byte*>(text.data()), buffer, text.size()).ok());
  std::string back(text.size(), '?');
  ASSERT_TRUE(device->CopyOut(buffer, reinterpret_cast<std::byte*>(back.data()), back.size()).ok());
  EXPECT_EQ(back, text);

  const absl::Status status = device->Allocate(size_t{1} << 50).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("1125899906842624"));
  EXPECT_EQ(device->Allocate(~size_t{0}).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace layercake::kernels
