// How the scheduler forms one micro-batch.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "coordinator/scheduler.h"
#include "coordinator/scheduler_sequence.h"

namespace layercake::coordinator {
namespace {

// Below this share of free blocks, prompts get proportionally fewer rows: they would only take the
// blocks that running sequences need next.
constexpr double kScarce = 0.1;

constexpr int kShareSlack = 8;  // an eighth

// Chunks of prompts are multiples of it: kernels compute rows by tiles, many rows by large ones.
constexpr int kRowTile = 16;
constexpr int kLargeRowTile = 128;
constexpr int kManyRows = 256;

// For each stage and full micro-batch, how many chunks are thought of at most; and what a smaller
// chunk has to save.
constexpr int kMostChunks = 4;
constexpr double kLessByChunks = 0.97;

// Of min_prefill_rows each: prompt rows beside decodes before any step was measured.
constexpr int kUnmeasuredChunks = 4;

// Seconds. A result takes about a millisecond to the coordinator and the next plan back; beside
// steps longer than this that is nothing, and who comes meanwhile would wait for one more of them.
constexpr double kShortStep = 50e-3;

// From a round of micro-batches to the next: with twice the time (max_stretch) reached in two
// rounds, the largest gap of a stream over four stages is 2.5 times the one alone, not 2.7.
constexpr double kMostGrowth = 1.5;

}  // namespace

std::optional<ScheduledStep> Scheduler::NextStep() {
  const bool one_more = in_flight() >= flight_.wanted();
  if (in_flight() > flight_.wanted()) return std::nullopt;
  if (one_more && !OldestRunsAhead() && !PromptsGoAhead()) return std::nullopt;
  Admit();
  ScheduledStep step;
  step.step = static_cast<StepId>(next_step_);
  history_tokens_ = 0;
  const int share = ScheduleDecodes(step);
  if (one_more) ScheduleAhead(in_flight_.front().step, share, step);
  const StepShape prompts = SchedulePrompts(step);
  // Nothing else to do: those that come back first.
  if (step.rows.empty() && FirstAhead() != nullptr && NextInTurn(ready_ahead_.front().step)) {
    ScheduleAhead(ready_ahead_.front().step, share, step);
  }
  if (step.rows.empty() && pending_ends_.empty() && host_blocks_.planned().empty()) {
    if (in_flight() < flight_.wanted()) lapsed_ = true;
    return std::nullopt;
  }
  step.copies = TakeCopies();
  if (!step.rows.empty()) turn_ = (turn_ + 1) % flight_.wanted();

  StepInFlight record{.step = step.step,
                      .shape = step.shape,
                      .prompts = prompts,
                      .waits_for = {},
                      .copies = !step.copies.empty(),
                      .rows = {}};
  prompt_rows_in_flight_ += static_cast<int64_t>(prompts.rows);
  prompt_rows_begun_ += static_cast<int64_t>(prompts.rows);
  for (const ScheduledRows& rows : step.rows) {
    record.waits_for = std::max(record.waits_for, rows.token_of_step);
    record.rows.push_back({.sequence = rows.sequence,
                           .life = Find(rows.sequence)->life,
                           .end = rows.first + rows.count});
  }
  recent_shapes_[next_step_ % recent_shapes_.size()] = {step.step,
                                                        record.copies ? StepShape{} : step.shape};
  in_flight_.push_back(std::move(record));
  ++next_step_;
  known_to_chain_ -= static_cast<int>(pending_ends_.size());
  step.ends = std::exchange(pending_ends_, {});
  return step;
}

int Scheduler::DecodeShare() const {
  const int turns = flight_.wanted();
  // Turn i of n takes the sequences from i * all / n to (i + 1) * all / n: shares that differ by at
  // most one and stay the same from round to round.
  const int64_t all = decoding_;
  return static_cast<int>((turn_ + 1) * all / turns - turn_ * all / turns);
}

int Scheduler::ScheduleDecodes(ScheduledStep& step) {
  int share = options_.throttle ? DecodeShare() : options_.max_rows;
  // A turn without a share is for those that have one.
  for (int i = 1; share == 0 && decoding_ > 0 && i < flight_.wanted(); ++i) {
    turn_ = (turn_ + 1) % flight_.wanted();
    share = DecodeShare();
  }
  // Where prompts are computed, streams begin all the time: rather a share that is a little larger
  // than a stream that waits for another turn. Streams alone keep level.
  if (!prompts_.empty()) share += share / kShareSlack;
  share = std::min(share, options_.max_rows);
  std::vector<std::pair<SequenceId, uint64_t>> without_blocks;
  while (share > 0 && !ready_.empty()) {
    const auto entry = ready_.front();
    ready_.pop_front();
    Sequence* const sequence = Find(entry.first);
    if (sequence == nullptr || sequence->ready_ticket != entry.second) continue;
    sequence->ready_ticket = 0;
    if (AppendRows(*sequence, 1, step)) {
      --share;
      continue;
    }
    sequence->ready_ticket = entry.second;
    without_blocks.push_back(entry);
  }
  // First in line when those in flight have come back.
  ready_.insert(ready_.begin(), without_blocks.begin(), without_blocks.end());
  return share;
}

// The one whose token comes first, or null. Forgets entries that do not hold any more.
Scheduler::Sequence* Scheduler::FirstAhead() {
  while (!ready_ahead_.empty()) {
    const ReadyAhead& first = ready_ahead_.front();
    Sequence* const sequence = Find(first.sequence);
    if (sequence != nullptr && sequence->ready_ticket == first.ticket) return sequence;
    ready_ahead_.pop_front();
  }
  return nullptr;
}

bool Scheduler::OldestRunsAhead() {
  return FirstAhead() != nullptr && ready_ahead_.front().step == in_flight_.front().step;
}

bool Scheduler::PromptsGoAhead() const {
  return decoding_ == 0 && !prompts_.empty() && in_flight() < MaxPlanned(options_) && CostKnown() &&
         SlowestStage(in_flight_.back().shape) < kShortStep;
}

bool Scheduler::NextInTurn(StepId step) const {
  for (const StepInFlight& before : in_flight_) {
    if (before.step >= step) break;
    if (before.waits_for >= in_flight_.front().step) return false;
  }
  return true;
}

void Scheduler::ScheduleAhead(StepId until, int share, ScheduledStep& step) {
  while (share > 0) {
    Sequence* const sequence = FirstAhead();
    if (sequence == nullptr || ready_ahead_.front().step > until) return;
    ready_ahead_.pop_front();
    sequence->ready_ticket = 0;  // without blocks it waits for its token
    if (AppendRows(*sequence, 1, step)) --share;
  }
}

StepShape Scheduler::SchedulePrompts(ScheduledStep& step) {
  StepShape prompts = step.shape.Times(-1);
  if (prompts_.empty()) return {};
  const int rows_left = options_.max_rows - static_cast<int>(step.shape.rows);
  for (const Chunk& chunk : ChooseChunks(step.shape, rows_left)) {
    // Making room for one chunk may have preempted the sequence of a later one.
    if (chunk.sequence->state != Sequence::State::kPrompt) continue;
    if (!AppendRows(*chunk.sequence, chunk.rows, step)) continue;
    if (chunk.sequence->pending() > 0) continue;
    chunk.sequence->state = Sequence::State::kDecoding;
    LeavePrompts(*chunk.sequence);
    UpdateCounts(*chunk.sequence);
    MakeReady(*chunk.sequence);
  }
  prompts.Add(step.shape);
  return prompts;
}

std::vector<Scheduler::Chunk> Scheduler::ChooseChunks(const StepShape& decodes, int rows_left) {
  std::vector<Chunk> chunks;
  int64_t pending = 0;
  int longest = 0;
  for (Sequence* const sequence : prompts_) {
    if (sequence->paused || sequence->pending() <= 0) continue;
    longest = std::max(longest, sequence->known());
    chunks.push_back({.sequence = sequence, .rows = 0});
    pending += sequence->pending();
  }
  if (chunks.empty() || rows_left <= 0) return {};
  int budget = std::min(options_.prefill_rows, rows_left);
  double limit = std::numeric_limits<double>::infinity();
  if (options_.throttle) {
    // With those that went before, so that a prompt goes in even parts.
    if (prompt_rows_in_flight_ == 0) prompt_rows_begun_ = 0;
    const int64_t all = pending + prompt_rows_in_flight_;
    int64_t share = (all + flight_.wanted() - 1) / flight_.wanted();
    if (decoding_ == 0) {
      const int64_t chunk = ChunkRows(pending + prompt_rows_begun_, longest, budget);
      share = CostKnown() ? chunk : std::min(share, chunk);
    }
    const double free = static_cast<double>(pool_.free_count()) / pool_.total();
    const double pressure = std::min(1.0, free / kScarce);
    budget = static_cast<int>(
        std::min<double>(budget, static_cast<double>(std::min<int64_t>(share, budget)) * pressure));
    budget = std::min(std::max(budget, options_.min_prefill_rows), rows_left);
    limit = TimeLimit();
    // Nothing measured yet, and streams that wait: small steps.
    if (!CostKnown() && decoding_ > 0) {
      budget = std::min({budget, kUnmeasuredChunks * options_.min_prefill_rows, rows_left});
    }
    // The one with the least left comes second.
    if (chunks.size() > 2) {
      std::iter_swap(
          chunks.begin() + 1,
          std::min_element(chunks.begin() + 1, chunks.end(), [](const Chunk& a, const Chunk& b) {
            return a.sequence->pending() < b.sequence->pending();
          }));
    }
  }
  // The first gets half and, when the others have had theirs, what is left.
  StepShape shape = decodes;
  const double base = SlowestStage(decodes);
  // False when the time is used up.
  const auto give = [&](Chunk& chunk, int most, double until) {
    const Sequence& sequence = *chunk.sequence;
    most = std::min(most, sequence.pending() - chunk.rows);
    const int rows = RowsWithin(until, shape, sequence.computed + chunk.rows, most);
    shape.Add(ShapeOf(sequence.computed + chunk.rows, rows, false));
    chunk.rows += rows;
    budget -= rows;
    return rows == most;
  };
  const bool alone = chunks.size() == 1 || !options_.throttle;
  Chunk& first = chunks.front();
  give(first, alone ? budget : (budget + 1) / 2, alone ? limit : base + (limit - base) / 2);
  bool time_left = true;
  for (size_t i = 1; i < chunks.size() && budget > 0 && time_left; ++i) {
    time_left = give(chunks[i], budget, limit);
  }
  if (budget > 0 && time_left) give(first, budget, limit);
  // The first and the second always get on.
  for (size_t i = 0; i < std::min<size_t>(chunks.size(), 2); ++i) {
    Chunk& chunk = chunks[i];
    const int left = rows_left - static_cast<int>(shape.rows - decodes.rows);
    const int least = std::min(options_.min_prefill_rows, chunk.sequence->pending());
    const int more = std::min(left, least - chunk.rows);
    if (more <= 0) continue;
    chunk.rows += more;
    shape.rows += more;
  }
  std::erase_if(chunks, [](const Chunk& chunk) { return chunk.rows == 0; });
  return chunks;
}

int Scheduler::ChunkRows(int64_t rows, int longest, int most) const {
  if (options_.stages == 1) return most;  // nobody waits for the first chunk
  const auto chunk_of = [rows](int64_t chunks) {
    const int64_t even = (rows + chunks - 1) / chunks;
    const int tile = even > kManyRows ? kLargeRowTile : kRowTile;
    return static_cast<int>((even + tile - 1) / tile * tile);
  };
  const bool known = CostKnown();
  const int64_t least_chunks = (rows + most - 1) / most;
  const int64_t most_chunks = least_chunks * kMostChunks * options_.stages;
  int best = most;
  double best_seconds = std::numeric_limits<double>::infinity();
  for (int64_t chunks = least_chunks; chunks <= most_chunks;
       chunks += std::max<int64_t>(1, chunks / 8)) {
    const int size = std::min(chunk_of(chunks), most);
    // The first chunk passes every stage; the others follow at the pace of the slowest.
    StepShape shape = ShapeOf(std::max(0, (longest - size) / 2), size, false);
    // Rows of several prompts attend each to their own.
    shape.reads = std::min(shape.reads, size * (longest + 1) / 2.0);
    double way = 0;
    double slowest = 0;
    for (const StepCostModel& cost : costs_) {
      const double one = known ? cost.PredictUnseen(shape) : StepCostModel::Unmeasured(size);
      way += one;
      slowest = std::max(slowest, one);
    }
    const double seconds = way + static_cast<double>((rows + size - 1) / size - 1) * slowest;
    if (seconds < kLessByChunks * best_seconds) {
      best_seconds = seconds;
      best = size;
    }
    if (size <= options_.min_prefill_rows) break;
  }
  return best;
}

StepShape Scheduler::StreamShape() const {
  const double rows = decoding_;
  const auto tokens = static_cast<double>(decoding_tokens_);
  return {.rows = rows, .samples = rows, .reads = tokens, .entries = tokens};
}

double Scheduler::TimeLimit() const {
  if (!CostKnown()) return std::numeric_limits<double>::infinity();
  // Without decodes: what the first chunk of a prompt takes at its full size, so that late chunks,
  // which read more, get fewer rows.
  if (decoding_ == 0) return SlowestStage(ShapeOf(0, options_.prefill_rows, false));
  const double alone =
      SlowestStage(StreamShape().Times(1.0 / std::min(flight_.wanted(), decoding_)));
  // Where micro-batches become longer, a stream waits for those before its own, and then for its
  // own in every stage, which all take longer than the time before.
  const uint64_t round = static_cast<uint64_t>(flight_.wanted());
  double before = alone;
  if (next_step_ > round) {
    const StepShape& shape = recent_shapes_[(next_step_ - round) % recent_shapes_.size()].second;
    before = std::max(before, SlowestStage(shape));
  }
  return std::min(options_.max_stretch * alone, kMostGrowth * before);
}

int Scheduler::RowsWithin(double limit, const StepShape& others, int position, int most) const {
  const auto fits = [&](int rows) {
    StepShape shape = others;
    shape.Add(ShapeOf(position, rows, false));
    double slowest = 0;
    for (const StepCostModel& cost : costs_) {
      slowest = std::max(slowest, decoding_ > 0 ? cost.PredictAtMost(shape) : cost.Predict(shape));
    }
    return slowest <= limit;
  };
  if (limit == std::numeric_limits<double>::infinity() || fits(most)) return most;
  int rows = 0;
  int too_many = most;
  while (too_many - rows > 1) {
    const int middle = rows + (too_many - rows) / 2;
    (fits(middle) ? rows : too_many) = middle;
  }
  return rows;
}

double Scheduler::SlowestStage(const StepShape& shape) const {
  double slowest = 0;
  for (const StepCostModel& cost : costs_) slowest = std::max(slowest, cost.Predict(shape));
  return slowest;
}

bool Scheduler::CostKnown() const {
  return std::all_of(costs_.begin(), costs_.end(),
                     [](const StepCostModel& cost) { return cost.ready(); });
}

bool Scheduler::CostSeen(double rows) const {
  return std::all_of(costs_.begin(), costs_.end(),
                     [rows](const StepCostModel& cost) { return cost.Saw(rows); });
}

bool Scheduler::AppendRows(Sequence& sequence, int count, ScheduledStep& step) {
  const bool begins = !sequence.begun;
  if (begins && history_tokens_ > 0 &&
      history_tokens_ + sequence.computed > options_.max_history_tokens) {
    return false;
  }
  const int end = sequence.computed + count;
  const int missing = BlocksFor(end) - static_cast<int>(sequence.blocks.size());
  if (missing > pool_.free_count() && !MakeRoom(sequence, missing)) return false;
  ScheduledRows rows;
  rows.sequence = sequence.id;
  rows.first = sequence.computed;
  rows.count = count;
  rows.samples = end >= sequence.known();
  if (end > sequence.known()) rows.token_of_step = sequence.planned;
  rows.begins = begins;
  // A sequence that begins brings all its blocks, the shared ones too.
  rows.table_start = begins ? 0 : static_cast<int>(sequence.blocks.size());
  if (begins) {
    rows.new_blocks = sequence.blocks;
    history_tokens_ += sequence.computed;
  }
  for (int i = 0; i < missing; ++i) {
    rows.new_blocks.push_back(AllocateBlock(sequence));
    sequence.blocks.push_back(rows.new_blocks.back());
  }
  step.shape.Add(ShapeOf(sequence.computed, count, rows.samples));
  sequence.computed = end;
  sequence.in_flight += 1;
  sequence.planned = step.step;
  sequence.begun = true;
  sequence.sent = true;
  UpdateCounts(sequence);
  MakeReady(sequence);
  if (sequence.state == Sequence::State::kDecoding) Charge(sequence, count);
  step.rows.push_back(std::move(rows));
  return true;
}

BlockId Scheduler::AllocateBlock(Sequence& sequence) {
  if (options_.fault == SchedulerFault::kReuseBlock && next_step_ % 7 == 0) {
    for (const Rank& rank : running_) {
      const Sequence& other = *Find(rank.second);
      if (&other == &sequence || other.blocks.empty()) continue;
      pool_.Share(other.blocks.back());
      return other.blocks.back();
    }
  }
  const std::optional<BlockId> block = pool_.Allocate();
  LC_CHECK(block.has_value(), "the pool is empty after room was made");
  return *block;
}

bool Scheduler::MakeRoom(const Sequence& for_sequence, int blocks) {
  // The last in rank first, and never one before the one in need: so the first always goes on.
  const auto forming = static_cast<StepId>(next_step_);
  while (pool_.free_count() < blocks) {
    Sequence* victim = nullptr;
    for (auto rank = running_.rbegin(); rank != running_.rend(); ++rank) {
      if (*rank <= RankOf(for_sequence)) break;
      Sequence* const candidate = Find(rank->second);
      // Rows of one step have no order among them.
      const bool in_step = candidate->planned == forming;
      if (in_step && options_.fault != SchedulerFault::kReuseInStep) continue;
      if (candidate->blocks.empty()) continue;
      victim = candidate;
      break;
    }
    if (victim == nullptr) return false;  // it is tried again in the next step
    Preempt(*victim);
  }
  return true;
}

}  // namespace layercake::coordinator
