// One request from admission to its end, as the engine keeps it.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "coordinator/engine.h"
#include "coordinator/ids.h"
#include "coordinator/output_stream.h"

namespace layercake::coordinator {

// One of the answers that were asked for: a sequence of its own.
struct ChoiceState {
  ChoiceState(SequenceId id, int choice_index, const PreparedRequest& request,
              const model::Tokenizer& tokenizer)
      : sequence(id),
        index(choice_index),
        tokens(request.prompt),
        output(tokenizer, request.stop, choice_index) {}

  SequenceId sequence{};
  int index = 0;
  uint64_t seed = 0;
  std::vector<int32_t> tokens;  // prompt and output
  OutputStream output;
  std::optional<base::Instant> first_output;  // the first token came back
  base::Instant last_output;
  bool ended = false;
};

struct RequestState {
  RequestState(PreparedRequest prepared_request, std::shared_ptr<RequestSink> request_sink,
               base::Instant now)
      : prepared(std::move(prepared_request)), sink(std::move(request_sink)), submitted(now) {}

  int output_tokens(const ChoiceState& choice) const {
    return static_cast<int>(choice.tokens.size() - prepared.prompt.size());
  }

  PreparedRequest prepared;
  std::shared_ptr<RequestSink> sink;
  std::vector<std::unique_ptr<ChoiceState>> choices;
  int open = 0;  // choices that have not ended
  base::Instant submitted;
  std::optional<base::Instant> admitted;      // its first rows were sent
  int cached_tokens = 0;                      // of the prompt, when it was admitted
  std::optional<base::Instant> paused_since;  // its reader stands still
};

}  // namespace layercake::coordinator
