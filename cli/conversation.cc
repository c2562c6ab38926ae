#include "cli/conversation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/format.h"

namespace layercake::cli {
namespace {

constexpr char kPrompt[] = ">>> ";

void AddMessage(v1::Chat& chat, const std::string& role, const std::string& content) {
  v1::ChatMessage& message = *chat.add_messages();
  message.set_role(role);
  message.set_content(content);
}

// Errors after which the next question may do better.
bool IsAboutOneQuestion(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsInvalidArgument(status) ||
         absl::IsResourceExhausted(status);
}

}  // namespace

Conversation::Conversation(ConversationOptions options, InferenceClient& client,
                           std::ostream& answers, std::ostream& notes)
    : options_(std::move(options)), client_(client), answers_(answers), notes_(notes) {
  if (!options_.system.empty()) AddMessage(chat_, "system", options_.system);
}

absl::Status Conversation::CheckModel() {
  if (options_.raw) return absl::OkStatus();
  LC_ASSIGN_OR_RETURN(const v1::GetModelResponse model, client_.GetModel());
  const auto& capabilities = model.capabilities();
  if (std::find(capabilities.begin(), capabilities.end(), "chat") != capabilities.end()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the model ", model.name(), " has no chat template, so nobody knows how it ",
                   "wants a conversation written; --raw continues plain text instead"));
}

v1::GenerateRequest Conversation::MakeRequest(const std::string& question) const {
  v1::GenerateRequest request;
  request.set_model(options_.model);
  if (options_.raw) {
    request.set_text(question);
  } else {
    *request.mutable_chat() = chat_;
  }
  *request.mutable_sampling() = options_.sampling;
  if (options_.max_tokens) request.set_max_tokens(*options_.max_tokens);
  return request;
}

absl::Status Conversation::Ask(const std::string& question) {
  if (!options_.raw) AddMessage(chat_, "user", question);
  answer_.clear();
  answering_ = true;
  const absl::Status status = client_.Generate(
      MakeRequest(question), [this](const v1::GenerateResponse& event) { OnEvent(event); });
  answering_ = false;
  if (!answer_.empty() || status.ok()) answers_ << std::endl;
  if (!options_.raw) {
    if (answer_.empty() && !status.ok()) {
      chat_.mutable_messages()->RemoveLast();  // as if it had not been asked
    } else {
      AddMessage(chat_, "assistant", answer_);
    }
  }
  if (absl::IsCancelled(status)) notes_ << "[stopped]" << std::endl;
  return status;
}

void Conversation::OnEvent(const v1::GenerateResponse& event) {
  if (event.has_delta()) {
    answer_ += event.delta().text();
    answers_ << event.delta().text() << std::flush;
    // Nobody reads any more.
    if (!answers_) client_.CancelAll();
  }
  if (event.has_finished()) {
    notes_ << (answer_.empty() || answer_.back() != '\n' ? "\n" : "") << "["
           << FormatUsage(event.finished().usage(), event.finished().timings()) << "]" << std::endl;
  }
}

absl::Status Conversation::Talk(LineInput& input, bool prompted) {
  if (prompted) notes_ << "/clear forgets the conversation; /bye or Ctrl-D ends it." << std::endl;
  for (;;) {
    if (prompted) notes_ << kPrompt << std::flush;
    const std::optional<std::string> line = input.ReadLine();
    if (!line) {
      if (prompted) notes_ << std::endl;
      return absl::OkStatus();
    }
    const absl::string_view command = absl::StripAsciiWhitespace(*line);
    if (command.empty()) continue;
    if (command == "/bye") return absl::OkStatus();
    if (command == "/clear") {
      chat_.clear_messages();
      if (!options_.system.empty()) AddMessage(chat_, "system", options_.system);
      continue;
    }
    const absl::Status status = Ask(*line);
    if (!status.ok() && !IsAboutOneQuestion(status)) return status;
    if (!status.ok() && !absl::IsCancelled(status)) {
      notes_ << "error: " << status.message() << std::endl;
    }
  }
}

bool Conversation::Interrupt() {
  if (!answering_) return false;
  client_.CancelAll();
  return true;
}

}  // namespace layercake::cli
