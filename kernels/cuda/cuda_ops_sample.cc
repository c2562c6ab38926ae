// Sampling requests of CudaOps, and the end of a step.
#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/ops_check.h"
#include "kernels/sampling_rule.h"

namespace layercake::kernels::cuda {
namespace {

static_assert(kOutcomeLogprobs == kMaxTopLogprobs);
static_assert(sizeof(DeviceSeenToken) == sizeof(SeenToken) &&
              std::is_trivially_copyable_v<SeenToken>);

// What the small greedy kernel does not know.
bool IsPlainGreedy(const SampleRequest& request) {
  return request.params.temperature <= 0 && request.allowed.empty() &&
         (request.seen.empty() || !HasPenalty(request.params)) && request.top_logprobs < 0;
}

}  // namespace

absl::Status CudaOps::CheckSampling(Buffer logits, int64_t vocabulary,
                                    absl::Span<const SampleRequest> requests,
                                    size_t results) const {
  if (vocabulary > limits_.vocabulary ||
      requests.size() > static_cast<size_t>(limits_.logit_rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat(requests.size(), " sample requests over a vocabulary of ", vocabulary,
                     "; prepared ", limits_.logit_rows, " over ", limits_.vocabulary));
  }
  return CheckSampleRequests(logits, MemorySpace::kDevice, vocabulary, requests, results);
}

absl::StatusOr<SampleJob> CudaOps::MakeJob(const SampleRequest& request) {
  const SamplingParams& params = request.params;
  SampleJob job = {.seed = params.seed,
                   .position = request.position,
                   .seen = nullptr,
                   .seen_raw = nullptr,
                   .allowed = nullptr,
                   .seen_count = 0,
                   .logits_row = request.logits_row,
                   .top_logprobs = request.top_logprobs,
                   .top_k = params.top_k,
                   .temperature = params.temperature,
                   .top_p = params.top_p,
                   .min_p = params.min_p,
                   .repetition_penalty = params.repetition_penalty,
                   .presence_penalty = params.presence_penalty,
                   .frequency_penalty = params.frequency_penalty};
  if (HasPenalty(params) && !request.seen.empty()) {
    job.seen_count = static_cast<int32_t>(request.seen.size());
    LC_ASSIGN_OR_RETURN(const SeenToken* seen, block_.Append(request.seen));
    job.seen = reinterpret_cast<const DeviceSeenToken*>(seen);
    LC_ASSIGN_OR_RETURN(const auto raw, block_.Reserve<float>(request.seen.size()));
    job.seen_raw = const_cast<float*>(raw.device);
  }
  if (!request.allowed.empty()) {
    LC_ASSIGN_OR_RETURN(job.allowed, block_.Append(request.allowed));
  }
  return job;
}

absl::Status CudaOps::Sample(Buffer logits, int64_t vocabulary,
                             absl::Span<const SampleRequest> requests,
                             absl::Span<SampleResult> results) {
  if (!prepared_) return absl::FailedPreconditionError("Prepare comes before the first step");
  LC_RETURN_IF_ERROR(CheckSampling(logits, vocabulary, requests, results.size()));
  if (requests.empty()) return absl::OkStatus();
  if (!sampled_.empty()) return absl::FailedPreconditionError("Sample twice between two Finish");
  RecordPendingSwiglu();
  // The jobs first: what they point to has lengths of its own, and must not move them.
  LC_ASSIGN_OR_RETURN(const auto jobs, block_.Reserve<SampleJob>(requests.size()));
  for (size_t i = 0; i < requests.size(); ++i) {
    LC_ASSIGN_OR_RETURN(jobs.host[i], MakeJob(requests[i]));
  }
  Command& command = Record(CommandKind::kSample, static_cast<int>(requests.size()));
  command.p[0] = logits.address;
  command.p[1] = jobs.device;
  command.n[0] = vocabulary;
  command.flags = std::all_of(requests.begin(), requests.end(), IsPlainGreedy) ? 1 : 0;
  sampled_ = results;
  return absl::OkStatus();
}

absl::Status CudaOps::Hold() {
  held_ = true;
  if (!tokens_.empty()) return absl::OkStatus();  // they may yet change
  busy_ = true;
  device_.NoteEnqueued();
  return block_.Send(context_);
}

absl::Status CudaOps::Resume(absl::Span<const int32_t> tokens) {
  if (!held_) return absl::FailedPreconditionError("Resume of operations that are not held");
  held_ = false;
  if (tokens_.empty()) return absl::OkStatus();
  if (tokens.size() != tokens_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Resume with ", tokens.size(), " tokens; held were ", tokens_.size()));
  }
  LC_RETURN_IF_ERROR(CheckTokens(tokens, token_end_));
  std::copy(tokens.begin(), tokens.end(), tokens_.begin());
  return absl::OkStatus();
}

void CudaOps::Forget() {
  held_ = false;
  list_.clear();
  view_ = -1;
  swiglu_gate_ = nullptr;
  non_finite_ = {};
  sampled_ = {};
}

absl::Status CudaOps::Flush() {
  if (held_) return absl::OkStatus();
  RecordPendingSwiglu();
  if (list_.empty()) return absl::OkStatus();
  busy_ = true;
  device_.NoteEnqueued();
  absl::Status status = block_.Send(context_);
  if (status.ok()) {
    // Prompts come in too many shapes to be worth recording; one kernel is launched sooner than a
    // graph of it.
    const bool worthwhile =
        list_.commands.size() > 1 && std::all_of(list_.commands.begin(), list_.commands.end(),
                                                 [](const Command& c) { return c.rows <= 64; });
    const auto run = [this] { return runner_.Run(list_); };
    status = worthwhile ? graphs_.Run(list_, run) : run();
  }
  list_.clear();
  view_ = -1;
  return status;
}

absl::Status CudaOps::Finish() {
  absl::Status status = Flush();
  // A copy out has waited already for everything before it.
  if (status.ok() && busy_ && device_.pending()) status = device_.Synchronize("finish a step");
  busy_ = false;
  if (status.ok()) {
    status = Deliver();
    // What belongs to samples has been used; the rows stay for what may follow.
    block_.Rewind(rows_end_);
  }
  non_finite_ = {};
  sampled_ = {};
  return status;
}

absl::Status CudaOps::Deliver() {
  if (!non_finite_.empty()) {
    std::copy_n(scratch_.flags(), non_finite_.size(), non_finite_.begin());
  }
  const SampleOutcome* const outcomes = scratch_.outcomes();
  for (size_t i = 0; i < sampled_.size(); ++i) {
    const SampleOutcome& outcome = outcomes[i];
    SampleResult& result = sampled_[i];
    result = {};
    result.token = outcome.token;
    result.non_finite = outcome.non_finite != 0;
    result.logprob = outcome.logprob;
    const int count = std::clamp(outcome.top_count, 0, kOutcomeLogprobs);
    result.top.reserve(static_cast<size_t>(count));
    for (int t = 0; t < count; ++t) {
      result.top.push_back({outcome.top_token[t], outcome.top_logprob[t]});
    }
  }
  return absl::OkStatus();
}

}  // namespace layercake::kernels::cuda

namespace layercake::kernels {

absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(Device& device, const CudaOpsOptions& options) {
  auto* cuda_device = dynamic_cast<cuda::CudaDevice*>(&device);
  if (cuda_device == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("CUDA operations need a CUDA device, got ", device.name()));
  }
  return std::make_unique<cuda::CudaOps>(*cuda_device, options);
}

}  // namespace layercake::kernels
