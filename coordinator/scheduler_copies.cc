// What the scheduler copies to host memory: blocks of sequences that give way, where that costs
// less than computing them again.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "coordinator/scheduler.h"
#include "coordinator/scheduler_sequence.h"

namespace layercake::coordinator {

// Without what a step costs in any case: prompt rows go beside decodes, which read the weights too.
double Scheduler::SecondsToCompute(int first, int end) const {
  const StepShape shape = ShapeOf(first, end - first, /*samples=*/false);
  double slowest = 0;
  for (const StepCostModel& cost : costs_) {
    slowest = std::max(slowest, cost.Predict(shape) - cost.Predict({}));
  }
  return slowest;
}

void Scheduler::SaveBlocks(Sequence& sequence) {
  if (host_blocks_.total() == 0 || !CostKnown()) return;
  // What others own too stays where it is, and is found by its content.
  int first = 0;
  while (first < sequence.published &&
         pool_.owners(sequence.blocks[static_cast<size_t>(first)]) > 1) {
    ++first;
  }
  const int count = BlocksFor(sequence.computed) - first;
  const auto planned = static_cast<int>(host_blocks_.planned().saves.size());
  if (count <= 0 || planned + count > options_.max_block_copies) return;
  const std::optional<double> seconds = copy_cost_.Seconds(count);
  if (!seconds || *seconds >= SecondsToCompute(first * options_.block_tokens, sequence.computed)) {
    return;
  }
  const auto blocks = absl::MakeConstSpan(sequence.blocks);
  if (!host_blocks_.Save(sequence.id, first,
                         blocks.subspan(static_cast<size_t>(first), static_cast<size_t>(count)))) {
    return;
  }
  sequence.saved_tokens = sequence.computed;
  ++copied_preemptions_;
}

bool Scheduler::HasCopy(Sequence& sequence, int hits) {
  const HostBlocks::Saved* const saved = host_blocks_.Find(sequence.id);
  if (saved == nullptr) return false;
  // Blocks before it were others', and are gone; or all of it was computed by others meanwhile.
  if (saved->first > hits || hits * options_.block_tokens >= sequence.saved_tokens) {
    host_blocks_.Drop(sequence.id);
    return false;
  }
  return true;
}

bool Scheduler::MayRestore(const Sequence& sequence, int hits) const {
  const auto planned = static_cast<int>(host_blocks_.planned().restores.size());
  return planned + BlocksFor(sequence.saved_tokens) - hits <= options_.max_block_copies;
}

void Scheduler::RestoreBlocks(Sequence& sequence) {
  const size_t first = sequence.blocks.size();
  while (static_cast<int>(sequence.blocks.size()) < BlocksFor(sequence.saved_tokens)) {
    sequence.blocks.push_back(AllocateBlock(sequence));
  }
  host_blocks_.Restore(sequence.id, static_cast<int>(first),
                       absl::MakeConstSpan(sequence.blocks).subspan(first));
  sequence.computed = sequence.confirmed = sequence.saved_tokens;
  // Its blocks hold nothing before the restores of this step: it gives way in a later one only.
  sequence.planned = static_cast<StepId>(next_step_);
}

HostBlockCopies Scheduler::TakeCopies() {
  HostBlockCopies copies = host_blocks_.TakePlanned();
  if (options_.fault == SchedulerFault::kWrongHostBlock && copies.restores.size() > 1) {
    std::swap(copies.restores.front().host_block, copies.restores.back().host_block);
  }
  return copies;
}

}  // namespace layercake::coordinator
