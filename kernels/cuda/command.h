// The operations of a step as a list, put off until the step's results are asked for, so that a
// list that was seen before can be replayed as a recorded graph.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/step_view.h"

namespace layercake::kernels::cuda {

enum class CommandKind : uint32_t {
  kEmbed,
  kRopeTable,
  kNormOperand,
  kPlainOperand,
  kSwigluOperand,
  kMultiply,
  kRopeCache,
  kDecodeAttention,
  kTiledAttention,
  kSwiglu,
  kFindNonFinite,
  kGatherRows,
  kSample,
};

// One launch. What the fields mean for each kind stands beside its recording in cuda_ops.cc and its
// execution in command_runner.cc. No padding: lists are compared by their bytes.
struct Command {
  CommandKind kind = CommandKind::kEmbed;
  int32_t rows = 0;
  uint32_t forms = 0;
  int32_t view = 0;  // index into CommandList::views
  int32_t first_product = 0;
  int32_t product_count = 0;
  uint32_t eps_bits = 0;  // a float
  uint32_t flags = 0;
  const void* p[7] = {};
  int64_t n[4] = {};
};
static_assert(sizeof(Command) == 120);

// Of products: their operand is a normed one; they are gate and up, and become the next operand.
inline constexpr uint32_t kOfNormed = 1;
inline constexpr uint32_t kGated = 2;

struct RecordedProduct {
  const CudaMatrix* w = nullptr;
  const float* bias = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t accumulate = 0;
  double largest_bias = 0;
};
static_assert(sizeof(RecordedProduct) == 48);

struct CommandList {
  std::vector<Command> commands;
  std::vector<RecordedProduct> products;
  std::vector<StepView> views;

  bool empty() const { return commands.empty(); }
  void clear() {
    commands.clear();
    products.clear();
    views.clear();
  }
  bool operator==(const CommandList& other) const;
  // Of everything that operator== compares.
  uint64_t Hash() const;
};

}  // namespace layercake::kernels::cuda
