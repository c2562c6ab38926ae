// Launches what a CommandList says.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/command.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/sampling.h"

namespace layercake::kernels::cuda {

// Memory that steps work in, of sizes that Prepare knows.
struct StepScratch {
  std::unique_ptr<Multiplier> multiplier;
  // Rows up to `few_rows` go through `few`, more through `many` (null when there are never more):
  // the forms of few rows are the larger ones.
  std::unique_ptr<Operand> few;
  std::unique_ptr<Operand> many;
  // Few and more rows behind a norm, where gated products are made from one operand into another,
  // else null.
  std::unique_ptr<Operand> few_normed;
  std::unique_ptr<Operand> normed;
  int few_rows = 0;
  DeviceArray keys;        // (max_rows, kv_width)
  DeviceArray values;      // (max_rows, kv_width)
  DeviceArray up;          // (max_rows, ffn)
  DeviceArray rope_table;  // (max_rows, kMaxHeadDim / 2, 2)
  DeviceArray selected;    // (logit_rows, hidden)
  DeviceArray parts;       // of the decode attention
  DeviceArray counters;
  // Flags (max_rows), then outcomes (logit_rows). Kernels write them to the host's memory: a copy
  // after the last kernel would take longer than all of sampling.
  PinnedArray results;
  size_t outcomes_offset = 0;

  uint8_t* flags() const { return results.as<uint8_t>(); }
  SampleOutcome* outcomes() const {
    return reinterpret_cast<SampleOutcome*>(results.as<std::byte>() + outcomes_offset);
  }

  Operand& OperandFor(int rows) const { return rows <= few_rows ? *few : *many; }
  Operand& NormedFor(int rows) const {
    const std::unique_ptr<Operand>& own = rows <= few_rows ? few_normed : normed;
    return own != nullptr ? *own : OperandFor(rows);
  }
};

class CommandRunner {
 public:
  // Both outlive the runner.
  CommandRunner(const Context& context, StepScratch& scratch)
      : context_(context), scratch_(scratch) {}

  absl::Status Run(const CommandList& list);

 private:
  absl::Status RunOne(const CommandList& list, const Command& command);
  absl::Status Multiply(const CommandList& list, const Command& command);
  absl::Status RopeCache(const CommandList& list, const Command& command);
  absl::Status Attention(const CommandList& list, const Command& command);
  absl::Status Sample(const Command& command);

  const Context& context_;
  StepScratch& scratch_;
};

}  // namespace layercake::kernels::cuda
