// A device that runs its work in the test's thread, when the test says so.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/executor.h"
#include "base/status_macros.h"
#include "kernels/device.h"

namespace layercake::stage_worker::testing {

// Memory and copies are another device's. One thread.
class FakeDevice final : public kernels::Device {
 public:
  FakeDevice(kernels::Device& memory, base::Executor& executor)
      : memory_(memory), executor_(executor) {}

  std::string name() const override { return "fake"; }
  absl::StatusOr<std::unique_ptr<kernels::DeviceMemory>> Allocate(size_t bytes) override {
    return memory_.Allocate(bytes);
  }
  void Submit(Work work, Done done) override {
    queue_.push_back({std::move(work), std::move(done)});
  }
  absl::Status CopyIn(const std::byte* host, kernels::Buffer device, size_t bytes) override {
    LC_RETURN_IF_ERROR(before_copy());
    return memory_.CopyIn(host, device, bytes);
  }
  absl::Status CopyOut(kernels::Buffer device, std::byte* host, size_t bytes) override {
    LC_RETURN_IF_ERROR(before_copy());
    return memory_.CopyOut(device, host, bytes);
  }
  absl::Status Copy(kernels::Buffer from, kernels::Buffer to, size_t bytes) override {
    LC_RETURN_IF_ERROR(before_copy());
    return memory_.Copy(from, to, bytes);
  }

  // Runs the first piece of work and posts its completion; false when there is none.
  bool RunOne() {
    if (queue_.empty() || stuck) return false;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    absl::Status status = fail.ok() ? item.work() : fail;
    const bool posted =
        executor_.Post([done = std::move(item.done), status]() mutable { done(status); });
    LC_CHECK(posted, "the test's executor is full");
    return true;
  }
  size_t queued() const { return queue_.size(); }

  bool stuck = false;
  std::function<absl::Status()> before_copy = [] { return absl::OkStatus(); };
  absl::Status fail;  // what every piece of work ends with; OK: runs it

 private:
  struct Item {
    Work work;
    Done done;
  };
  kernels::Device& memory_;
  base::Executor& executor_;
  std::deque<Item> queue_;
};

}  // namespace layercake::stage_worker::testing
