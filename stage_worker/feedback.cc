#include "stage_worker/feedback.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace layercake::stage_worker {
namespace {

using transport::Lane;

// Of a serialised StepFeedback: term, epoch, step and the two lengths are under 64 bytes, a
// sequence takes 10 as a varint, and so does a token that is -1.
constexpr uint64_t kFixedBytes = 64;
constexpr uint64_t kSequenceBytes = 20;

template <class... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat("feedback of step ", parts...));
}

}  // namespace

transport::ChannelGeometry FeedbackGeometry(const v1::Assignment& assignment) {
  const auto sequences =
      static_cast<uint64_t>(std::min(assignment.max_rows(), assignment.max_sequences()));
  transport::ChannelGeometry geometry;
  geometry.plan_slots =
      std::min(static_cast<uint32_t>(assignment.max_in_flight()) + 2, uint32_t{kMaxInFlight});
  // kMaxRows sequences make 1.3 MB.
  geometry.plan_slot_bytes =
      static_cast<uint32_t>((kFixedBytes + kSequenceBytes * sequences + 4095) / 4096 * 4096);
  geometry.activation_slots = 1;
  geometry.activation_slot_bytes = 64;
  return geometry;
}

std::string FeedbackTransport(const std::string& transport) {
  if (!absl::EndsWith(transport, "cuda_ipc")) return transport;
  return absl::StrCat(absl::StartsWith(transport, "require:") ? "require:" : "", "pinned_host");
}

void FeedbackWriter::Add(const StepPlan& plan, absl::Span<const v1::SequenceResult> results) {
  v1::StepFeedback feedback;
  for (const StepSequence& sequence : plan.sequences) {
    if (sequence.sampled_rows == 0) continue;
    feedback.add_sequences(sequence.id);
    feedback.add_tokens(TokenOf(sequence, results));
  }
  if (feedback.sequences().empty()) return;
  feedback.set_term(limits_.term);
  feedback.set_epoch(limits_.epoch);
  feedback.set_step(plan.step);
  waiting_.push_back(std::move(feedback));
}

absl::Status FeedbackWriter::Flush() {
  LC_RETURN_IF_ERROR(channel_.status());
  while (!waiting_.empty()) {
    LC_ASSIGN_OR_RETURN(const std::optional<transport::SendSlot> slot,
                        channel_.Acquire(Lane::kPlan));
    if (!slot.has_value()) break;
    const v1::StepFeedback& feedback = waiting_.front();
    const size_t bytes = feedback.ByteSizeLong();
    if (bytes > slot->memory.bytes) {
      return absl::InternalError(absl::StrCat("feedback of step ", feedback.step(), " has ", bytes,
                                              " bytes, its slot ", slot->memory.bytes));
    }
    feedback.SerializeToArray(slot->memory.address, static_cast<int>(bytes));
    LC_RETURN_IF_ERROR(channel_.Commit(*slot, {.kind = transport::FrameKind::kFeedback,
                                               .step = feedback.step(),
                                               .payload_bytes = static_cast<uint32_t>(bytes)}));
    waiting_.pop_front();
  }
  return absl::OkStatus();
}

void FeedbackReader::Expect(const StepPlan& plan) {
  Expected expected;
  expected.step = plan.step;
  for (const StepSequence& sequence : plan.sequences) {
    if (sequence.sampled_rows > 0) expected.sequences.push_back(sequence.id);
  }
  if (!expected.sequences.empty()) expected_.push_back(std::move(expected));
}

absl::Status FeedbackReader::Poll() {
  LC_RETURN_IF_ERROR(channel_.status());
  while (true) {
    LC_ASSIGN_OR_RETURN(const std::optional<transport::ReceivedFrame> frame,
                        channel_.Poll(Lane::kPlan));
    if (!frame.has_value()) return absl::OkStatus();
    const std::string serialized(reinterpret_cast<const char*>(frame->payload.address),
                                 frame->header.payload_bytes);
    LC_RETURN_IF_ERROR(channel_.Release(Lane::kPlan, frame->slot));
    LC_RETURN_IF_ERROR(Take(*frame, serialized));
  }
}

absl::Status FeedbackReader::Take(const transport::ReceivedFrame& frame,
                                  const std::string& serialized) {
  const uint64_t step = frame.header.step;
  if (frame.header.kind != transport::FrameKind::kFeedback) {
    return Wrong(step, ": a frame of kind ", static_cast<int>(frame.header.kind));
  }
  v1::StepFeedback feedback;
  if (frame.header.section_bytes != 0 || !feedback.ParseFromString(serialized) ||
      feedback.step() != step || feedback.tokens_size() != feedback.sequences_size()) {
    return absl::DataLossError(absl::StrCat("feedback of step ", step, " with ", serialized.size(),
                                            " bytes cannot be read"));
  }
  if (feedback.term() != limits_.term || feedback.epoch() != limits_.epoch) {
    return Wrong(step, " of term ", feedback.term(), " epoch ", feedback.epoch(),
                 "; this stage runs term ", limits_.term, " epoch ", limits_.epoch);
  }
  if (expected_.empty() || expected_.front().step != step) {
    return Wrong(step, ", expected ",
                 expected_.empty() ? std::string("none")
                                   : absl::StrCat("that of step ", expected_.front().step));
  }
  const std::vector<uint64_t>& sequences = expected_.front().sequences;
  if (!std::equal(sequences.begin(), sequences.end(), feedback.sequences().begin(),
                  feedback.sequences().end())) {
    return Wrong(step, " is not about the ", sequences.size(), " sequences that it samples");
  }
  for (int i = 0; i < feedback.tokens_size(); ++i) {
    const int32_t token = feedback.tokens(i);
    if (token < kNoToken || token >= limits_.vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("feedback of step ", step, ": token ", token,
                                                     " is not in [-1, ", limits_.vocabulary, ")"));
    }
    sampled_.Record(step, feedback.sequences(i), token);
  }
  expected_.pop_front();
  return absl::OkStatus();
}

bool FeedbackReader::Fill(StepPlan& plan) {
  if (!sampled_.Fill(plan)) return false;
  sampled_.ForgetBefore(OldestWanted(plan.step, limits_));
  return true;
}

}  // namespace layercake::stage_worker
