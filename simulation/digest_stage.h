// A stage whose arithmetic can be checked: each token's cache entry is a digest of what was written
// there, each row reads every entry before it, and the next token is a hash of all that. One lost,
// stale, foreign or doubled entry changes the text. Beside it the same model without blocks,
// batches and stages, which says what is right.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simulation/sim_device.h"
#include "stage_worker/stage_limits.h"
#include "stage_worker/step_stage.h"

namespace layercake::simulation {

// What a step has to do.
struct StepWork {
  double rows = 0;
  double samples = 0;  // rows whose logits are wanted
  double reads = 0;    // cache entries that each row reads, over all rows
  double entries = 0;  // the same, but an entry that several rows of a sequence read counts once
};

// A step that was measured.
struct MeasuredStep {
  double rows = 0;
  double seconds = 0;
};

// Seconds that a step takes: what it reads, one thing after the other, and no less than what it
// computes meanwhile.
struct StageCost {
  double fixed = 0;  // reading the weights
  double per_row = 0;
  // Beside those, by rows and in their order: a line between two of them, beyond the last one in
  // proportion. For kernels that take steps.
  std::vector<MeasuredStep> measured = {};
  double per_read = 0;
  double per_entry = 0;
  // Computing.
  double compute_row = 0;
  double compute_sample = 0;
  double compute_read = 0;
  double per_copy = 0;  // of a block to host memory, or back; 0: nobody has measured it
  // The first step of each size, by powers of two, takes so much longer: kernels are loaded.
  double first_of_size = 0;

  double SecondsOf(const StepWork& work) const {
    const double read = fixed + per_row * work.rows + MeasuredSeconds(work.rows) +
                        per_read * work.reads + per_entry * work.entries;
    return std::max(
        read, compute_row * work.rows + compute_sample * work.samples + compute_read * work.reads);
  }
  double MeasuredSeconds(double rows) const;
};

// How the digests are read. kEvery costs real time in the square of the length; kChained reads one
// entry per row, which stands for all that came before it in its own sequence.
enum class Reads { kEvery, kChained };

inline constexpr int kSimVocabulary = 256;  // ids that the model produces
inline constexpr uint32_t kSimHidden = 2;   // float32 values of a row: one 64-bit digest

class DigestStage final : public stage_worker::StepStage {
 public:
  // `device` outlives the stage.
  DigestStage(SimDevice& device, const stage_worker::StageLimits& limits, const StageCost& cost,
              Reads reads);

  absl::Status ReadActivation(kernels::Buffer rows, size_t at) override;
  absl::Status Run(const stage_worker::StepPlan& plan, std::vector<int32_t> marks,
                   const transport::SendSlot& slot, stage_worker::StepOutput& output) override;
  uint32_t hidden() const override { return kSimHidden; }

 private:
  void CopyBlocks(const stage_worker::BlockCopies& copies);
  void Charge(const StepWork& work);
  uint64_t& Entry(const stage_worker::StepSequence& sequence, int position);
  uint64_t ReadContext(const stage_worker::StepSequence& sequence, int position);

  SimDevice& device_;
  const stage_worker::StageLimits limits_;
  const StageCost cost_;
  const Reads reads_;
  std::vector<uint64_t> cache_;  // (kv_blocks, kv_block_tokens)
  std::vector<uint64_t> saved_;  // (host_kv_blocks, kv_block_tokens)
  std::vector<uint64_t> rows_;   // of the step: what came from upstream, then what goes down
  uint64_t sizes_seen_ = 0;      // a bit for each power of two
};

// The tokens that follow `prompt`, `count` of them, drawn with `seed`.
std::vector<int32_t> SerialTokens(int stages, Reads reads, const std::vector<int32_t>& prompt,
                                  int count, uint64_t seed);

}  // namespace layercake::simulation
