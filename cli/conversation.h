// A conversation with a served model: questions in, streamed answers out, history in between.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cli/inference_client.h"
#include "cli/line_input.h"
#include "layercake/v1/inference.pb.h"

namespace layercake::cli {

struct ConversationOptions {
  std::string model;  // asked for by name; empty: whatever is served
  std::string system;
  bool raw = false;  // prompts as they are: no chat template, no history
  v1::SamplingParams sampling;
  std::optional<int> max_tokens;
};

// Ask and Talk from one thread; Interrupt from any.
class Conversation {
 public:
  // Answers go to `answers`, everything else to `notes`.
  Conversation(ConversationOptions options, InferenceClient& client, std::ostream& answers,
               std::ostream& notes);

  // FailedPrecondition, with the way out, when the served model has no chat template and the
  // conversation is not raw.
  absl::Status CheckModel();
  // Streams one answer and adds it to the history, as far as it came. Cancelled after Interrupt.
  absl::Status Ask(const std::string& question);
  // Until the end of the input, "/bye", or an error of the server's that is not about one question.
  // `prompted`: a person types, so show a prompt.
  absl::Status Talk(LineInput& input, bool prompted);

  // Stops the answer that is being streamed, if there is one: true then.
  bool Interrupt();

 private:
  v1::GenerateRequest MakeRequest(const std::string& question) const;
  void OnEvent(const v1::GenerateResponse& event);

  const ConversationOptions options_;
  InferenceClient& client_;
  std::ostream& answers_;
  std::ostream& notes_;
  v1::Chat chat_;
  std::string answer_;
  std::atomic<bool> answering_ = false;
};

}  // namespace layercake::cli
