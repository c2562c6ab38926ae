#include "proto/rpc_status.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "google/rpc/error_info.pb.h"
#include "proto/errors.h"

namespace layercake {
namespace {

// google.rpc.Status's own limit is the trailers'; a peer's details beyond this are not ours.
constexpr int kMaxDetails = 16;

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  absl::Status full = status;
  if (!full.GetPayload(kErrorInfoType)) {
    google::rpc::ErrorInfo error_info;
    error_info.set_reason(TraitsOf(ReasonOf(status)).name);
    error_info.set_domain(std::string(kErrorDomain));
    full.SetPayload(kErrorInfoType, absl::Cord(error_info.SerializeAsString()));
  }
  const std::string message = SafeMessage(status.message());
  google::rpc::Status details;
  details.set_code(status.raw_code());
  details.set_message(message);
  for (const absl::string_view type : {kErrorInfoType, kRetryInfoType}) {
    const auto payload = full.GetPayload(type);
    if (!payload) continue;
    google::protobuf::Any* detail = details.add_details();
    detail->set_type_url(std::string(type));
    detail->set_value(std::string(*payload));
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), message,
                      details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // Numbers are those of absl::StatusCode; one outside of them reads as UNKNOWN.
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (status.error_details().empty() || !details.ParseFromString(status.error_details()) ||
      details.code() != status.error_code() || details.details_size() > kMaxDetails) {
    return result;
  }
  for (const google::protobuf::Any& detail : details.details()) {
    if (detail.type_url() == kErrorInfoType || detail.type_url() == kRetryInfoType) {
      result.SetPayload(detail.type_url(), absl::Cord(detail.value()));
    }
  }
  return result;
}

}  // namespace layercake
