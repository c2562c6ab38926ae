#include "coordinator/host_blocks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace layercake::coordinator {

HostBlocks::HostBlocks(int count) : total_(count) {
  for (int i = 0; i < count; ++i) free_.push_back(static_cast<HostBlockId>(i));
}

bool HostBlocks::Save(SequenceId sequence, int first, absl::Span<const BlockId> blocks) {
  if (blocks.size() > free_.size()) return false;
  Saved saved{.first = first, .blocks = {}};
  for (const BlockId block : blocks) {
    saved.blocks.push_back(free_.front());
    planned_.saves.push_back({.block = block, .host_block = free_.front()});
    free_.pop_front();
  }
  const bool inserted = saved_.emplace(sequence, std::move(saved)).second;
  LC_CHECK(inserted, "sequence ", static_cast<uint64_t>(sequence), " is saved twice");
  return true;
}

const HostBlocks::Saved* HostBlocks::Find(SequenceId sequence) const {
  const auto found = saved_.find(sequence);
  return found == saved_.end() ? nullptr : &found->second;
}

void HostBlocks::Restore(SequenceId sequence, int first, absl::Span<const BlockId> blocks) {
  const auto found = saved_.find(sequence);
  LC_CHECK(found != saved_.end(), "sequence ", static_cast<uint64_t>(sequence), " is not saved");
  const Saved& saved = found->second;
  const auto skipped = static_cast<size_t>(first - saved.first);
  LC_CHECK(first >= saved.first && skipped + blocks.size() == saved.blocks.size(), "blocks from ",
           first, " on, ", blocks.size(), " of them; saved from ", saved.first, " on, ",
           saved.blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    planned_.restores.push_back({.block = blocks[i], .host_block = saved.blocks[skipped + i]});
  }
  leaving_.insert(leaving_.end(), saved.blocks.begin(), saved.blocks.end());
  saved_.erase(found);
}

void HostBlocks::Drop(SequenceId sequence) {
  const auto found = saved_.find(sequence);
  if (found == saved_.end()) return;
  free_.insert(free_.end(), found->second.blocks.begin(), found->second.blocks.end());
  saved_.erase(found);
}

HostBlockCopies HostBlocks::TakePlanned() {
  free_.insert(free_.end(), leaving_.begin(), leaving_.end());
  leaving_.clear();
  return std::exchange(planned_, {});
}

std::optional<double> HostCopyCost::Seconds(int blocks) const {
  double slowest = 0;
  for (const double seconds : seconds_per_block_) {
    if (!(seconds > 0)) return std::nullopt;
    slowest = std::max(slowest, seconds);
  }
  return 2 * slowest * blocks;
}

}  // namespace layercake::coordinator
