// A stage whose arithmetic can be checked: each token's cache entry is a digest of what was written
// there, each row reads every entry before it, and the next token is a hash of all that. One lost,
// stale, foreign or doubled entry changes the text. Beside it the same model without blocks,
// batches and stages, which says what is right.
#pragma once

#include <cstdint>
#include <vector>

#include "simulation/sim_device.h"
#include "stage_worker/stage_limits.h"
#include "stage_worker/step_stage.h"

namespace layercake::simulation {

// Seconds that a step takes: fixed + per_row * rows + per_read * (entries that the rows read).
struct StageCost {
  double fixed = 0;  // reading the weights
  double per_row = 0;
  double per_read = 0;
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
  uint64_t& Entry(const stage_worker::StepSequence& sequence, int position);
  uint64_t ReadContext(const stage_worker::StepSequence& sequence, int position);

  SimDevice& device_;
  const stage_worker::StageLimits limits_;
  const StageCost cost_;
  const Reads reads_;
  std::vector<uint64_t> cache_;  // (kv_blocks, kv_block_tokens)
  std::vector<uint64_t> rows_;   // of the step: what came from upstream, then what goes down
};

// The tokens that follow `prompt`, `count` of them, drawn with `seed`.
std::vector<int32_t> SerialTokens(int stages, Reads reads, const std::vector<int32_t>& prompt,
                                  int count, uint64_t seed);

}  // namespace layercake::simulation
