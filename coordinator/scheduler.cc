#include "coordinator/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "coordinator/scheduler_sequence.h"

namespace layercake::coordinator {
namespace {

constexpr double kChargeEvery = 32;    // tokens
constexpr size_t kMostLeaders = 128;   // whose prompts one that is admitted is compared with
constexpr size_t kRecentSteps = 1024;  // whose shapes are kept for the stages' times

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      pool_(options.kv_blocks),
      host_blocks_(options.host_blocks),
      copy_cost_(options.stages),
      flight_(options.stages, options.max_in_flight),
      costs_(static_cast<size_t>(options.stages)),
      last_timed_(static_cast<size_t>(options.stages)),
      recent_shapes_(kRecentSteps) {
  LC_CHECK(options.stages >= 1 && options.max_in_flight >= 1, "stages ", options.stages,
           ", in flight ", options.max_in_flight);
  LC_CHECK(options.max_rows >= 1 && options.prefill_rows >= 1 && options.min_prefill_rows >= 1,
           "rows ", options.max_rows, ", prefill rows ", options.prefill_rows, ", at least ",
           options.min_prefill_rows);
  LC_CHECK(options.max_sequences >= 1 && options.block_tokens >= 1, "sequences ",
           options.max_sequences, ", block tokens ", options.block_tokens);
}

Scheduler::~Scheduler() = default;

absl::Status Scheduler::Add(NewSequence added, base::Instant now) {
  LC_CHECK(!added.prompt.empty(), "a sequence without tokens");
  if (queued() >= options_.max_queued) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", queued(), " requests wait"));
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = added.id;
  sequence->tokens = std::move(added.prompt);
  sequence->client = std::move(added.client);
  sequence->priority = added.priority;
  sequence->shares = options_.prefix_cache && added.root.has_value();
  sequence->root = added.root.value_or(PrefixId::kEmpty);
  sequence->last_token = added.last_token;
  queue_.Push(added.id, sequence->client, sequence->priority, now + options_.queue_timeout);
  const bool inserted = sequences_.emplace(added.id, std::move(sequence)).second;
  LC_CHECK(inserted, "sequence ", static_cast<uint64_t>(added.id), " added twice");
  return absl::OkStatus();
}

void Scheduler::TokenAdded(SequenceId id, int32_t token) {
  Sequence* const sequence = Find(id);
  if (sequence == nullptr) return;
  sequence->tokens.push_back(token);
  // An entry to run ahead was for this token.
  sequence->ready_ticket = 0;
  UpdateCounts(*sequence);
  MakeReady(*sequence);
}

void Scheduler::Finish(SequenceId id) {
  Sequence* const sequence = Find(id);
  if (sequence == nullptr) return;
  if (options_.fault == SchedulerFault::kDropCancel && sequence->in_flight > 0) {
    SetPaused(id, true);
    return;
  }
  ReleaseFollowers(*sequence, 0);
  Retire(*sequence);
}

void Scheduler::Distrust(SequenceId id) {
  Sequence* const sequence = Find(id);
  if (sequence == nullptr) return;
  // Also what it published and gave up since.
  for (const BlockPool::Hit& hit : Match(*sequence)) pool_.Unpublish(hit.block);
  for (const BlockId block : sequence->blocks) pool_.Unpublish(block);
  sequence->shares = false;
}

void Scheduler::SetPaused(SequenceId id, bool paused) {
  Sequence* const sequence = Find(id);
  if (sequence == nullptr || sequence->paused == paused) return;
  sequence->paused = paused;
  UpdateCounts(*sequence);
  if (paused) {
    sequence->ready_ticket = 0;
    ReleaseFollowers(*sequence, 0);
  } else {
    MakeReady(*sequence);
  }
}

void Scheduler::StepDone(StepId step, base::Instant now) {
  LC_CHECK(!in_flight_.empty() && in_flight_.front().step == step, "step ",
           static_cast<uint64_t>(step), " is not the oldest in flight");
  const bool lapsed = std::exchange(lapsed_, false);
  const bool full = in_flight() >= flight_.wanted() && !lapsed && !in_flight_.front().copies;
  const StepInFlight done = std::move(in_flight_.front());
  in_flight_.pop_front();
  prompt_rows_in_flight_ -= static_cast<int64_t>(done.prompts.rows);
  if (!done.rows.empty()) {
    const StepShape streams = StreamShape();
    flight_.OnResult({.shape = done.shape, .prompts = done.prompts, .full = full}, streams, now,
                     CostKnown() && CostSeen(done.shape.rows)
                         ? [this](const StepShape& shape) { return SlowestStage(shape); }
                         : FlightControl::Predict());
  }
  for (const RowsInFlight& rows : done.rows) {
    Sequence* const sequence = Find(rows.sequence);
    if (sequence == nullptr) continue;  // ended meanwhile
    sequence->in_flight -= 1;
    if (rows.life == sequence->life) Confirm(*sequence, rows.end);
  }
}

void Scheduler::StepTime(int stage, StepId step, double seconds) {
  const auto& [recent, shape] = recent_shapes_[static_cast<uint64_t>(step) % kRecentSteps];
  if (recent != step || shape.rows == 0) return;
  // Heartbeats repeat the latest steps: each counts once.
  StepId& last = last_timed_[static_cast<size_t>(stage)];
  if (step <= last) return;
  last = step;
  costs_[static_cast<size_t>(stage)].Add(shape, seconds);
}

std::optional<StepId> Scheduler::oldest_in_flight() const {
  if (in_flight_.empty()) return std::nullopt;
  return in_flight_.front().step;
}

int Scheduler::CachedTokens(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? 0 : std::max(0, found->second->first_cached_tokens);
}

Scheduler::Sequence* Scheduler::Find(SequenceId id) {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

Scheduler::Rank Scheduler::RankOf(const Sequence& sequence) {
  return {sequence.priority, sequence.id};
}

int Scheduler::BlocksFor(int tokens) const {
  return (tokens + options_.block_tokens - 1) / options_.block_tokens;
}

// ---- admission

void Scheduler::Admit() {
  for (;;) {
    std::optional<SequenceId> next;
    if (!resuming_.empty()) {
      next = resuming_.begin()->second;
    } else {
      next = queue_.Front();
    }
    if (!next || !TryAdmit(*Find(*next))) return;
  }
}

bool Scheduler::TryAdmit(Sequence& sequence) {
  if (!sequence.known_to_chain && known_to_chain_ >= options_.max_sequences) return false;
  // One that gave way: the tokens that its rows in flight sample are known first.
  if (sequence.in_flight > 0) return false;
  const std::vector<BlockPool::Hit> hits = Match(sequence);
  const auto hit_count = static_cast<int>(hits.size());
  const bool has_copy = HasCopy(sequence, hit_count);
  if (has_copy && !MayRestore(sequence, hit_count)) return false;
  if (!has_copy && FollowAnother(sequence, hit_count)) return true;
  int idle_hits = 0;  // blocks that stop being free when they are shared
  for (const BlockPool::Hit& hit : hits) idle_hits += pool_.owners(hit.block) == 0 ? 1 : 0;
  // One block more than the tokens need, so that it is not preempted at its first output; but
  // alone it may take the whole pool.
  const int wanted = std::min(BlocksFor(sequence.known()) + 1, pool_.total()) - hit_count;
  const int least = BlocksFor(sequence.known()) - hit_count;
  const int left = pool_.free_count() - idle_hits;
  if (running_.empty() ? left < least : left - promised_ < wanted) return false;

  if (sequence.state == Sequence::State::kQueued) queue_.Remove(sequence.id);
  resuming_.erase(RankOf(sequence));
  if (!std::exchange(sequence.known_to_chain, true)) ++known_to_chain_;
  sequence.prefix = sequence.root;
  for (const BlockPool::Hit& hit : hits) {
    pool_.Share(hit.block);
    sequence.blocks.push_back(hit.block);
    sequence.prefix = hit.prefix;
  }
  sequence.published = hit_count;
  sequence.computed = sequence.confirmed = hit_count * options_.block_tokens;
  if (has_copy) RestoreBlocks(sequence);
  if (sequence.first_cached_tokens < 0) {
    sequence.first_cached_tokens = sequence.computed;
    cached_tokens_ += sequence.computed;
  }
  running_.insert(RankOf(sequence));
  if (has_copy && sequence.pending() == 1) {  // goes on where it was
    sequence.state = Sequence::State::kDecoding;
    UpdateCounts(sequence);
    MakeReady(sequence);
    return true;
  }
  sequence.state = Sequence::State::kPrompt;
  prompts_.push_back(&sequence);
  sequence.leads_until = sequence.known();
  if (sequence.shares) leaders_.push_back(&sequence);
  UpdateCounts(sequence);
  Charge(sequence, sequence.pending());
  return true;
}

std::vector<BlockPool::Hit> Scheduler::Match(const Sequence& sequence) const {
  std::vector<BlockPool::Hit> hits;
  if (!sequence.shares) return hits;
  // The last token is computed in any case: its logits are wanted.
  const auto block_tokens = static_cast<size_t>(options_.block_tokens);
  const size_t most = (sequence.tokens.size() - 1) / block_tokens;
  PrefixId prefix = sequence.root;
  for (size_t i = 0; i < most; ++i) {
    const auto hit = pool_.Find(
        prefix, absl::MakeConstSpan(sequence.tokens).subspan(i * block_tokens, block_tokens));
    if (!hit) break;
    prefix = hit->prefix;
    hits.push_back(*hit);
  }
  return hits;
}

bool Scheduler::FollowAnother(Sequence& sequence, int hits) {
  if (!sequence.shares || !options_.throttle) return false;
  const int most = (sequence.known() - 1) / options_.block_tokens;
  Sequence* best = nullptr;
  int best_common = hits;  // blocks
  // The latest ones: prompts that begin alike tend to come together.
  const size_t looked_at = std::min(leaders_.size(), kMostLeaders);
  for (Sequence* const leader :
       absl::MakeConstSpan(leaders_).subspan(leaders_.size() - looked_at)) {
    if (!leader->shares || leader->paused || leader->root != sequence.root) {
      continue;
    }
    const auto [end, unused] = std::mismatch(leader->tokens.begin(), leader->tokens.end(),
                                             sequence.tokens.begin(), sequence.tokens.end());
    const int common =
        std::min(most, static_cast<int>(end - leader->tokens.begin()) / options_.block_tokens);
    if (common <= best_common || leader->confirmed >= common * options_.block_tokens) continue;
    best = leader;
    best_common = common;
  }
  if (best == nullptr) return false;
  if (sequence.state == Sequence::State::kQueued) queue_.Remove(sequence.id);
  resuming_.erase(RankOf(sequence));
  sequence.state = Sequence::State::kFollowing;
  sequence.leader = best->id;
  best->followers.emplace_back(sequence.id, best_common * options_.block_tokens);
  ++following_;
  return true;
}

// Those that wait for no more than `confirmed` positions; all of them when the leader computes no
// more (0).
void Scheduler::ReleaseFollowers(Sequence& leader, int confirmed) {
  std::erase_if(leader.followers, [&](const std::pair<SequenceId, int>& follower) {
    if (confirmed > 0 && follower.second > confirmed) return false;
    Sequence& sequence = *Find(follower.first);
    sequence.state = Sequence::State::kResuming;
    resuming_.insert(RankOf(sequence));
    --following_;
    return true;
  });
}

// ---- counts that follow from a sequence's state

void Scheduler::UpdateCounts(Sequence& sequence) {
  // One whose last row is in flight has nothing more to decode.
  const bool counts = !sequence.paused && sequence.state == Sequence::State::kDecoding &&
                      (sequence.last_token == 0 || sequence.computed + 1 < sequence.last_token);
  const int tokens = counts ? sequence.known() : 0;
  decoding_ += static_cast<int>(counts) - static_cast<int>(sequence.counted);
  decoding_tokens_ += tokens - sequence.counted_tokens;
  sequence.counted = counts;
  sequence.counted_tokens = tokens;
  const int promised =
      sequence.running()
          ? std::max(0, BlocksFor(sequence.known()) - static_cast<int>(sequence.blocks.size()))
          : 0;
  promised_ += promised - sequence.promised;
  sequence.promised = promised;
}

void Scheduler::MakeReady(Sequence& sequence) {
  if (sequence.state != Sequence::State::kDecoding || sequence.paused ||
      sequence.ready_ticket != 0) {
    return;
  }
  if (sequence.pending() == 0) MakeReadyAhead(sequence);
  if (sequence.pending() != 1) return;
  sequence.ready_ticket = next_ticket_++;
  ready_.emplace_back(sequence.id, sequence.ready_ticket);
}

void Scheduler::MakeReadyAhead(Sequence& sequence) {
  if (!run_ahead_ || sequence.in_flight == 0 || sequence.known() + 1 >= sequence.last_token) return;
  sequence.ready_ticket = next_ticket_++;
  // Nearly always the last one.
  auto place = ready_ahead_.end();
  while (place != ready_ahead_.begin() && std::prev(place)->step > sequence.planned) --place;
  ready_ahead_.insert(
      place, {.step = sequence.planned, .sequence = sequence.id, .ticket = sequence.ready_ticket});
}

void Scheduler::LeavePrompts(Sequence& sequence) {
  const auto found = std::find(prompts_.begin(), prompts_.end(), &sequence);
  if (found != prompts_.end()) prompts_.erase(found);
}

void Scheduler::Confirm(Sequence& sequence, int end) {
  // What a row that ran ahead was given is known by now, unless a worker did not do as asked.
  sequence.confirmed = std::max(sequence.confirmed, std::min(end, sequence.known()));
  if (sequence.shares) {
    const auto block_tokens = static_cast<size_t>(options_.block_tokens);
    const int full = options_.fault == SchedulerFault::kCacheUnwritten
                         ? std::min(sequence.known(), static_cast<int>(sequence.blocks.size()) *
                                                          options_.block_tokens)
                         : sequence.confirmed;
    while ((sequence.published + 1) * options_.block_tokens <= full) {
      const auto index = static_cast<size_t>(sequence.published);
      sequence.prefix = pool_.Publish(
          sequence.blocks[index], sequence.prefix,
          absl::MakeConstSpan(sequence.tokens).subspan(index * block_tokens, block_tokens));
      ++sequence.published;
    }
  }
  if (sequence.confirmed >= sequence.leads_until) std::erase(leaders_, &sequence);
  if (!sequence.followers.empty()) {
    // A leader whose prompt is computed will not publish anything that a follower waits for later.
    ReleaseFollowers(sequence, sequence.state == Sequence::State::kPrompt || sequence.in_flight > 0
                                   ? sequence.confirmed
                                   : 0);
  }
}

void Scheduler::Charge(Sequence& sequence, double tokens) {
  sequence.uncharged += tokens;
  if (sequence.uncharged < kChargeEvery) return;
  queue_.Charge(sequence.client, sequence.priority, std::exchange(sequence.uncharged, 0));
}

// ---- giving back

void Scheduler::Preempt(Sequence& sequence) {
  ReleaseFollowers(sequence, 0);
  LeavePrompts(sequence);
  std::erase(leaders_, &sequence);
  SaveBlocks(sequence);
  ReleaseBlocks(sequence);
  sequence.state = Sequence::State::kResuming;
  sequence.computed = sequence.confirmed = 0;
  ++sequence.life;
  sequence.begun = false;
  sequence.ready_ticket = 0;
  running_.erase(RankOf(sequence));
  resuming_.insert(RankOf(sequence));
  UpdateCounts(sequence);
  ++preemptions_;
}

void Scheduler::ReleaseBlocks(Sequence& sequence) {
  if (options_.fault == SchedulerFault::kLeakBlock && sequence.blocks.size() > 2) {
    sequence.blocks.pop_back();
  }
  // The last ones first: of a chain in the cache, the end is given out before the beginning.
  while (!sequence.blocks.empty()) {
    pool_.Release(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
  sequence.published = 0;
  sequence.prefix = sequence.root;
}

void Scheduler::Retire(Sequence& sequence) {
  if (options_.fault == SchedulerFault::kCacheUnwritten) Confirm(sequence, sequence.confirmed);
  ReleaseBlocks(sequence);
  host_blocks_.Drop(sequence.id);
  if (sequence.known_to_chain) {
    // Sequences that were admitted but never sent are not in anybody's table; an end for them
    // would name a stranger.
    if (sequence.sent) {
      pending_ends_.push_back(sequence.id);
    } else {
      --known_to_chain_;
    }
  }
  if (sequence.state == Sequence::State::kFollowing) {
    std::erase_if(Find(sequence.leader)->followers,
                  [&](const auto& follower) { return follower.first == sequence.id; });
    --following_;
  }
  LeavePrompts(sequence);
  std::erase(leaders_, &sequence);
  queue_.Remove(sequence.id);
  if (sequence.uncharged > 0) {
    queue_.Charge(sequence.client, sequence.priority, sequence.uncharged);
  }
  queue_.Done(sequence.client, sequence.priority);
  running_.erase(RankOf(sequence));
  resuming_.erase(RankOf(sequence));
  sequence.state = Sequence::State::kQueued;
  UpdateCounts(sequence);
  sequences_.erase(sequence.id);
}

}  // namespace layercake::coordinator
