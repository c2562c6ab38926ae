#include "proto/rpc_status.h"

#include "gmock/gmock.h"
#include "google/rpc/error_info.pb.h"
#include "gtest/gtest.h"
#include "proto/errors.h"

namespace layercake {
namespace {

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

TEST(RpcStatus, EveryReasonSurvivesTheWire) {
  for (int i = 0; i <= static_cast<int>(ErrorReason::kInternal); ++i) {
    const auto reason = static_cast<ErrorReason>(i);
    const absl::Status sent = WithMetadata(MakeError(reason, "why", "p"), "stage", "3");
    const grpc::Status wire = ToGrpcStatus(sent);
    EXPECT_EQ(static_cast<int>(wire.error_code()), static_cast<int>(TraitsOf(reason).code));
    const absl::Status received = FromGrpcStatus(wire);
    EXPECT_EQ(received, sent) << TraitsOf(reason).name;
    EXPECT_EQ(ReasonOf(received), reason);
    EXPECT_EQ(MetadataOf(received).at("stage"), "3");
  }
}

TEST(RpcStatus, DetailsAreWhatOtherGrpcClientsKnow) {
  const google::rpc::Status details =
      DetailsOf(ToGrpcStatus(MakeError(ErrorReason::kQueueFull, "full")));
  EXPECT_EQ(details.code(), 8);
  EXPECT_EQ(details.message(), "full");
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::ErrorInfo error_info;
  ASSERT_TRUE(details.details(0).UnpackTo(&error_info));
  EXPECT_EQ(error_info.domain(), "layercake");
  EXPECT_EQ(error_info.reason(), "queue_full");
  google::rpc::RetryInfo retry_info;
  ASSERT_TRUE(details.details(1).UnpackTo(&retry_info));
  EXPECT_EQ(retry_info.retry_delay().seconds(), 1);
}

TEST(RpcStatus, APlainStatusGetsAReason) {
  const grpc::Status wire = ToGrpcStatus(absl::DataLossError("short file"));
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::DATA_LOSS);
  google::rpc::ErrorInfo error_info;
  ASSERT_TRUE(DetailsOf(wire).details(0).UnpackTo(&error_info));
  EXPECT_EQ(error_info.reason(), "internal");
}

TEST(RpcStatus, OkIsOkBothWays) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(RpcStatus, BadBytesInAMessageNeitherBreakNorOutgrowTheDetails) {
  const std::string message = "echo \xFF\xC0\x80 " + std::string(100'000, 'x');
  const grpc::Status wire = ToGrpcStatus(absl::InvalidArgumentError(message));
  EXPECT_LE(wire.error_message().size(), kMaxErrorMessageBytes);
  EXPECT_LE(wire.error_details().size(), 2 * kMaxErrorMessageBytes);
  EXPECT_EQ(FromGrpcStatus(wire).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(wire)), ErrorReason::kInvalidParameter);
}

TEST(RpcStatus, DetailsThatCannotBeReadAreLeftOut) {
  const grpc::Status garbage(grpc::StatusCode::NOT_FOUND, "gone", "\xFF\xFF\xFF");
  EXPECT_EQ(FromGrpcStatus(garbage), absl::NotFoundError("gone"));

  google::rpc::Status details;
  details.set_code(3);  // not the status's own code
  details.add_details()->PackFrom(google::rpc::ErrorInfo());
  const grpc::Status other(grpc::StatusCode::NOT_FOUND, "gone", details.SerializeAsString());
  EXPECT_EQ(FromGrpcStatus(other), absl::NotFoundError("gone"));

  // Somebody else's domain is not our reason.
  google::rpc::ErrorInfo foreign;
  foreign.set_domain("example.org");
  foreign.set_reason("queue_full");
  details.set_code(5);
  details.mutable_details(0)->PackFrom(foreign);
  const grpc::Status of_others(grpc::StatusCode::NOT_FOUND, "gone", details.SerializeAsString());
  EXPECT_EQ(ReasonOf(FromGrpcStatus(of_others)), ErrorReason::kInternal);
}

}  // namespace
}  // namespace layercake
