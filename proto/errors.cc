#include "proto/errors.h"

#include <cstdint>
#include <utility>

#include "absl/strings/cord.h"
#include "google/rpc/error_info.pb.h"
#include "proto/rpc_status.h"

namespace layercake {
namespace {

using absl::StatusCode;

constexpr std::optional<absl::Duration> kNoRetry = std::nullopt;

// Length of the UTF-8 character at the front of `text` (RFC 3629), or 0.
size_t CharacterLength(absl::string_view text) {
  const auto byte = [&text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
  if (first == 0xED && byte(1) > 0x9F) return 0;  // surrogate
  if (first == 0xF0 && byte(1) < 0x90) return 0;  // overlong
  if (first == 0xF4 && byte(1) > 0x8F) return 0;  // above U+10FFFF
  return length;
}

std::optional<google::rpc::ErrorInfo> ErrorInfoOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kErrorInfoType);
  google::rpc::ErrorInfo error_info;
  if (!payload || !error_info.ParseFromString(std::string(*payload))) return std::nullopt;
  if (error_info.domain() != kErrorDomain) return std::nullopt;
  return error_info;
}

std::optional<ErrorReason> ReasonByName(absl::string_view name) {
  for (int i = 0; i <= static_cast<int>(ErrorReason::kInternal); ++i) {
    const auto reason = static_cast<ErrorReason>(i);
    if (name == TraitsOf(reason).name) return reason;
  }
  return std::nullopt;
}

}  // namespace

const ErrorTraits& TraitsOf(ErrorReason reason) {
  static const ErrorTraits kTraits[] = {
      {StatusCode::kInvalidArgument, 400, "invalid_parameter", kNoRetry},
      {StatusCode::kInvalidArgument, 400, "context_length_exceeded", kNoRetry},
      {StatusCode::kInvalidArgument, 413, "request_too_large", kNoRetry},
      {StatusCode::kNotFound, 404, "model_not_found", kNoRetry},
      {StatusCode::kAlreadyExists, 409, "request_id_in_use", kNoRetry},
      {StatusCode::kResourceExhausted, 429, "queue_full", absl::Seconds(1)},
      {StatusCode::kUnavailable, 503, "not_ready", absl::Seconds(2)},
      {StatusCode::kUnavailable, 503, "shutting_down", absl::Seconds(5)},
      {StatusCode::kUnavailable, 503, "chain_failed", kNoRetry},
      {StatusCode::kInternal, 500, "non_finite", kNoRetry},
      {StatusCode::kDeadlineExceeded, 504, "deadline_exceeded", kNoRetry},
      // 499 is what proxies log for a client that went away; nobody reads it.
      {StatusCode::kCancelled, 499, "cancelled", kNoRetry},
      // 400, not 501: client libraries try again after a 5xx.
      {StatusCode::kUnimplemented, 400, "unsupported", kNoRetry},
      {StatusCode::kInternal, 500, "internal", kNoRetry},
  };
  return kTraits[static_cast<size_t>(reason)];
}

std::string SafeMessage(absl::string_view text) {
  constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";
  constexpr absl::string_view kCut = "...";
  std::string out;
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    const auto first = static_cast<uint8_t>(text[0]);
    const absl::string_view piece = length == 0                     ? kReplacement
                                    : first < 0x20 || first == 0x7F ? absl::string_view(" ")
                                                                    : text.substr(0, length);
    if (out.size() + piece.size() > kMaxErrorMessageBytes - kCut.size()) {
      out.append(kCut.data(), kCut.size());
      break;
    }
    out.append(piece.data(), piece.size());
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

absl::Status MakeError(ErrorReason reason, absl::string_view message, absl::string_view param) {
  const ErrorTraits& traits = TraitsOf(reason);
  absl::Status status(traits.code, SafeMessage(message));
  google::rpc::ErrorInfo error_info;
  error_info.set_reason(traits.name);
  error_info.set_domain(std::string(kErrorDomain));
  if (!param.empty()) (*error_info.mutable_metadata())["param"] = SafeMessage(param);
  status.SetPayload(kErrorInfoType, absl::Cord(error_info.SerializeAsString()));
  if (traits.retry_after) {
    google::rpc::RetryInfo retry_info;
    retry_info.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(*traits.retry_after));
    status.SetPayload(kRetryInfoType, absl::Cord(retry_info.SerializeAsString()));
  }
  return status;
}

absl::Status WithMetadata(absl::Status status, absl::string_view key, absl::string_view value) {
  std::optional<google::rpc::ErrorInfo> error_info = ErrorInfoOf(status);
  if (!error_info) return status;
  (*error_info->mutable_metadata())[SafeMessage(key)] = SafeMessage(value);
  status.SetPayload(kErrorInfoType, absl::Cord(error_info->SerializeAsString()));
  return status;
}

std::map<std::string, std::string> MetadataOf(const absl::Status& status) {
  const std::optional<google::rpc::ErrorInfo> error_info = ErrorInfoOf(status);
  if (!error_info) return {};
  return {error_info->metadata().begin(), error_info->metadata().end()};
}

ErrorReason ReasonOf(const absl::Status& status) {
  if (const std::optional<google::rpc::ErrorInfo> error_info = ErrorInfoOf(status)) {
    return ReasonByName(error_info->reason()).value_or(ErrorReason::kInternal);
  }
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return ErrorReason::kInvalidParameter;
    case StatusCode::kUnimplemented:
      return ErrorReason::kUnsupported;
    case StatusCode::kCancelled:
      return ErrorReason::kCancelled;
    case StatusCode::kDeadlineExceeded:
      return ErrorReason::kDeadline;
    default:
      return ErrorReason::kInternal;
  }
}

std::string ParamOf(const absl::Status& status) {
  const std::map<std::string, std::string> metadata = MetadataOf(status);
  const auto param = metadata.find("param");
  return param == metadata.end() ? "" : param->second;
}

}  // namespace layercake
