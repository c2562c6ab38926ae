// Who computes what next: forms the micro-batches that keep every stage busy.
//
// A sequence has known tokens (prompt and output) and computed ones (keys and values written, or on
// their way in a micro-batch). Whatever lies between is work: a prompt's chunk or the one token of
// a decode step. The row of the last known token is sampled. Chunks of one prompt may be in flight
// together: micro-batches pass every stage in order.
//
// Rules (docs/architecture.md, "Scheduling"):
//   - as many micro-batches in flight as stages, and one more where that makes a round shorter by
//     measured times (flight_control.h); decode rows are spread over them by turn, so that two of
//     them never differ by more than one row (by an eighth while prompts are computed and streams
//     begin): a row that is too many waits for the next turn
//   - decodes first. Prompt chunks fill a micro-batch up to its share of the pending prompt rows,
//     less when blocks are short, and never longer than max_stretch times a micro-batch of decodes
//     alone (by the measured times of the slowest stage). Half of that belongs to the prompt that
//     was admitted first, half to the one with the least left: none waits for ever, a short one
//     not long. Without streams there is no such bound; then chunks are as large as gets all the
//     prompts through the stages soonest: the first chunk passes every stage, the others follow at
//     the pace of the slowest. Where nothing was measured yet it is guessed how steps grow with
//     their rows; a guess has to promise more than a size that was seen. And while steps are short,
//     one chunk more than micro-batches are wanted is planned
//   - running ahead (allow_run_ahead): while a sequence's token is on its way back, its next decode
//     row may be planned already; a stage takes the token from the one that sampled it, and the
//     coordinator's way is off the path. At most one row of a sequence, none beyond its last token.
//     Only where it keeps nothing else waiting, as steps run in order: in one micro-batch more than
//     are wanted, for the rows of the oldest one in flight, which the token will reach in time; or
//     in a micro-batch that would be empty, when no step before waits for its own token
//   - admission in fair order (fair_queue.h), when a sequence's blocks and one more are free
//   - full blocks that were computed are kept for prompts that begin alike; a prompt that begins
//     like one that is being computed waits for it instead of doing the same work
//   - out of blocks: the last in order (batch before interactive, then the youngest) gives up its
//     blocks and is computed again later, or gets them back from host memory where copying there
//     and back takes less time than computing (host_blocks.h); the first always can go on, because
//     one context fits the pool (checked where the options are made)
//   - what a sequence gives up (it ended, or gave way) is free at once, although rows of it may
//     still be in flight. Every stage runs the steps in planned order, one after the other on one
//     device, and a step's block tables are those of its plan. So a row that reads or writes an old
//     owner's block has done so before any row of a later plan touches it; only the step that is
//     being formed may not take blocks from its own rows. A full block is published when the step
//     that filled it has come back, and only by a sequence that owns it still
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "coordinator/block_pool.h"
#include "coordinator/fair_queue.h"
#include "coordinator/flight_control.h"
#include "coordinator/host_blocks.h"
#include "coordinator/ids.h"
#include "coordinator/step_cost.h"

namespace layercake::coordinator {

// Faults made on purpose, so that a test can prove that it would find them. Only tests set one.
enum class SchedulerFault : uint8_t {
  kNone,
  kLeakBlock,       // a sequence that ends keeps a block for ever
  kReuseBlock,      // a block that another sequence owns is given out as new
  kReuseInStep,     // one that has rows in the step that is being formed gives way
  kDropCancel,      // a sequence that ends while its rows are in flight is never given up
  kCacheUnwritten,  // a block is published that is not full yet
  kWrongHostBlock   // a sequence gets two of its saved blocks back in each other's place
};

struct SchedulerOptions {
  int stages = 1;
  int max_in_flight = 1;      // micro-batches; at most stages + 1 are used
  int max_rows = 512;         // of one micro-batch
  int prefill_rows = 256;     // prompt rows of one micro-batch
  int min_prefill_rows = 16;  // a prompt never gets less, if it has that much left
  int max_sequences = 256;    // known to the chain at once
  int max_queued = 1024;      // waiting for admission
  absl::Duration queue_timeout = absl::Seconds(60);
  int kv_blocks = 0;
  int block_tokens = 16;
  // Tokens before the first rows (prefix hits) of the sequences that begin in one micro-batch, over
  // the first of them; what a plan slot was made for.
  int max_history_tokens = 4096;
  // Of host memory on every stage; and how many of them one micro-batch may save, and likewise
  // restore: what a plan slot was made for.
  int host_blocks = 0;
  int max_block_copies = 0;
  double max_stretch = 2.0;  // see above
  bool prefix_cache = true;
  bool run_ahead = false;  // one micro-batch more may be planned than max_in_flight
  // False: prompts in order of arrival and as many rows as fit, the way that is compared with.
  bool throttle = true;
  SchedulerFault fault = SchedulerFault::kNone;
};

// Micro-batches that may be planned and not have come back.
inline int MaxPlanned(const SchedulerOptions& options) {
  return options.max_in_flight + (options.run_ahead ? 1 : 0);
}

struct NewSequence {
  SequenceId id{};
  std::vector<int32_t> prompt;  // at least one token
  std::string client = {};
  Priority priority = Priority::kInteractive;
  // kEmpty: shares blocks with everybody. A root from NewRoot: with others of that root only.
  // nullopt: with nobody.
  std::optional<PrefixId> root = PrefixId::kEmpty;
  // Tokens, prompt included, at which it ends in any case; 0: unknown, no row of it runs ahead.
  int last_token = 0;
};

// Consecutive tokens of one sequence in a micro-batch.
struct ScheduledRows {
  SequenceId sequence{};
  int first = 0;  // position of the first token
  int count = 0;
  bool samples = false;  // the last row's logits give the next token
  bool begins = false;   // the chain has to be told what the sequence is
  // Not 0: a row that runs ahead. Its token is what this step samples for the sequence.
  StepId token_of_step{};
  int table_start = 0;  // `new_blocks` stand at this index of the block table
  std::vector<BlockId> new_blocks;
};

struct ScheduledStep {
  StepId step{};
  std::vector<ScheduledRows> rows;  // may be empty: then only `ends` matter
  std::vector<SequenceId> ends;     // sequences that the chain may forget
  HostBlockCopies copies;           // done before any row
  StepShape shape;
};

// Pure: no I/O, time is an argument.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();

  // ResourceExhausted when max_queued wait already.
  absl::Status Add(NewSequence sequence, base::Instant now);
  PrefixId NewRoot() { return pool_.NewRoot(); }
  // The sampled token of a finished step was kept: one more known token.
  void TokenAdded(SequenceId id, int32_t token);
  // The sequence ends (done, cancelled, failed). Its blocks are free at once; the next step tells
  // the chain. Unknown ids are ignored.
  void Finish(SequenceId id);
  // What was computed for this sequence is in doubt (a NaN): nobody may share it.
  void Distrust(SequenceId id);
  // A paused sequence gets no new rows and keeps its blocks.
  void SetPaused(SequenceId id, bool paused);
  // Sequences that waited longer than queue_timeout for their admission; the caller ends them.
  std::vector<SequenceId> Expired(base::Instant now) { return queue_.Expire(now); }
  base::Instant next_deadline() const { return queue_.next_deadline(); }

  // The next micro-batch, or nullopt: nothing to do, or as many in flight as are wanted.
  std::optional<ScheduledStep> NextStep();
  // The result of the oldest step in flight is here. CHECKs the order.
  void StepDone(StepId step, base::Instant now);
  // Whether rows may run ahead, where the options let them: the chain says so when it is known.
  void AllowRunAhead(bool allowed) { run_ahead_ = options_.run_ahead && allowed; }
  // What a stage measured. Steps that are long past are ignored.
  void StepTime(int stage, StepId step, double seconds);
  // What a stage measured: to copy one block to host memory, or back. 0: it has not.
  void SetCopySeconds(int stage, double seconds) { copy_cost_.Set(stage, seconds); }

  int running() const { return static_cast<int>(running_.size()); }
  int queued() const { return queue_.size() + static_cast<int>(resuming_.size()) + following_; }
  int in_flight() const { return static_cast<int>(in_flight_.size()); }
  int wanted_in_flight() const { return flight_.wanted(); }
  std::optional<StepId> oldest_in_flight() const;
  const BlockPool& blocks() const { return pool_; }
  const HostBlocks& host_blocks() const { return host_blocks_; }
  int64_t preemptions() const { return preemptions_; }
  // Those of them whose blocks were copied to host memory.
  int64_t copied_preemptions() const { return copied_preemptions_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  // Of its prompt, when it was first admitted.
  int CachedTokens(SequenceId id) const;

 private:
  struct Sequence;
  // Batch after interactive, then in order of arrival: who gives way to whom.
  using Rank = std::pair<Priority, SequenceId>;
  struct RowsInFlight {
    SequenceId sequence{};
    int life = 0;  // of the sequence: what was computed before it gave way is not its own any more
    int end = 0;   // position after the last row
  };
  struct StepInFlight {
    StepId step{};
    StepShape shape;
    StepShape prompts;    // what of it is prompts' chunks
    StepId waits_for{};   // the latest step whose token a row of it takes; 0: none
    bool copies = false;  // blocks: what it takes says little of what computing and hops cost
    std::vector<RowsInFlight> rows;
  };
  // A sequence whose next row may run ahead.
  struct ReadyAhead {
    StepId step{};  // that samples its token
    SequenceId sequence{};
    uint64_t ticket = 0;
  };
  struct Chunk {
    Sequence* sequence = nullptr;
    int rows = 0;
  };

  // scheduler.cc: sequences from their arrival to their end.
  Sequence* Find(SequenceId id);
  static Rank RankOf(const Sequence& sequence);
  int BlocksFor(int tokens) const;
  void Admit();
  // False when it has to wait for blocks or for others to end.
  bool TryAdmit(Sequence& sequence);
  std::vector<BlockPool::Hit> Match(const Sequence& sequence) const;
  bool FollowAnother(Sequence& sequence, int hits);
  void ReleaseFollowers(Sequence& leader, int confirmed);
  void UpdateCounts(Sequence& sequence);
  void MakeReady(Sequence& sequence);
  void MakeReadyAhead(Sequence& sequence);
  void LeavePrompts(Sequence& sequence);
  void Confirm(Sequence& sequence, int end);
  void Preempt(Sequence& sequence);
  void ReleaseBlocks(Sequence& sequence);
  void Charge(Sequence& sequence, double tokens);
  void Retire(Sequence& sequence);

  // scheduler_steps.cc: one micro-batch.
  // Returns what is left of this turn's share.
  int ScheduleDecodes(ScheduledStep& step);
  int DecodeShare() const;
  // Rows whose token is sampled by `until` or an earlier step, at most `share`.
  void ScheduleAhead(StepId until, int share, ScheduledStep& step);
  Sequence* FirstAhead();
  bool OldestRunsAhead();
  // One chunk more than micro-batches are wanted hides the way to the coordinator and back, where
  // no stream has to wait for it.
  bool PromptsGoAhead() const;
  // Nothing in flight before that step waits for a token itself: what comes behind a row that runs
  // ahead of it will not be due sooner.
  bool NextInTurn(StepId step) const;
  // Returns what it added.
  StepShape SchedulePrompts(ScheduledStep& step);
  std::vector<Chunk> ChooseChunks(const StepShape& decodes, int rows_left);
  // Seconds that a micro-batch with these decodes may take; Infinite before anything was measured.
  double TimeLimit() const;
  // At most `most` rows from `position` on, so that with `others` they take no longer than `limit`.
  int RowsWithin(double limit, const StepShape& others, int position, int most) const;
  double SlowestStage(const StepShape& shape) const;
  // The rows that all streams have in a round.
  StepShape StreamShape() const;
  // Rows of each chunk, at most `most`, for `rows` of prompts without streams beside them; the
  // longest of the prompts has `longest` tokens.
  int ChunkRows(int64_t rows, int longest, int most) const;
  bool CostKnown() const;
  // Steps of about that many rows were measured.
  bool CostSeen(double rows) const;
  // Appends up to `count` rows of the sequence; false when blocks are short, or the history does
  // not fit.
  bool AppendRows(Sequence& sequence, int count, ScheduledStep& step);
  BlockId AllocateBlock(Sequence& sequence);
  bool MakeRoom(const Sequence& for_sequence, int blocks);

  // scheduler_copies.cc: host memory for those that give way.
  double SecondsToCompute(int first, int end) const;
  // Plans that the blocks are saved, where that is cheaper than computing them again.
  void SaveBlocks(Sequence& sequence);
  // Something was saved and fits behind `hits` blocks that were found; else it is given back.
  bool HasCopy(Sequence& sequence, int hits);
  // Its restores fit the step that is being formed.
  bool MayRestore(const Sequence& sequence, int hits) const;
  // What was saved goes behind the blocks that it has already.
  void RestoreBlocks(Sequence& sequence);
  HostBlockCopies TakeCopies();

  const SchedulerOptions options_;
  BlockPool pool_;
  HostBlocks host_blocks_;
  HostCopyCost copy_cost_;
  FairQueue queue_;
  FlightControl flight_;
  std::vector<StepCostModel> costs_;  // of each stage
  std::vector<StepId> last_timed_;    // of each stage

  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;  // never iterated
  std::set<Rank> running_;                                                // admitted
  std::set<Rank> resuming_;         // admitted before, or followed another: first in line
  std::vector<Sequence*> prompts_;  // running, with a prompt to compute; as admitted
  std::vector<Sequence*> leaders_;  // running, with a prompt that is not confirmed; as admitted
  std::deque<std::pair<SequenceId, uint64_t>> ready_;  // to decode; with their tickets
  std::deque<ReadyAhead> ready_ahead_;                 // in order of their steps
  bool run_ahead_ = false;
  int following_ = 0;
  int decoding_ = 0;             // running, not paused, prompt computed
  int64_t decoding_tokens_ = 0;  // their known tokens
  int promised_ = 0;             // blocks that running prompts will still take
  std::vector<SequenceId> pending_ends_;
  std::deque<StepInFlight> in_flight_;
  std::vector<std::pair<StepId, StepShape>> recent_shapes_;  // by step % size
  uint64_t next_step_ = 1;
  uint64_t next_ticket_ = 1;
  int turn_ = 0;  // of the micro-batches, for the decodes' spread
  int64_t prompt_rows_in_flight_ = 0;
  int64_t prompt_rows_begun_ = 0;  // since none were in flight
  bool lapsed_ = false;            // since the last result, fewer were in flight than wanted
  int history_tokens_ = 0;         // of the step that is being formed
  int known_to_chain_ = 0;
  int64_t preemptions_ = 0;
  int64_t copied_preemptions_ = 0;
  int64_t cached_tokens_ = 0;
};

}  // namespace layercake::coordinator
