#include "cli/line_input.h"

#include <unistd.h>

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake::cli {
namespace {

class LineInputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    read_.Reset(ends[0]);
    write_.Reset(ends[1]);
    input_ = *LineInput::Create(read_.get());
  }
  void Write(const std::string& text) {
    ASSERT_EQ(write(write_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  base::UniqueFd read_;
  base::UniqueFd write_;
  std::unique_ptr<LineInput> input_;
};

TEST_F(LineInputTest, GivesLinesHoweverTheyArrive) {
  Write("one\n\ntw");
  EXPECT_EQ(input_->ReadLine(), "one");
  EXPECT_EQ(input_->ReadLine(), "");
  Write("o\nthree");
  write_.Reset();
  EXPECT_EQ(input_->ReadLine(), "two");
  EXPECT_EQ(input_->ReadLine(), "three");
  EXPECT_EQ(input_->ReadLine(), std::nullopt);
  EXPECT_EQ(input_->ReadLine(), std::nullopt);
}

TEST_F(LineInputTest, StopEndsAReadThatWaits) {
  std::thread stopper([this] { input_->Stop(); });
  EXPECT_EQ(input_->ReadLine(), std::nullopt);
  stopper.join();
  Write("more\n");
  EXPECT_EQ(input_->ReadLine(), std::nullopt);
}

}  // namespace
}  // namespace layercake::cli
