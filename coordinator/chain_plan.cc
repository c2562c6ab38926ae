#include "coordinator/chain_plan.h"

#include <algorithm>

namespace layercake::coordinator {
namespace {

uint32_t RoundUpToPage(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + 4095) / 4096 * 4096);
}

}  // namespace

int MaxBlockCopies(int host_kv_blocks, int context_tokens, int kv_block_tokens) {
  return std::min(host_kv_blocks, (context_tokens + kv_block_tokens - 1) / kv_block_tokens);
}

v1::RingGeometry PlanRing(const model::ModelConfig& config, int max_rows, int context_tokens,
                          int kv_block_tokens, int max_in_flight, int max_block_copies) {
  const auto rows = static_cast<uint64_t>(max_rows);
  const auto context = static_cast<uint64_t>(context_tokens);
  v1::RingGeometry ring;
  // One more than can be in flight, so that the probe at connect never has to wait for itself.
  ring.set_plan_slots(static_cast<uint32_t>(max_in_flight) + 2);
  ring.set_activation_slots(static_cast<uint32_t>(max_in_flight) + 1);
  // A row: a token id (5 bytes as a varint) and at most a descriptor with sampling parameters of
  // its own (under 200). One sequence may bring its whole block table and token history along. A
  // block that is saved or restored takes at most 14 bytes.
  const uint64_t table = context / static_cast<uint64_t>(kv_block_tokens) + 1;
  ring.set_plan_slot_bytes(RoundUpToPage(65'536 + rows * 256 + 5 * (table + context) +
                                         32 * static_cast<uint64_t>(max_block_copies)));
  // Float32 rows, and a header that may name each row as non-finite.
  const uint64_t row_bytes = uint64_t{config.hidden_size} * 4;
  ring.set_activation_slot_bytes(RoundUpToPage(4'096 + rows * (row_bytes + 16)));
  return ring;
}

v1::Assignment MakeAssignment(const ChainPlan& plan, int stage, uint64_t term, uint32_t epoch) {
  const model::LayerRange& layers = plan.stages[static_cast<size_t>(stage)];
  v1::Assignment assignment;
  assignment.set_term(term);
  assignment.set_epoch(epoch);
  assignment.set_stage(stage);
  assignment.set_stage_count(static_cast<int>(plan.stages.size()));
  assignment.set_layer_first(static_cast<int>(layers.first));
  assignment.set_layer_end(static_cast<int>(layers.end));
  assignment.set_model_path(plan.model_path);
  assignment.set_model_fingerprint(plan.model_fingerprint);
  assignment.set_kv_blocks(plan.kv_blocks);
  assignment.set_host_kv_blocks(plan.host_kv_blocks);
  assignment.set_kv_block_tokens(plan.kv_block_tokens);
  assignment.set_kv_type(plan.kv_type);
  assignment.set_max_rows(plan.max_rows);
  assignment.set_max_sequences(plan.max_sequences);
  assignment.set_context_tokens(plan.context_tokens);
  assignment.set_max_in_flight(plan.max_in_flight);
  assignment.set_transport(plan.transport);
  *assignment.mutable_ring() = plan.ring;
  assignment.set_step_timeout_seconds(plan.step_timeout_seconds);
  return assignment;
}

}  // namespace layercake::coordinator
