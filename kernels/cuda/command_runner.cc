#include "kernels/cuda/command_runner.h"

#include <array>
#include <bit>
#include <cmath>

#include "base/status_macros.h"
#include "kernels/cuda/step_kernels.h"

namespace layercake::kernels::cuda {
namespace {

const float* Floats(const void* address) { return static_cast<const float*>(address); }
// Results are recorded as const like everything else.
float* MutableFloats(const void* address) {
  return static_cast<float*>(const_cast<void*>(address));
}

}  // namespace

absl::Status CommandRunner::Run(const CommandList& list) {
  for (const Command& command : list.commands) LC_RETURN_IF_ERROR(RunOne(list, command));
  return absl::OkStatus();
}

absl::Status CommandRunner::RunOne(const CommandList& list, const Command& c) {
  const auto eps = std::bit_cast<float>(c.eps_bits);
  const int64_t n = c.n[0];
  switch (c.kind) {
    case CommandKind::kEmbed:  // table, tokens, x
      return EmbedRows(context_, *static_cast<const CudaMatrix*>(c.p[0]),
                       static_cast<const int32_t*>(c.p[1]), c.rows, MutableFloats(c.p[2]));
    case CommandKind::kRopeTable:  // inv_freq; pairs, magnitude in eps
      return CudaStatus(
          LaunchRopeTable(context_, list.views[static_cast<size_t>(c.view)], Floats(c.p[0]),
                          static_cast<int>(n), eps, scratch_.rope_table.as<float2>()),
          "make the table of rope");
    case CommandKind::kNormOperand:  // x, weight; k
      return NormOperand(context_, Floats(c.p[0]), Floats(c.p[1]), eps, c.rows, n, c.forms,
                         scratch_.NormedFor(c.rows));
    case CommandKind::kPlainOperand:  // x; k
      return PlainOperand(context_, Floats(c.p[0]), c.rows, n, c.forms,
                          scratch_.OperandFor(c.rows));
    case CommandKind::kSwigluOperand:  // gate, up; k
      return SwigluOperand(context_, Floats(c.p[0]), Floats(c.p[1]), n, c.rows, n, c.forms,
                           scratch_.OperandFor(c.rows));
    case CommandKind::kMultiply:
      return Multiply(list, c);
    case CommandKind::kRopeCache:
      return RopeCache(list, c);
    case CommandKind::kDecodeAttention:
    case CommandKind::kTiledAttention:
      return Attention(list, c);
    case CommandKind::kSwiglu:  // gate, up; count
      return CudaStatus(LaunchSwiglu(context_, MutableFloats(c.p[0]), Floats(c.p[1]), n),
                        "multiply gate and up");
    case CommandKind::kFindNonFinite:  // x; width
      return CudaStatus(LaunchFindNonFinite(context_, Floats(c.p[0]), c.rows, n, scratch_.flags()),
                        "look for NaN and infinity");
    case CommandKind::kGatherRows:  // x, selected; width
      return CudaStatus(
          LaunchGatherRows(context_, Floats(c.p[0]), static_cast<const int32_t*>(c.p[1]), c.rows, n,
                           scratch_.selected.as<float>()),
          "gather the rows whose logits are wanted");
    case CommandKind::kSample:
      return Sample(c);
  }
  return absl::InternalError("a command of no kind");
}

absl::Status CommandRunner::Multiply(const CommandList& list, const Command& c) {
  const Operand& operand =
      (c.flags & kOfNormed) != 0 ? scratch_.NormedFor(c.rows) : scratch_.OperandFor(c.rows);
  if ((c.flags & kGated) != 0) {
    const RecordedProduct& gate = list.products[static_cast<size_t>(c.first_product)];
    const RecordedProduct& up = list.products[static_cast<size_t>(c.first_product) + 1];
    return scratch_.multiplier->MultiplyGated(
        {.gate = gate.w,
         .up = up.w,
         .gate_bias = gate.bias,
         .up_bias = up.bias,
         .largest_gate_bias = static_cast<float>(gate.largest_bias),
         .largest_up_bias = static_cast<float>(up.largest_bias)},
        operand, c.rows, scratch_.OperandFor(c.rows));
  }
  std::array<Product, kMaxProducts> products;
  const auto count = static_cast<size_t>(c.product_count);
  for (size_t i = 0; i < count; ++i) {
    const RecordedProduct& from = list.products[static_cast<size_t>(c.first_product) + i];
    products[i] = {.w = from.w,
                   .bias = from.bias,
                   .out = from.out,
                   .out_stride = from.out_stride,
                   .accumulate = from.accumulate != 0};
  }
  return scratch_.multiplier->Multiply(absl::MakeConstSpan(products.data(), count), operand,
                                       c.rows);
}

// q, cache, q_norm, k_norm, the biases of q, k and v; layer, heads, pairs, adjacent.
absl::Status CommandRunner::RopeCache(const CommandList& list, const Command& c) {
  const KvView cache = static_cast<const CudaKvCache*>(c.p[1])->View(static_cast<int>(c.n[0]));
  return CudaStatus(LaunchRopeCache(context_, list.views[static_cast<size_t>(c.view)], cache,
                                    {.q = MutableFloats(c.p[0]),
                                     .k = scratch_.keys.as<float>(),
                                     .v = scratch_.values.as<float>(),
                                     .q_bias = Floats(c.p[4]),
                                     .k_bias = Floats(c.p[5]),
                                     .v_bias = Floats(c.p[6]),
                                     .heads = static_cast<int>(c.n[1]),
                                     .q_norm = Floats(c.p[2]),
                                     .k_norm = Floats(c.p[3]),
                                     .norm_eps = std::bit_cast<float>(c.eps_bits),
                                     .table = scratch_.rope_table.as<float2>(),
                                     .pairs = static_cast<int>(c.n[2]),
                                     .adjacent = c.n[3] != 0}),
                    "turn queries and keys and store keys and values");
}

// q, cache, out; layer, heads.
absl::Status CommandRunner::Attention(const CommandList& list, const Command& c) {
  const StepView& view = list.views[static_cast<size_t>(c.view)];
  const KvView cache = static_cast<const CudaKvCache*>(c.p[1])->View(static_cast<int>(c.n[0]));
  const AttentionArguments arguments = {
      .q = Floats(c.p[0]),
      .out = MutableFloats(c.p[2]),
      .heads = static_cast<int>(c.n[1]),
      .scale = 1.0f / std::sqrt(static_cast<float>(cache.head_dim)),
      .parts = scratch_.parts.as<float>(),
      .parts_bytes = scratch_.parts.bytes(),
      .counters = scratch_.counters.as<int32_t>()};
  return c.kind == CommandKind::kDecodeAttention
             ? CudaStatus(LaunchDecodeAttention(context_, view, cache, arguments),
                          "attend, split over keys")
             : CudaStatus(LaunchTiledAttention(context_, view, cache, arguments),
                          "attend, tiled over queries");
}

// logits, jobs; vocabulary; flags: greedy.
absl::Status CommandRunner::Sample(const Command& c) {
  return CudaStatus(
      LaunchSample(context_, MutableFloats(c.p[0]), c.n[0], static_cast<const SampleJob*>(c.p[1]),
                   c.rows, c.flags != 0, scratch_.outcomes()),
      "sample");
}

}  // namespace layercake::kernels::cuda
