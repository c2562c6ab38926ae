// Host memory for the KV blocks of sequences that gave way: which host block is whose, and whether
// copying blocks there and back is cheaper than computing them again. The same id names a host
// block on every stage.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "coordinator/ids.h"

namespace layercake::coordinator {

enum class HostBlockId : uint32_t {};

struct HostBlockCopy {
  BlockId block{};
  HostBlockId host_block{};
};

// What a step does before its rows: all saves, then all restores.
struct HostBlockCopies {
  std::vector<HostBlockCopy> saves;
  std::vector<HostBlockCopy> restores;

  bool empty() const { return saves.empty() && restores.empty(); }
};

// Pure. Plans are run in order, so a host block may be given to the next sequence as soon as it is
// planned that its content goes back; but not within that step, whose saves come first.
class HostBlocks {
 public:
  explicit HostBlocks(int count);

  // Blocks [first, first + size) of a sequence's table.
  struct Saved {
    int first = 0;
    std::vector<HostBlockId> blocks;
  };

  // Plans that `blocks`, which stand at `first` of the table of a sequence that has saved none, are
  // saved in this step. False, and nothing is planned, when there are not so many host blocks.
  bool Save(SequenceId sequence, int first, absl::Span<const BlockId> blocks);
  // nullptr: nothing is saved.
  const Saved* Find(SequenceId sequence) const;
  // Plans that what is saved of the table from `first` on goes to `blocks` (as many as there are
  // from there on) in this step. The sequence owns no host block afterwards.
  void Restore(SequenceId sequence, int first, absl::Span<const BlockId> blocks);
  // The sequence ended, or is computed again. Nothing saved: nothing happens.
  void Drop(SequenceId sequence);

  // What was planned since the last step.
  const HostBlockCopies& planned() const { return planned_; }
  // The step is complete.
  HostBlockCopies TakePlanned();

  int total() const { return total_; }
  // That no sequence owns.
  int free_count() const { return static_cast<int>(free_.size() + leaving_.size()); }

 private:
  const int total_;
  std::deque<HostBlockId> free_;                  // the one that was given back first is the next
  std::vector<HostBlockId> leaving_;              // free after this step
  absl::flat_hash_map<SequenceId, Saved> saved_;  // never iterated
  HostBlockCopies planned_;
};

// How long the stages take to copy blocks. Pure.
class HostCopyCost {
 public:
  explicit HostCopyCost(int stages) : seconds_per_block_(static_cast<size_t>(stages)) {}

  // As a stage measured it, for one block in one direction; 0: it has not.
  void Set(int stage, double seconds_per_block) {
    seconds_per_block_[static_cast<size_t>(stage)] = seconds_per_block;
  }
  // To save so many blocks and to restore them, on the slowest stage: the device that copies
  // computes nothing meanwhile. nullopt before every stage has measured.
  std::optional<double> Seconds(int blocks) const;

 private:
  std::vector<double> seconds_per_block_;  // of each stage
};

}  // namespace layercake::coordinator
