#include "proto/errors.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace layercake {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr int kReasons = static_cast<int>(ErrorReason::kInternal) + 1;

TEST(Errors, EveryReasonSurvivesTheRoundThroughAStatus) {
  for (int i = 0; i < kReasons; ++i) {
    const auto reason = static_cast<ErrorReason>(i);
    const absl::Status status = MakeError(reason, "what went wrong", "some.param");
    EXPECT_EQ(ReasonOf(status), reason) << TraitsOf(reason).name;
    EXPECT_EQ(status.code(), TraitsOf(reason).code) << TraitsOf(reason).name;
    EXPECT_EQ(status.message(), "what went wrong");
    EXPECT_EQ(ParamOf(status), "some.param");
  }
}

TEST(Errors, NamesAreDistinctAndHttpStatusesAreErrors) {
  std::set<std::string> names;
  for (int i = 0; i < kReasons; ++i) {
    const ErrorTraits& traits = TraitsOf(static_cast<ErrorReason>(i));
    EXPECT_TRUE(names.insert(traits.name).second) << traits.name;
    EXPECT_GE(traits.http_status, 400) << traits.name;
    EXPECT_LT(traits.http_status, 600) << traits.name;
    EXPECT_NE(traits.code, absl::StatusCode::kOk) << traits.name;
  }
}

TEST(Errors, TheTableStandsInTheOrderOfTheReasons) {
  const std::pair<ErrorReason, const char*> rows[] = {
      {ErrorReason::kInvalidParameter, "invalid_parameter"},
      {ErrorReason::kContextLengthExceeded, "context_length_exceeded"},
      {ErrorReason::kRequestTooLarge, "request_too_large"},
      {ErrorReason::kModelNotFound, "model_not_found"},
      {ErrorReason::kRequestIdInUse, "request_id_in_use"},
      {ErrorReason::kQueueFull, "queue_full"},
      {ErrorReason::kNotReady, "not_ready"},
      {ErrorReason::kShuttingDown, "shutting_down"},
      {ErrorReason::kChainFailed, "chain_failed"},
      {ErrorReason::kNonFinite, "non_finite"},
      {ErrorReason::kDeadline, "deadline_exceeded"},
      {ErrorReason::kCancelled, "cancelled"},
      {ErrorReason::kUnsupported, "unsupported"},
      {ErrorReason::kInternal, "internal"},
  };
  EXPECT_EQ(std::size(rows), static_cast<size_t>(kReasons));
  for (const auto& [reason, name] : rows) EXPECT_STREQ(TraitsOf(reason).name, name);
}

TEST(Errors, StatusesOfOthersGetTheReasonOfTheirCode) {
  EXPECT_EQ(ReasonOf(absl::InvalidArgumentError("x")), ErrorReason::kInvalidParameter);
  EXPECT_EQ(ReasonOf(absl::UnimplementedError("x")), ErrorReason::kUnsupported);
  EXPECT_EQ(ReasonOf(absl::CancelledError("x")), ErrorReason::kCancelled);
  EXPECT_EQ(ReasonOf(absl::DeadlineExceededError("x")), ErrorReason::kDeadline);
  EXPECT_EQ(ReasonOf(absl::DataLossError("x")), ErrorReason::kInternal);
  EXPECT_EQ(ParamOf(absl::InvalidArgumentError("x")), "");
  EXPECT_EQ(MetadataOf(WithMetadata(absl::DataLossError("x"), "stage", "2")).size(), 0u);
}

TEST(Errors, MetadataIsAddedAndReadBack) {
  absl::Status status = MakeError(ErrorReason::kContextLengthExceeded, "too long", "prompt");
  status = WithMetadata(std::move(status), "prompt_tokens", "4097");
  status = WithMetadata(std::move(status), "context", "4096");
  EXPECT_THAT(MetadataOf(status),
              UnorderedElementsAre(Pair("param", "prompt"), Pair("prompt_tokens", "4097"),
                                   Pair("context", "4096")));
  EXPECT_EQ(ReasonOf(status), ErrorReason::kContextLengthExceeded);
}

TEST(Errors, MessagesAreValidUtf8WithoutControlCharactersAndBounded) {
  EXPECT_EQ(SafeMessage("plain é 漢 😀"), "plain é 漢 😀");
  EXPECT_EQ(SafeMessage("a\nb\x7F"), "a b ");
  EXPECT_EQ(SafeMessage("\xC0\x80|\xED\xA0\x80|\xFF|\xE2\x82"),
            "\uFFFD\uFFFD|\uFFFD\uFFFD\uFFFD|\uFFFD|\uFFFD\uFFFD");
  EXPECT_EQ(SafeMessage("\xF0\x8F\xBF\xBF"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(SafeMessage("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "é";
  const std::string cut = SafeMessage(text);
  EXPECT_LE(cut.size(), kMaxErrorMessageBytes);
  EXPECT_GT(cut.size(), kMaxErrorMessageBytes - 8);
  EXPECT_THAT(cut, HasSubstr("é..."));
  EXPECT_EQ(MakeError(ErrorReason::kInternal, "bad \xFF text").message(), "bad \uFFFD text");
}

}  // namespace
}  // namespace layercake
