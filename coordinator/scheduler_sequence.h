// What the scheduler keeps of one sequence. Part of scheduler.h; nobody else includes it.
#pragma once

#include <string>
#include <vector>

#include "coordinator/scheduler.h"

namespace layercake::coordinator {

struct Scheduler::Sequence {
  enum class State : uint8_t {
    kQueued,     // in queue_
    kFollowing,  // waits for another one's prompt
    kResuming,   // in resuming_
    kPrompt,     // running, in prompts_
    kDecoding,   // running
  };

  SequenceId id{};
  std::vector<int32_t> tokens;  // the known ones
  std::string client;
  Priority priority = Priority::kInteractive;
  bool shares = false;  // looks for blocks and publishes its own
  PrefixId root{};
  int last_token = 0;  // as in NewSequence

  State state = State::kQueued;
  int computed = 0;      // in finished steps, or in flight
  int confirmed = 0;     // in finished steps
  int in_flight = 0;     // steps
  int life = 0;          // how often it gave way
  StepId planned{};      // the latest step with rows of it, or that restores its blocks
  int saved_tokens = 0;  // computed when its blocks were saved to host memory
  bool paused = false;
  bool begun = false;           // the chain knows it, with its present sampling state
  bool known_to_chain = false;  // counted in known_to_chain_
  bool sent = false;            // rows of it were ever scheduled
  bool counted = false;         // in decoding_ and decoding_tokens_
  int counted_tokens = 0;
  int promised = 0;           // in promised_
  uint64_t ready_ticket = 0;  // of its entry in ready_ or ready_ahead_; 0: none
  int first_cached_tokens = -1;

  std::vector<BlockId> blocks;
  PrefixId prefix{};  // of the first `published` blocks
  int published = 0;
  double uncharged = 0;  // computed tokens that its client has not been charged for

  std::vector<std::pair<SequenceId, int>> followers;  // and the position that each waits for
  int leads_until = 0;                                // others may wait for it up to here
  SequenceId leader{};                                // while kFollowing

  int known() const { return static_cast<int>(tokens.size()); }
  // To compute; -1 when the row after the known tokens is in flight.
  int pending() const { return known() - computed; }
  bool running() const { return state == State::kPrompt || state == State::kDecoding; }
};

}  // namespace layercake::coordinator
