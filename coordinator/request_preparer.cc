#include "coordinator/request_preparer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/chat_input.h"
#include "coordinator/sampling_rules.h"
#include "model/tokenizer/utf8.h"
#include "proto/errors.h"
#include "proto/protocol_version.h"

namespace layercake::coordinator {
namespace {

absl::Status Invalid(absl::string_view message, absl::string_view param) {
  return MakeError(ErrorReason::kInvalidParameter, message, param);
}

absl::Status CheckText(const std::string& text, absl::string_view param) {
  const size_t bad = model::FirstInvalidUtf8(text);
  if (bad == std::string_view::npos) return absl::OkStatus();
  return Invalid(absl::StrCat(param, " is not valid UTF-8 at byte ", bad), param);
}

absl::Status CheckPromptBytes(size_t bytes, size_t limit, absl::string_view what,
                              absl::string_view param) {
  if (bytes <= limit) return absl::OkStatus();
  return MakeError(
      ErrorReason::kRequestTooLarge,
      absl::StrCat(what, " of ", bytes, " bytes is over the limit of ", limit, " bytes"), param);
}

// What the templates say about a chat they refuse is the client's fault; anything else is not.
absl::Status RenderError(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    return Invalid(absl::StrCat("the chat cannot be rendered: ", status.message()), "messages");
  }
  return MakeError(ErrorReason::kInternal,
                   absl::StrCat("the chat cannot be rendered: ", status.message()));
}

absl::Status EncodeError(const absl::Status& status, absl::string_view param) {
  if (status.code() == absl::StatusCode::kInvalidArgument) return Invalid(status.message(), param);
  return MakeError(ErrorReason::kInternal, status.message());
}

// Whether the template shows the tools that it is given.
bool TakesTools(const model::ChatTemplate& chat_template) {
  constexpr std::string_view kProbe = "layercake_probe";
  model::ChatInput input;
  input.messages = {{{"role", "user"}, {"content", "x"}}};
  nlohmann::ordered_json function = {
      {"name", kProbe}, {"description", "x"}, {"parameters", {{"type", "object"}}}};
  input.tools = nlohmann::ordered_json::array();
  input.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  const auto spans = chat_template.Render(input);
  return spans.ok() && model::jinja::JoinSpans(*spans).find(kProbe) != std::string::npos;
}

}  // namespace

struct RequestPreparer::RenderedChat {
  std::vector<model::jinja::RenderedSpan> spans;
};

RequestPreparer::RequestPreparer(const model::Tokenizer& tokenizer,
                                 const model::ChatTemplate* chat_template, const base::Clock& clock,
                                 base::Random& random, RequestPreparerOptions options)
    : tokenizer_(tokenizer),
      chat_template_(chat_template),
      clock_(clock),
      options_(std::move(options)),
      model_(options_.model),
      random_(random) {
  model_.set_served_context(options_.context_tokens);
  model_.set_vocabulary_size(static_cast<int32_t>(tokenizer.vocab_size()));
  model_.set_bos_token_id(tokenizer.bos_id().value_or(-1));
  model_.set_eos_token_id(tokenizer.eos_id().value_or(-1));
  model_.clear_end_of_generation_ids();
  for (const int32_t id : tokenizer.end_of_generation_ids()) {
    model_.add_end_of_generation_ids(id);
  }
  model_.set_tokenizer_sha256(tokenizer.sha256());
  model_.clear_modalities();
  model_.add_modalities("text");
  model_.clear_capabilities();
  if (chat_template != nullptr) {
    model_.add_capabilities("chat");
    if (TakesTools(*chat_template)) model_.add_capabilities("tools");
  }
  model_.add_capabilities("logprobs");
  model_.add_capabilities("prompt_logprobs");
}

absl::StatusOr<PreparedRequest> RequestPreparer::Prepare(const v1::GenerateRequest& request,
                                                         std::string client) const {
  if (request.request_id().size() > RequestLimits::kMaxRequestIdBytes) {
    return Invalid(absl::StrCat("request_id of ", request.request_id().size(),
                                " bytes is over the limit of ", RequestLimits::kMaxRequestIdBytes),
                   "request_id");
  }
  LC_RETURN_IF_ERROR(CheckText(request.request_id(), "request_id"));
  if (std::any_of(request.request_id().begin(), request.request_id().end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; })) {
    return Invalid("request_id has a control character in it", "request_id");
  }
  if (!request.model().empty() && request.model() != options_.model.name()) {
    return MakeError(ErrorReason::kModelNotFound,
                     absl::StrCat("there is no model \"", request.model(),
                                  "\" here; this server has \"", options_.model.name(), "\""),
                     "model");
  }
  if (request.has_n() && (request.n() < 1 || request.n() > RequestLimits::kMaxChoices)) {
    return Invalid(absl::StrCat("n is ", request.n(), "; 1 to ", RequestLimits::kMaxChoices,
                                " choices can be asked for"),
                   "n");
  }
  if (request.priority() < v1::PRIORITY_UNSPECIFIED || request.priority() > v1::PRIORITY_BATCH) {
    return Invalid(
        absl::StrCat("priority is ", request.priority(), ", which is none that is known"),
        "priority");
  }
  if (request.has_max_tokens() && request.max_tokens() < 1) {
    return Invalid(absl::StrCat("max_tokens is ", request.max_tokens(), "; it must be at least 1"),
                   "max_tokens");
  }
  PreparedRequest prepared;
  LC_ASSIGN_OR_RETURN(prepared.sampling, ResolveSampling(request));
  LC_RETURN_IF_ERROR(ResolveStops(request, &prepared));
  LC_ASSIGN_OR_RETURN(prepared.prompt, EncodePrompt(request));

  int32_t room = options_.context_tokens - static_cast<int32_t>(prepared.prompt.size());
  if (options_.max_output_tokens > 0) room = std::min(room, options_.max_output_tokens);
  prepared.max_tokens = request.has_max_tokens() ? std::min(request.max_tokens(), room) : room;
  prepared.request_id = request.request_id();
  prepared.ignore_end_of_generation = request.ignore_end_of_generation();
  prepared.prompt_logprobs = request.prompt_logprobs();
  prepared.n = request.has_n() ? request.n() : 1;
  prepared.use_prefix_cache = !request.has_use_prefix_cache() || request.use_prefix_cache();
  if (request.priority() == v1::PRIORITY_BATCH) prepared.priority = Priority::kBatch;
  prepared.client = std::move(client);
  return prepared;
}

// At least one token, and room for one more in the context.
absl::StatusOr<std::vector<int32_t>> RequestPreparer::EncodePrompt(
    const v1::GenerateRequest& request) const {
  std::vector<int32_t> ids;
  const absl::string_view param = request.has_chat() ? "messages" : "prompt";
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText: {
      LC_ASSIGN_OR_RETURN(ids, EncodeText(request.text(), request.parse_special(), true));
      break;
    }
    case v1::GenerateRequest::kTokens: {
      // Before the copy: the list is bounded by the context from here on.
      const auto& asked = request.tokens().ids();
      LC_RETURN_IF_ERROR(CheckFitsContext(static_cast<size_t>(asked.size()), param));
      LC_RETURN_IF_ERROR(CheckIds(asked, param));
      ids.assign(asked.begin(), asked.end());
      break;
    }
    case v1::GenerateRequest::kChat: {
      LC_ASSIGN_OR_RETURN(const RenderedChat rendered, RenderChat(request.chat()));
      LC_ASSIGN_OR_RETURN(ids, EncodeChat(rendered, true));
      break;
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return Invalid("the prompt is missing; send text, tokens or chat", param);
  }
  if (ids.empty()) return Invalid("the prompt is empty: it has no token", param);
  LC_RETURN_IF_ERROR(CheckFitsContext(ids.size(), param));
  return ids;
}

absl::StatusOr<std::vector<int32_t>> RequestPreparer::EncodeText(const std::string& text,
                                                                 bool parse_special,
                                                                 bool add_special) const {
  LC_RETURN_IF_ERROR(
      CheckPromptBytes(text.size(), options_.max_prompt_bytes, "a prompt", "prompt"));
  LC_RETURN_IF_ERROR(CheckText(text, "prompt"));
  const model::TextSpan span{text, parse_special};
  return Encode({&span, 1}, add_special, "prompt");
}

absl::StatusOr<RequestPreparer::RenderedChat> RequestPreparer::RenderChat(
    const v1::Chat& chat) const {
  if (chat_template_ == nullptr) {
    return MakeError(ErrorReason::kUnsupported,
                     "this model has no chat template; send the prompt as text", "messages");
  }
  LC_RETURN_IF_ERROR(
      CheckPromptBytes(chat.ByteSizeLong(), options_.max_prompt_bytes, "a chat", "messages"));
  LC_ASSIGN_OR_RETURN(model::ChatInput input, ToChatInput(chat));
  input.now = clock_.WallNow();
  auto spans = chat_template_->Render(input);
  if (!spans.ok()) return RenderError(spans.status());
  size_t bytes = 0;
  for (const model::jinja::RenderedSpan& span : *spans) bytes += span.text.size();
  LC_RETURN_IF_ERROR(
      CheckPromptBytes(bytes, options_.max_prompt_bytes, "a rendered chat", "messages"));
  return RenderedChat{*std::move(spans)};
}

absl::StatusOr<std::vector<int32_t>> RequestPreparer::EncodeChat(const RenderedChat& rendered,
                                                                 bool add_special) const {
  std::vector<model::TextSpan> spans;
  spans.reserve(rendered.spans.size());
  for (const model::jinja::RenderedSpan& span : rendered.spans) {
    spans.push_back({span.text, span.from_template});
  }
  return Encode(spans, add_special, "messages");
}

absl::StatusOr<std::vector<int32_t>> RequestPreparer::Encode(
    absl::Span<const model::TextSpan> spans, bool add_bos, absl::string_view param) const {
  // Not the tokenizer's own add_special: it may also put EOS behind a prompt that is to go on.
  auto ids = tokenizer_.EncodeSpans(spans, /*add_special=*/false);
  if (!ids.ok()) return EncodeError(ids.status(), param);
  if (add_bos && tokenizer_.add_bos() && (ids->empty() || ids->front() != *tokenizer_.bos_id())) {
    ids->insert(ids->begin(), *tokenizer_.bos_id());
  }
  return *std::move(ids);
}

absl::Status RequestPreparer::CheckIds(absl::Span<const int32_t> ids,
                                       absl::string_view param) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (tokenizer_.IsValidId(ids[i])) continue;
    return Invalid(absl::StrCat(param, "[", i, "] is token ", ids[i], "; ids are 0 to ",
                                tokenizer_.vocab_size() - 1),
                   param);
  }
  return absl::OkStatus();
}

absl::Status RequestPreparer::CheckFitsContext(size_t prompt_tokens,
                                               absl::string_view param) const {
  if (prompt_tokens < static_cast<size_t>(options_.context_tokens)) return absl::OkStatus();
  absl::Status status =
      MakeError(ErrorReason::kContextLengthExceeded,
                absl::StrCat("the prompt has ", prompt_tokens, " tokens; the context holds ",
                             options_.context_tokens, ", and one of them is needed for the answer"),
                param);
  status = WithMetadata(std::move(status), "prompt_tokens", absl::StrCat(prompt_tokens));
  return WithMetadata(std::move(status), "context", absl::StrCat(options_.context_tokens));
}

absl::StatusOr<v1::ResolvedSampling> RequestPreparer::ResolveSampling(
    const v1::GenerateRequest& request) const {
  LC_RETURN_IF_ERROR(CheckSampling(request.sampling()));
  if (request.has_top_logprobs() &&
      (request.top_logprobs() < 0 || request.top_logprobs() > RequestLimits::kMaxTopLogprobs)) {
    return Invalid(absl::StrCat("top_logprobs is ", request.top_logprobs(), "; it must be 0 to ",
                                RequestLimits::kMaxTopLogprobs),
                   "top_logprobs");
  }
  v1::ResolvedSampling resolved =
      Resolve(request.sampling(), options_.sampling_defaults, DrawSeed());
  if (request.has_top_logprobs()) resolved.set_top_logprobs(request.top_logprobs());
  return resolved;
}

absl::Status RequestPreparer::ResolveStops(const v1::GenerateRequest& request,
                                           PreparedRequest* prepared) const {
  if (request.stop_size() > RequestLimits::kMaxStops) {
    return Invalid(absl::StrCat(request.stop_size(), " stop strings are more than the limit of ",
                                RequestLimits::kMaxStops),
                   "stop");
  }
  for (const std::string& stop : request.stop()) {
    if (stop.empty()) return Invalid("a stop string is empty", "stop");
    if (stop.size() > RequestLimits::kMaxStopBytes) {
      return Invalid(absl::StrCat("a stop string of ", stop.size(), " bytes is over the limit of ",
                                  RequestLimits::kMaxStopBytes),
                     "stop");
    }
    LC_RETURN_IF_ERROR(CheckText(stop, "stop"));
    prepared->stop.push_back(stop);
  }
  if (request.stop_token_ids_size() > RequestLimits::kMaxStopTokenIds) {
    return Invalid(
        absl::StrCat(request.stop_token_ids_size(), " stop tokens are more than the limit of ",
                     RequestLimits::kMaxStopTokenIds),
        "stop_token_ids");
  }
  LC_RETURN_IF_ERROR(CheckIds(request.stop_token_ids(), "stop_token_ids"));
  prepared->stop_token_ids.insert(request.stop_token_ids().begin(), request.stop_token_ids().end());
  return absl::OkStatus();
}

uint64_t RequestPreparer::DrawSeed() const {
  absl::MutexLock lock(&mutex_);
  return random_.Next();
}

absl::StatusOr<v1::TokenizeResponse> RequestPreparer::Tokenize(
    const v1::TokenizeRequest& request) const {
  v1::TokenizeResponse response;
  std::vector<int32_t> ids;
  const bool add_special = !request.has_add_special() || request.add_special();
  switch (request.input_case()) {
    case v1::TokenizeRequest::kText: {
      LC_ASSIGN_OR_RETURN(ids, EncodeText(request.text(), request.parse_special(), add_special));
      break;
    }
    case v1::TokenizeRequest::kChat: {
      LC_ASSIGN_OR_RETURN(const RenderedChat rendered, RenderChat(request.chat()));
      LC_ASSIGN_OR_RETURN(ids, EncodeChat(rendered, add_special));
      response.set_rendered(model::jinja::JoinSpans(rendered.spans));
      break;
    }
    case v1::TokenizeRequest::INPUT_NOT_SET:
      return Invalid("the input is missing; send text or chat", "input");
  }
  response.mutable_ids()->Assign(ids.begin(), ids.end());
  LC_RETURN_IF_ERROR(
      CheckPromptBytes(response.ByteSizeLong(), kMaxInferenceResponseBytes, "a response", "input"));
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> RequestPreparer::Detokenize(
    const v1::DetokenizeRequest& request) const {
  LC_RETURN_IF_ERROR(CheckIds(request.ids(), "ids"));
  size_t bytes = 0;
  for (const int32_t id : request.ids()) {
    LC_ASSIGN_OR_RETURN(const std::string_view piece,
                        tokenizer_.TokenToPiece(id, request.show_special()));
    bytes += piece.size();
    LC_RETURN_IF_ERROR(
        CheckPromptBytes(bytes, kMaxInferenceResponseBytes / 3, "the text of these ids", "ids"));
  }
  auto text = tokenizer_.Decode(request.ids(), {.show_control = request.show_special()});
  if (!text.ok()) return EncodeError(text.status(), "ids");
  v1::DetokenizeResponse response;
  response.set_text(*std::move(text));
  return response;
}

}  // namespace layercake::coordinator
