#include "coordinator/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace layercake::coordinator {

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options), pool_(options.kv_blocks) {
  LC_CHECK(options.stages >= 1 && options.max_in_flight >= 1, "stages ", options.stages,
           ", in flight ", options.max_in_flight);
  LC_CHECK(options.max_rows >= 1 && options.prefill_rows >= 1, "rows ", options.max_rows,
           ", prefill rows ", options.prefill_rows);
  LC_CHECK(options.max_sequences >= 1 && options.block_tokens >= 1, "sequences ",
           options.max_sequences, ", block tokens ", options.block_tokens);
}

absl::Status Scheduler::Add(SequenceId id, int prompt_tokens) {
  LC_CHECK(prompt_tokens >= 1, "a sequence of ", prompt_tokens, " tokens");
  if (queued() >= options_.max_queued) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", queued(), " requests wait"));
  }
  Sequence sequence;
  sequence.known = prompt_tokens;
  const bool inserted = sequences_.emplace(id, std::move(sequence)).second;
  LC_CHECK(inserted, "sequence ", static_cast<uint64_t>(id), " added twice");
  waiting_.push_back(id);
  return absl::OkStatus();
}

void Scheduler::TokenAdded(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || it->second.finished) return;
  it->second.known += 1;
  it->second.decoding = true;
}

void Scheduler::Finish(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || it->second.finished) return;
  it->second.finished = true;
  if (it->second.in_flight == 0) Retire(id);
}

void Scheduler::SetPaused(SequenceId id, bool paused) {
  const auto it = sequences_.find(id);
  if (it != sequences_.end()) it->second.paused = paused;
}

std::optional<ScheduledStep> Scheduler::NextStep() {
  if (in_flight() >= options_.max_in_flight) return std::nullopt;
  Admit();
  ScheduledStep step;
  step.step = static_cast<StepId>(next_step_);
  int rows_left = options_.max_rows;
  ScheduleDecodes(step, rows_left);
  SchedulePrompts(step, rows_left);
  if (step.rows.empty() && pending_ends_.empty()) return std::nullopt;

  InFlight record{.step = step.step, .sequences = {}};
  for (const ScheduledRows& rows : step.rows) record.sequences.push_back(rows.sequence);
  in_flight_.push_back(std::move(record));
  ++next_step_;
  known_to_chain_ -= static_cast<int>(pending_ends_.size());
  step.ends = std::exchange(pending_ends_, {});
  return step;
}

void Scheduler::StepDone(StepId step) {
  LC_CHECK(!in_flight_.empty() && in_flight_.front().step == step, "step ",
           static_cast<uint64_t>(step), " is not the oldest in flight");
  const InFlight done = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (const SequenceId id : done.sequences) {
    Sequence& sequence = sequences_.at(id);
    sequence.in_flight -= 1;
    if (sequence.finished && sequence.in_flight == 0) Retire(id);
  }
}

std::optional<StepId> Scheduler::oldest_in_flight() const {
  if (in_flight_.empty()) return std::nullopt;
  return in_flight_.front().step;
}

int Scheduler::BlocksFor(int tokens) const {
  return (tokens + options_.block_tokens - 1) / options_.block_tokens;
}

void Scheduler::Admit() {
  // Blocks that admitted prompts will still take: promised, so not free for the next one.
  int promised = 0;
  for (const SequenceId id : running_) {
    const Sequence& sequence = sequences_.at(id);
    if (!sequence.finished) {
      promised += std::max(0, BlocksFor(sequence.known) - static_cast<int>(sequence.blocks.size()));
    }
  }
  while (!waiting_.empty()) {
    Sequence& sequence = sequences_.at(waiting_.front());
    const bool new_to_chain = !sequence.known_to_chain;
    if (new_to_chain && known_to_chain_ >= options_.max_sequences) return;
    // One block more than the tokens need, so that it is not preempted at its first output; but
    // alone it may take the whole pool.
    const int wanted = std::min(BlocksFor(sequence.known) + 1, pool_.total());
    if (!running_.empty() && pool_.free_count() - promised < wanted) return;
    if (running_.empty() && pool_.free_count() < BlocksFor(sequence.known)) return;
    promised += wanted;
    if (new_to_chain) {
      sequence.known_to_chain = true;
      ++known_to_chain_;
    }
    // Oldest first also after a preemption: the position follows the id.
    const SequenceId id = waiting_.front();
    waiting_.pop_front();
    running_.insert(std::lower_bound(running_.begin(), running_.end(), id), id);
  }
}

void Scheduler::ScheduleDecodes(ScheduledStep& step, int& rows_left) {
  int decoding = 0;
  std::vector<SequenceId> ready;
  for (const SequenceId id : running_) {
    const Sequence& sequence = sequences_.at(id);
    if (sequence.finished || sequence.paused || !sequence.decoding) continue;
    if (sequence.known - sequence.computed > 1) continue;  // recomputed after a preemption
    ++decoding;
    if (sequence.computed < sequence.known) ready.push_back(id);
  }
  // An even share for each micro-batch in flight; who waited longest goes first.
  const int share = (decoding + options_.stages - 1) / options_.stages;
  std::stable_sort(ready.begin(), ready.end(), [this](SequenceId a, SequenceId b) {
    return sequences_.at(a).last_scheduled < sequences_.at(b).last_scheduled;
  });
  int taken = 0;
  for (const SequenceId id : ready) {
    if (taken >= share || rows_left <= 0) return;
    const auto it = sequences_.find(id);
    if (std::find(running_.begin(), running_.end(), id) == running_.end()) continue;  // preempted
    if (!AppendRows(id, it->second, 1, step)) continue;
    ++taken;
    --rows_left;
  }
}

void Scheduler::SchedulePrompts(ScheduledStep& step, int& rows_left) {
  int budget = std::min(rows_left, options_.prefill_rows);
  const std::vector<SequenceId> candidates = running_;  // preemption may shorten running_
  for (const SequenceId id : candidates) {
    if (budget <= 0) return;
    if (std::find(running_.begin(), running_.end(), id) == running_.end()) continue;
    Sequence& sequence = sequences_.at(id);
    const int pending = sequence.known - sequence.computed;
    if (sequence.finished || sequence.paused || pending <= 0) continue;
    if (sequence.decoding && pending == 1) continue;  // ScheduleDecodes has its turn
    const int count = std::min(pending, budget);
    if (!AppendRows(id, sequence, count, step)) continue;
    budget -= count;
    rows_left -= count;
  }
}

bool Scheduler::AppendRows(SequenceId id, Sequence& sequence, int count, ScheduledStep& step) {
  const int end = sequence.computed + count;
  const int missing = BlocksFor(end) - static_cast<int>(sequence.blocks.size());
  if (missing > pool_.free_count() && !MakeRoom(id, missing)) return false;
  ScheduledRows rows;
  rows.sequence = id;
  rows.first = sequence.computed;
  rows.count = count;
  rows.samples = end == sequence.known;
  rows.begins = !std::exchange(sequence.begun, true);
  rows.table_start = static_cast<int>(sequence.blocks.size());
  for (int i = 0; i < missing; ++i) {
    const std::optional<BlockId> block = pool_.Allocate();
    LC_CHECK(block.has_value(), "the pool is empty after room was made");
    rows.new_blocks.push_back(*block);
    sequence.blocks.push_back(*block);
  }
  sequence.computed = end;
  sequence.in_flight += 1;
  sequence.last_scheduled = next_step_;
  step.rows.push_back(std::move(rows));
  return true;
}

bool Scheduler::MakeRoom(SequenceId for_id, int blocks) {
  // Youngest first, and never an older one than the one in need: so the oldest always goes on.
  while (pool_.free_count() < blocks) {
    bool preempted = false;
    for (size_t i = running_.size(); i-- > 0 && running_[i] > for_id;) {
      Sequence& victim = sequences_.at(running_[i]);
      if (victim.in_flight > 0 || victim.finished || victim.blocks.empty()) continue;
      Preempt(running_[i], victim);
      preempted = true;
      break;
    }
    if (!preempted) return false;  // those in flight come back; then it is tried again
  }
  return true;
}

void Scheduler::Preempt(SequenceId id, Sequence& sequence) {
  ReleaseBlocks(sequence);
  sequence.computed = 0;
  sequence.begun = false;
  running_.erase(std::find(running_.begin(), running_.end(), id));
  waiting_.insert(std::lower_bound(waiting_.begin(), waiting_.end(), id), id);
  ++preemptions_;
}

void Scheduler::ReleaseBlocks(Sequence& sequence) {
  for (const BlockId block : sequence.blocks) pool_.Free(block);
  sequence.blocks.clear();
}

void Scheduler::Retire(SequenceId id) {
  const auto it = sequences_.find(id);
  ReleaseBlocks(it->second);
  if (it->second.known_to_chain) {
    // Sequences that were admitted but never sent are not in anybody's table; an end for them
    // would name a stranger.
    if (it->second.last_scheduled > 0) {
      pending_ends_.push_back(id);
    } else {
      --known_to_chain_;
    }
  }
  std::erase(running_, id);
  std::erase(waiting_, id);
  sequences_.erase(it);
}

}  // namespace layercake::coordinator
