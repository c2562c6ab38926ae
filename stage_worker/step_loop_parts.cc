// Activations in and out of the device: whole or in parts, and how long they were under way.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "stage_worker/step_loop.h"

namespace layercake::stage_worker {
namespace {

using transport::Lane;

// OutgoingFrame::sent_us; never 0, which says nothing.
uint32_t ClockMicroseconds(const base::Clock& clock) {
  const auto now = static_cast<uint32_t>(absl::ToInt64Microseconds(clock.Now().since_start()));
  return std::max(now, 1u);
}

}  // namespace

// ---- in

// Pieces go to the device before they are checked, so that the two overlap. Nothing is made of them
// before the last check: the step is submitted after it.
absl::StatusOr<bool> StepLoop::TakeArrived(const std::shared_ptr<Step>& step) {
  if (upstream_ == nullptr || step->arrived) return true;
  const transport::ReceivedFrame& frame = *step->activation;
  uint32_t before = 0;
  do {
    before = step->read_bytes;
    LC_ASSIGN_OR_RETURN(const uint32_t there, upstream_->Arrived(frame));
    const bool whole = there == frame.header.payload_bytes;
    if (whole || there > before) SubmitRead(step, there);
    LC_RETURN_IF_ERROR(upstream_->CheckArrived(frame));
    if (whole) {
      step->arrived = true;
      CountHop(frame.header);
      return true;
    }
  } while (step->read_bytes > before);
  return false;
}

void StepLoop::SubmitRead(const std::shared_ptr<Step>& step, uint32_t end) {
  const transport::ReceivedFrame& frame = *step->activation;
  const uint32_t section = frame.header.section_bytes;
  const size_t at = std::max(step->read_bytes, section) - section;
  const kernels::Buffer body = frame.body();
  const kernels::Buffer piece = {body.address + at, std::max(end, section) - section - at,
                                 body.space};
  const bool last = end == frame.header.payload_bytes;
  step->read_bytes = end;
  Progress();
  ++submitted_;
  StepStage* const stage = &stage_;
  device_.Submit([stage, step, piece, at] { return stage->ReadActivation(piece, at); },
                 [this, step, last, alive = alive_](absl::Status status) {
                   if (*alive) OnActivationRead(step, last, status);
                 });
  LetDeviceGo();
}

void StepLoop::OnActivationRead(const std::shared_ptr<Step>& step, bool last,
                                const absl::Status& status) {
  if (!TakeCompletion()) return;
  absl::Status released = status;
  // Copied in: the slot's credit goes back while the step computes. A copy from a device slot has
  // only begun.
  if (released.ok() && last && !InDeviceSlot(*step)) {
    released = upstream_->Release(Lane::kActivation, step->activation->slot);
  }
  if (!released.ok()) Fail(std::move(released));
}

void StepLoop::CountHop(const transport::FrameHeader& header) {
  if (header.sent_us == 0 || upstream_->kind() == transport::TransportKind::kUcx) return;
  // Modulo 2^32, which is over an hour; a clock that is not the sender's shows as a huge time.
  const uint32_t microseconds = ClockMicroseconds(clock_) - header.sent_us;
  if (microseconds >= 1u << 31) return;
  counters_.set_hops(counters_.hops() + 1);
  counters_.set_hop_bytes(counters_.hop_bytes() + header.payload_bytes);
  counters_.set_hop_seconds(counters_.hop_seconds() + microseconds * 1e-6);
}

// ---- out

// All parts are submitted at once, so that they follow their step on the device whatever comes
// next.
void StepLoop::SubmitParts(const std::shared_ptr<Step>& step) {
  StepStage* const stage = &stage_;
  for (int part = 1; part < step->parts.count(); ++part) {
    ++submitted_;
    device_.Submit(
        [stage, step, part] {
          const StepOutput& output = step->output;
          return stage->WritePart(*step->slot, output,
                                  step->parts.End(part - 1, output.payload_bytes),
                                  step->parts.End(part, output.payload_bytes));
        },
        [this, step, part, alive = alive_](absl::Status status) {
          if (*alive) OnPartDone(step, part, status);
        });
  }
}

void StepLoop::OnPartDone(const std::shared_ptr<Step>& step, int part, const absl::Status& status) {
  if (part + 1 == step->parts.count()) {
    OnStepDone(step, status);
    return;
  }
  if (!TakeCompletion()) return;
  absl::Status said = status;
  if (said.ok()) said = CommitUpTo(*step, step->parts.End(part, step->output.payload_bytes));
  if (!said.ok()) {
    Fail(absl::Status(said.code(), absl::StrCat("step ", step->plan.step, ": ", said.message())));
    return;
  }
  Progress();
}

absl::Status StepLoop::CommitUpTo(Step& step, uint32_t bytes) {
  const transport::OutgoingFrame frame = {.kind = transport::FrameKind::kActivation,
                                          .step = step.plan.step,
                                          .section_bytes = step.output.section_bytes,
                                          .payload_bytes = step.output.payload_bytes,
                                          .sent_us = ClockMicroseconds(clock_)};
  if (step.parts.count() == 1) return downstream_->Commit(*step.slot, frame);
  if (bytes == std::exchange(step.committed_bytes, bytes)) return absl::OkStatus();
  return downstream_->CommitPart(*step.slot, frame, bytes);
}

}  // namespace layercake::stage_worker
