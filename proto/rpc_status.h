// absl::Status to grpc::Status and back, with reason, metadata and retry delay (proto/errors.h) as
// google.rpc.ErrorInfo and RetryInfo in the binary details. The one place that translates gRPC's
// codes. Pure functions; any thread.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace layercake {

inline constexpr absl::string_view kErrorDomain = "layercake";
// Payload names in an absl::Status, and type URLs on the wire.
inline constexpr absl::string_view kErrorInfoType = "type.googleapis.com/google.rpc.ErrorInfo";
inline constexpr absl::string_view kRetryInfoType = "type.googleapis.com/google.rpc.RetryInfo";

// Statuses that MakeError did not make get the reason of their code (ReasonOf). The message is made
// safe and cut (SafeMessage): trailers that outgrow a client's limit would hide the status.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Details that cannot be read, or belong to another code, are left out.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace layercake
