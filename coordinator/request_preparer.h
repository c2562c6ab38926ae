// From what a client asked to what the engine runs: checks every value, renders chats, tokenizes,
// resolves sampling defaults. Nothing that is refused here ever reaches the engine or a worker.
//
// Rules that clients can rely on:
//   * prompt_tokens + 1 <= context. A prompt that leaves no room for one token is refused with
//     context_length_exceeded and both numbers; it is never shortened.
//   * max_tokens above what the context (or the operator's ceiling) leaves is no error: the output
//     is bounded by it and ends with LENGTH. Absent: all that is left.
//   * Text gets BOS in front where the model wants one, and exactly one even when the text (parsed
//     with parse_special) or the chat template begins with it.
//   * Special tokens are recognised in the template's own text only, never in what a client sent,
//     unless it set parse_special on a text prompt.
//
// Errors are made by MakeError (proto/errors.h), with the parameter at fault.
// Thread rule: constant after construction apart from the seed source, which has its own lock; any
// thread may call anything.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/random.h"
#include "coordinator/engine.h"
#include "layercake/v1/inference.pb.h"
#include "model/chat/chat_template.h"
#include "model/tokenizer/tokenizer.h"

namespace layercake::coordinator {

struct RequestLimits {
  static constexpr size_t kMaxRequestIdBytes = 128;
  static constexpr int kMaxStops = 4;
  static constexpr size_t kMaxStopBytes = 256;  // of one stop string
  static constexpr int kMaxStopTokenIds = 64;
  static constexpr int kMaxTopLogprobs = 20;
  static constexpr int kMaxChoices = 16;
  static constexpr int kMaxMessages = 4096;
  static constexpr int kMaxTools = 256;
  static constexpr int kMaxJsonDepth = 64;
};

struct RequestPreparerOptions {
  int32_t context_tokens = 0;  // of one sequence: prompt and output
  // Of a text prompt, of all strings of a chat, and of a rendered chat.
  size_t max_prompt_bytes = 4 << 20;
  int32_t max_output_tokens = 0;  // the operator's ceiling for one request; 0: none
  // The model's own (sampling_rules.h); what it leaves open is filled from types.proto.
  v1::SamplingParams sampling_defaults;
  // The answer to GetModel. `name` is what GenerateRequest.model must be when it is set. Context,
  // vocabulary, special ids, hash and modalities are filled in by the class.
  v1::GetModelResponse model;
};

class RequestPreparer {
 public:
  // `chat_template` may be null: chats are then refused. All references outlive the preparer.
  RequestPreparer(const model::Tokenizer& tokenizer, const model::ChatTemplate* chat_template,
                  const base::Clock& clock, base::Random& random, RequestPreparerOptions options);

  // `client` is the peer's address, kept for fairness and logs.
  absl::StatusOr<PreparedRequest> Prepare(const v1::GenerateRequest& request,
                                          std::string client) const;

  // For a chat without `add_special`: the very ids that Generate would run. add_special = false
  // then leaves out even the one BOS that the template did not write.
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request) const;
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request) const;
  const v1::GetModelResponse& model() const { return model_; }

 private:
  struct RenderedChat;

  absl::StatusOr<std::vector<int32_t>> EncodePrompt(const v1::GenerateRequest& request) const;
  absl::StatusOr<std::vector<int32_t>> EncodeText(const std::string& text, bool parse_special,
                                                  bool add_special) const;
  absl::StatusOr<RenderedChat> RenderChat(const v1::Chat& chat) const;
  absl::StatusOr<std::vector<int32_t>> EncodeChat(const RenderedChat& rendered,
                                                  bool add_special) const;
  absl::StatusOr<std::vector<int32_t>> Encode(absl::Span<const model::TextSpan> spans, bool add_bos,
                                              absl::string_view param) const;
  absl::Status CheckIds(absl::Span<const int32_t> ids, absl::string_view param) const;
  absl::Status CheckFitsContext(size_t prompt_tokens, absl::string_view param) const;
  absl::StatusOr<v1::ResolvedSampling> ResolveSampling(const v1::GenerateRequest& request) const;
  absl::Status ResolveStops(const v1::GenerateRequest& request, PreparedRequest* prepared) const;
  uint64_t DrawSeed() const;

  const model::Tokenizer& tokenizer_;
  const model::ChatTemplate* const chat_template_;
  const base::Clock& clock_;
  const RequestPreparerOptions options_;
  v1::GetModelResponse model_;

  mutable absl::Mutex mutex_;
  base::Random& random_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace layercake::coordinator
