// Who computes what next: forms the micro-batches that keep every stage busy.
//
// A sequence has `known` tokens (prompt and output) and `computed` ones (keys and values written,
// or on their way in a micro-batch). Whatever lies between is work: a prompt's chunk or the one
// token of a decode step. The row of the last known token is sampled. Chunks of one prompt may be
// in flight together: micro-batches pass every stage in order.
//
// Rules (docs/architecture.md, "Scheduling"):
//   - at most max_in_flight micro-batches; decode rows are spread evenly over the stages' number
//     of micro-batches; decodes first, then prompt chunks within prefill_rows
//   - admission in order of arrival, when the blocks of the prompt and one more are free
//   - out of blocks: the youngest sequence gives up its blocks and is computed again later; the
//     oldest always can go on, because one context fits the pool (checked in Create's options)
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/block_pool.h"
#include "coordinator/ids.h"

namespace layercake::coordinator {

struct SchedulerOptions {
  int stages = 1;
  int max_in_flight = 1;
  int max_rows = 512;       // of one micro-batch
  int prefill_rows = 256;   // prompt rows of one micro-batch
  int max_sequences = 256;  // known to the chain at once
  int max_queued = 1024;    // waiting for admission
  int kv_blocks = 0;
  int block_tokens = 16;
};

// Consecutive tokens of one sequence in a micro-batch.
struct ScheduledRows {
  SequenceId sequence{};
  int first = 0;  // position of the first token
  int count = 0;
  bool samples = false;  // the last row's logits give the next token
  bool begins = false;   // the chain has to be told what the sequence is
  int table_start = 0;   // `new_blocks` stand at this index of the block table
  std::vector<BlockId> new_blocks;
};

struct ScheduledStep {
  StepId step{};
  std::vector<ScheduledRows> rows;  // may be empty: then only `ends` matter
  std::vector<SequenceId> ends;     // sequences that the chain may forget
};

// Pure: no clock, no I/O.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // A new sequence of `prompt_tokens` >= 1 tokens. ResourceExhausted when max_queued wait already.
  absl::Status Add(SequenceId id, int prompt_tokens);
  // The sampled token of a finished step was kept: one more known token.
  void TokenAdded(SequenceId id);
  // The sequence ends (done, cancelled, failed). Its blocks are free once none of its rows is in
  // flight. Unknown ids are ignored.
  void Finish(SequenceId id);
  // A paused sequence gets no new rows and keeps its blocks.
  void SetPaused(SequenceId id, bool paused);

  // The next micro-batch, or nullopt: nothing to do, or max_in_flight reached.
  std::optional<ScheduledStep> NextStep();
  // The result of the oldest step in flight is here. CHECKs the order.
  void StepDone(StepId step);

  int running() const { return static_cast<int>(running_.size()); }
  int queued() const { return static_cast<int>(waiting_.size()); }
  int in_flight() const { return static_cast<int>(in_flight_.size()); }
  std::optional<StepId> oldest_in_flight() const;
  const BlockPool& blocks() const { return pool_; }
  int64_t preemptions() const { return preemptions_; }

 private:
  struct Sequence {
    int known = 0;
    int computed = 0;
    int in_flight = 0;  // steps
    bool finished = false;
    bool paused = false;
    bool begun = false;  // the chain knows it, with its present sampling state
    bool known_to_chain = false;
    bool decoding = false;  // its prompt has been computed once
    uint64_t last_scheduled = 0;
    std::vector<BlockId> blocks;
  };
  struct InFlight {
    StepId step{};
    std::vector<SequenceId> sequences;
  };

  int BlocksFor(int tokens) const;
  void Admit();
  void ScheduleDecodes(ScheduledStep& step, int& rows_left);
  void SchedulePrompts(ScheduledStep& step, int& rows_left);
  // Appends up to `count` rows of the sequence; false when blocks are short.
  bool AppendRows(SequenceId id, Sequence& sequence, int count, ScheduledStep& step);
  bool MakeRoom(SequenceId for_id, int blocks);
  void Preempt(SequenceId id, Sequence& sequence);
  void ReleaseBlocks(Sequence& sequence);
  void Retire(SequenceId id);

  const SchedulerOptions options_;
  BlockPool pool_;
  // Ordered by id, which is the order of arrival: iteration never depends on hashing.
  std::map<SequenceId, Sequence> sequences_;
  std::vector<SequenceId> running_;  // admitted, oldest first
  std::deque<SequenceId> waiting_;   // not admitted, first to be admitted in front
  std::vector<SequenceId> pending_ends_;
  std::deque<InFlight> in_flight_;
  uint64_t next_step_ = 1;
  int known_to_chain_ = 0;
  int64_t preemptions_ = 0;
};

}  // namespace layercake::coordinator
