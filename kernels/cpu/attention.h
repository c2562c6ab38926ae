// Paged attention on the host.
//
// A row's positions are cut into spans of kSpanPositions, a span into tiles that end where a block
// does. Inside a span the softmax runs on line (Milakov and Gimelshein 2018): a running maximum,
// sum and weighted value that are rescaled when the maximum grows. Spans start afresh and are
// folded together in order. All of it depends on the row's own position only, so rows may share
// tiles and spans may run in any thread without changing a bit.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/aligned_floats.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace layercake::kernels {

inline constexpr int kSpanPositions = 512;

// One per CpuOps, used in submitted work; keeps its scratch memory between calls.
class CpuAttention {
 public:
  CpuAttention(const CpuKernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  // q, out: (rows, heads * head_dim). As Ops::Attention.
  void Run(const StepRows& rows, const float* q, const CpuKvCache& cache, int layer, int heads,
           float* out);

 private:
  // Consecutive rows of one sequence, for which a tile is loaded once, and a range of spans.
  struct Task {
    int row_first = 0;
    int row_end = 0;
    int span_first = 0;
    int span_end = 0;
  };
  struct Call;  // what one Run is about

  void PlanTasks(Call& call);
  void RunTask(const Call& call, const Task& task, int kv_head, int thread);
  void RunSpan(const Call& call, const Task& task, int span, int kv_head, float* scratch);
  void AddTile(const float* values, int positions, int padded, float tile_max, float* scores,
               float* state);
  void LoadTile(KvType type, const std::byte* from, int positions, int head_dim, int padded,
                float* tile);
  void Finish(const Call& call, int row);

  const CpuKernels& kernels_;
  ThreadPool& pool_;
  std::vector<Task> tasks_;
  std::vector<int64_t> first_slot_;  // (rows + 1): a row's first slot in slots_
  AlignedFloats slots_;              // (slots of all rows, heads, state)
  AlignedFloats scratch_;            // (threads, scratch of one)
};

}  // namespace layercake::kernels
