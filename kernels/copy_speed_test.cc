#include "kernels/copy_speed.h"

#include "base/clock.h"
#include "gtest/gtest.h"

namespace layercake::kernels {
namespace {

// Counts the bytes of its copies; each copy takes a millisecond of its own time.
class TimedDevice final : public Device, public base::Clock {
 public:
  std::string name() const override { return "timed"; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(size_t bytes) override {
    if (bytes > 1000) return absl::ResourceExhaustedError("too much");
    return std::make_unique<Memory>();
  }
  void Submit(Work, Done) override {}
  absl::Status CopyIn(const std::byte*, Buffer, size_t) override { return absl::OkStatus(); }
  absl::Status CopyOut(Buffer, std::byte*, size_t) override {
    now_ = now_ + pending_;
    pending_ = absl::ZeroDuration();
    return absl::OkStatus();
  }
  absl::Status Copy(Buffer, Buffer, size_t) override {
    pending_ += absl::Milliseconds(1);
    return absl::OkStatus();
  }
  base::Instant Now() const override { return now_; }
  absl::Time WallNow() const override { return absl::UnixEpoch(); }

 private:
  struct Memory final : DeviceMemory {
    Buffer buffer() const override { return {}; }
  };
  base::Instant now_;
  absl::Duration pending_;
};

TEST(CopySpeed, CountsBytesReadAndWrittenUntilTheCopiesAreDone) {
  TimedDevice device;
  const absl::StatusOr<double> speed = MeasureCopySpeed(device, 500, device);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_NEAR(*speed, 2 * 500 / 1e-3 / 1e9, 1e-9);
}

TEST(CopySpeed, SaysWhenTheDeviceIsFull) {
  TimedDevice device;
  EXPECT_TRUE(absl::IsResourceExhausted(MeasureCopySpeed(device, 1001, device).status()));
}

}  // namespace
}  // namespace layercake::kernels
