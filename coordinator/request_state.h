// One request from admission to its end, as the engine keeps it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "coordinator/engine.h"
#include "coordinator/ids.h"
#include "coordinator/output_stream.h"

namespace layercake::coordinator {

struct RequestState {
  RequestState(PreparedRequest prepared_request, std::shared_ptr<RequestSink> request_sink,
               SequenceId id, const model::Tokenizer& tokenizer, base::Instant now)
      : prepared(std::move(prepared_request)),
        sink(std::move(request_sink)),
        sequence(id),
        tokens(prepared.prompt),
        output(tokenizer, prepared.stop, /*index=*/0),
        submitted(now) {}

  int output_tokens() const { return static_cast<int>(tokens.size() - prepared.prompt.size()); }

  PreparedRequest prepared;
  std::shared_ptr<RequestSink> sink;
  SequenceId sequence{};
  std::vector<int32_t> tokens;  // prompt and output
  OutputStream output;
  base::Instant submitted;
  std::optional<base::Instant> admitted;      // its first rows were sent
  std::optional<base::Instant> first_output;  // the first token came back
  base::Instant last_output;
  std::optional<base::Instant> paused_since;  // its reader stands still
};

}  // namespace layercake::coordinator
