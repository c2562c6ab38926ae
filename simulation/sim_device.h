// A device in virtual time: work takes as long as it says, one piece after the other.
//
// One thread: the simulation's.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/executor.h"
#include "kernels/device.h"

namespace layercake::simulation {

class SimDevice final : public kernels::Device {
 public:
  // Both outlive the device.
  SimDevice(const base::Clock& clock, base::Timers& timers) : clock_(clock), timers_(timers) {}
  ~SimDevice() override { *alive_ = false; }

  std::string name() const override { return "sim"; }
  absl::StatusOr<std::unique_ptr<kernels::DeviceMemory>> Allocate(size_t) override {
    return absl::UnimplementedError("a simulated device has no memory");
  }
  absl::Status CopyIn(const std::byte* host, kernels::Buffer device, size_t bytes) override {
    std::memcpy(device.address, host, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyOut(kernels::Buffer device, std::byte* host, size_t bytes) override {
    std::memcpy(host, device.address, bytes);
    return absl::OkStatus();
  }
  absl::Status Copy(kernels::Buffer from, kernels::Buffer to, size_t bytes) override {
    std::memcpy(to.address, from.address, bytes);
    return absl::OkStatus();
  }
  void Submit(Work work, Done done) override {
    queue_.push_back({std::move(work), std::move(done)});
    if (!running_) Begin();
  }

  // Called inside work: it takes this long.
  void Charge(absl::Duration cost) { cost_ += cost; }
  // How long it has worked so far.
  absl::Duration busy() const {
    if (!running_) return finished_;
    return finished_ + std::min(clock_.Now() - began_, cost_);
  }

 private:
  struct Item {
    Work work;
    Done done;
  };

  void Begin() {
    running_ = true;
    began_ = clock_.Now();
    cost_ = absl::ZeroDuration();
    Item item = std::move(queue_.front());
    queue_.pop_front();
    absl::Status status = item.work();
    timers_.At(began_ + cost_,
               [this, alive = alive_, done = std::move(item.done), status]() mutable {
                 if (!*alive) return;
                 finished_ += cost_;
                 running_ = false;
                 if (!queue_.empty()) Begin();
                 done(status);
               });
  }

  const base::Clock& clock_;
  base::Timers& timers_;
  std::deque<Item> queue_;
  bool running_ = false;
  base::Instant began_;
  absl::Duration cost_;
  absl::Duration finished_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace layercake::simulation
