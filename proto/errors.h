// The one table of errors that clients see, shared by gRPC and HTTP.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace layercake {

enum class ErrorReason {
  kInvalidParameter,       // a value out of range; metadata "param"
  kContextLengthExceeded,  // metadata "prompt_tokens", "context"
  kRequestTooLarge,        // a prompt over the stated byte cap
  kModelNotFound,          // asked for another model's name
  kRequestIdInUse,
  kQueueFull,  // try later
  kNotReady,   // the chain is starting, try later
  kShuttingDown,
  kChainFailed,  // a stage or link ended; metadata "stage" where known
  kNonFinite,    // a NaN or infinity in the model; metadata "stage"
  kDeadline,     // the request's own deadline, or a step's
  kCancelled,
  kUnsupported,
  kInternal,
};

// What a reason means on each door. Constant.
struct ErrorTraits {
  absl::StatusCode code;
  int http_status;
  const char* name;  // ErrorInfo.reason, and "code" in JSON: "context_length_exceeded"
  std::optional<absl::Duration> retry_after;
};
const ErrorTraits& TraitsOf(ErrorReason reason);

// A status that carries its reason and metadata as payloads. `param` may be empty.
absl::Status MakeError(ErrorReason reason, absl::string_view message, absl::string_view param = {});

// Reason of a status made by MakeError; kInternal for others that are not OK (kInvalidParameter for
// InvalidArgument, kUnsupported for Unimplemented, kCancelled, kDeadline likewise by code).
ErrorReason ReasonOf(const absl::Status& status);
std::string ParamOf(const absl::Status& status);

// `status` with one more piece of metadata ("prompt_tokens", "context", "stage"); unchanged when it
// was not made by MakeError.
absl::Status WithMetadata(absl::Status status, absl::string_view key, absl::string_view value);
// All metadata of a status made by MakeError; "param" is in it.
std::map<std::string, std::string> MetadataOf(const absl::Status& status);

// `text` as it may go into a message: valid UTF-8 (each byte that is none becomes U+FFFD), no
// control characters (they become spaces), at most kMaxErrorMessageBytes. MakeError applies it.
std::string SafeMessage(absl::string_view text);
inline constexpr size_t kMaxErrorMessageBytes = 1024;

}  // namespace layercake
