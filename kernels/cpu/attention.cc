#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace layercake::kernels {
namespace {

// Rows that share a tile. More save little and make fewer tasks.
constexpr int kRowsPerTask = 8;
// With fewer tasks per thread than this, spans become tasks of their own.
constexpr int kEnoughTasksPerThread = 4;
// ... as long as their states take no more floats than this (64 MB).
constexpr int64_t kMaxSplitFloats = int64_t{1} << 24;

// The state of one row and head over some positions: maximum, sum, padding to a vector, weighted
// value (padded).
constexpr int64_t kStateHeader = 8;

void ClearState(float* state, int64_t floats) {
  std::fill(state, state + floats, 0.0f);
  state[0] = -std::numeric_limits<float>::infinity();
}

// into = into, then the positions of `from`.
void FoldState(const float* from, int64_t floats, float* into) {
  if (into[0] == -std::numeric_limits<float>::infinity() && into[1] == 0) {
    std::memcpy(into, from, static_cast<size_t>(floats) * sizeof(float));
    return;
  }
  const float max = std::max(into[0], from[0]);
  const float old_factor = std::exp(into[0] - max);
  const float new_factor = std::exp(from[0] - max);
  into[0] = max;
  for (int64_t i = 1; i < floats; ++i) into[i] = into[i] * old_factor + from[i] * new_factor;
}

int SpanCount(int32_t position) { return position / kSpanPositions + 1; }

}  // namespace

struct CpuAttention::Call {
  const StepRows& rows;
  const float* q;
  const CpuKvCache& cache;
  int layer;
  int heads;
  float* out;
  int group;   // query heads per kv head
  int padded;  // head_dim to a multiple of 8
  float scale;
  bool split;  // each span has a slot of its own
  int64_t state_floats;
  size_t scratch_floats;
  float* slots;
  float* scratch;

  int Position(int row) const { return rows.kv_position[static_cast<size_t>(row)]; }
  float* Slot(int64_t slot, int head) const { return slots + (slot * heads + head) * state_floats; }
  // In a thread's scratch: keys, values, queries, states, scores.
  int64_t TileFloats() const { return int64_t{kTilePositions} * padded; }
  float* Query(float* base, int local_row, int h) const {
    return base + 2 * TileFloats() + int64_t{local_row * group + h} * padded;
  }
  float* State(float* base, int local_row, int h) const {
    return base + 2 * TileFloats() + int64_t{kRowsPerTask} * group * padded +
           (local_row * group + h) * state_floats;
  }
  float* Scores(float* base) const { return State(base, kRowsPerTask, 0); }
};

void CpuAttention::PlanTasks(Call& call) {
  const StepRows& rows = call.rows;
  tasks_.clear();
  int64_t span_slots = 0;
  for (int first = 0; first < rows.rows;) {
    Task task{first, first, 0, 0};
    while (task.row_end < rows.rows && task.row_end - first < kRowsPerTask &&
           rows.table_index[static_cast<size_t>(task.row_end)] ==
               rows.table_index[static_cast<size_t>(first)]) {
      const int spans = SpanCount(call.Position(task.row_end));
      span_slots += spans;
      task.span_end = std::max(task.span_end, spans);
      ++task.row_end;
    }
    tasks_.push_back(task);
    first = task.row_end;
  }
  const auto whole = static_cast<int64_t>(tasks_.size());
  call.split = span_slots > rows.rows && pool_.threads() > 1 &&
               whole * call.cache.spec().kv_heads < kEnoughTasksPerThread * pool_.threads() &&
               span_slots * call.heads * call.state_floats <= kMaxSplitFloats;
  first_slot_.assign(1, 0);
  for (int row = 0; row < rows.rows; ++row) {
    first_slot_.push_back(first_slot_.back() + (call.split ? SpanCount(call.Position(row)) : 1));
  }
  if (!call.split) return;
  for (int64_t i = 0; i < whole; ++i) {
    const Task task = tasks_[static_cast<size_t>(i)];
    tasks_[static_cast<size_t>(i)].span_end = 1;
    for (int span = 1; span < task.span_end; ++span) {
      tasks_.push_back({task.row_first, task.row_end, span, span + 1});
    }
  }
}

void CpuAttention::Run(const StepRows& rows, const float* q, const CpuKvCache& cache, int layer,
                       int heads, float* out) {
  const KvCacheSpec& spec = cache.spec();
  Call call{rows, q, cache, layer, heads, out, 0, 0, 0, false, 0, 0, nullptr, nullptr};
  call.group = heads / spec.kv_heads;
  call.padded = (spec.head_dim + 7) / 8 * 8;
  call.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  call.state_floats = kStateHeader + call.padded;
  PlanTasks(call);
  call.scratch_floats = static_cast<size_t>(
      2 * call.TileFloats() +
      int64_t{kRowsPerTask} * call.group * (call.padded + call.state_floats) + kTilePositions);
  call.slots = slots_.Require(static_cast<size_t>(first_slot_.back() * heads * call.state_floats));
  call.scratch = scratch_.Require(call.scratch_floats * static_cast<size_t>(pool_.threads()));

  const int64_t chunks = static_cast<int64_t>(tasks_.size()) * spec.kv_heads;
  pool_.Run(chunks, [&](int64_t chunk, int thread) {
    RunTask(call, tasks_[static_cast<size_t>(chunk / spec.kv_heads)],
            static_cast<int>(chunk % spec.kv_heads), thread);
  });
  for (int row = 0; row < rows.rows; ++row) Finish(call, row);
}

void CpuAttention::RunTask(const Call& call, const Task& task, int kv_head, int thread) {
  const auto head_dim = static_cast<size_t>(call.cache.spec().head_dim);
  float* scratch = call.scratch + call.scratch_floats * static_cast<size_t>(thread);
  for (int row = task.row_first; row < task.row_end; ++row) {
    for (int h = 0; h < call.group; ++h) {
      const int head = kv_head * call.group + h;
      float* query = call.Query(scratch, row - task.row_first, h);
      const size_t from =
          (static_cast<size_t>(row) * static_cast<size_t>(call.heads) + static_cast<size_t>(head)) *
          head_dim;
      std::memcpy(query, call.q + from, head_dim * sizeof(float));
      std::fill(query + head_dim, query + call.padded, 0.0f);
    }
  }
  for (int span = task.span_first; span < task.span_end; ++span) {
    for (int i = 0; i < (task.row_end - task.row_first) * call.group; ++i) {
      ClearState(call.State(scratch, 0, i), call.state_floats);
    }
    RunSpan(call, task, span, kv_head, scratch);
    for (int row = task.row_first; row < task.row_end; ++row) {
      if (call.Position(row) < span * kSpanPositions) continue;
      const int64_t slot = first_slot_[static_cast<size_t>(row)] + (call.split ? span : 0);
      for (int h = 0; h < call.group; ++h) {
        float* into = call.Slot(slot, kv_head * call.group + h);
        if (call.split || span == 0) ClearState(into, call.state_floats);
        FoldState(call.State(scratch, row - task.row_first, h), call.state_floats, into);
      }
    }
  }
}

void CpuAttention::RunSpan(const Call& call, const Task& task, int span, int kv_head,
                           float* scratch) {
  const KvCacheSpec& spec = call.cache.spec();
  const absl::Span<const int32_t> table = call.rows.block_tables[static_cast<size_t>(
      call.rows.table_index[static_cast<size_t>(task.row_first)])];
  float* keys = scratch;
  float* values = scratch + call.TileFloats();
  float* scores = call.Scores(scratch);
  int end = 0;
  for (int row = task.row_first; row < task.row_end; ++row) {
    end = std::max(end, call.Position(row) + 1);
  }
  end = std::min(end, (span + 1) * kSpanPositions);
  for (int tile = span * kSpanPositions; tile < end;) {
    const int in_block = tile % spec.block_tokens;
    const int count = std::min(
        {kTilePositions - tile % kTilePositions, spec.block_tokens - in_block, end - tile});
    const int32_t block = table[static_cast<size_t>(tile / spec.block_tokens)];
    LoadTile(spec.type, call.cache.Keys(call.layer, block, kv_head, in_block), count, spec.head_dim,
             call.padded, keys);
    LoadTile(spec.type, call.cache.Values(call.layer, block, kv_head, in_block), count,
             spec.head_dim, call.padded, values);
    for (int row = task.row_first; row < task.row_end; ++row) {
      const int positions = std::min(count, call.Position(row) + 1 - tile);
      if (positions <= 0) continue;
      for (int h = 0; h < call.group; ++h) {
        const float max = kernels_.tile_scores(call.Query(scratch, row - task.row_first, h), keys,
                                               positions, call.padded, call.scale, scores);
        AddTile(values, positions, call.padded, max, scores,
                call.State(scratch, row - task.row_first, h));
      }
    }
    tile += count;
  }
}

void CpuAttention::AddTile(const float* values, int positions, int padded, float tile_max,
                           float* scores, float* state) {
  float factor = 1;
  if (tile_max > state[0]) {
    factor = std::exp(state[0] - tile_max);
    state[0] = tile_max;
  }
  state[1] = state[1] * factor + kernels_.tile_exp(scores, positions, state[0]);
  kernels_.tile_accumulate(scores, values, positions, padded, factor, state + kStateHeader);
}

void CpuAttention::LoadTile(KvType type, const std::byte* from, int positions, int head_dim,
                            int padded, float* tile) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  const auto* words = reinterpret_cast<const uint16_t*>(from);
  switch (type) {
    case KvType::kF16:
      return kernels_.load_half_tile(words, positions, head_dim, padded, tile);
    case KvType::kBF16:
      return kernels_.load_bf16_tile(words, positions, head_dim, padded, tile);
    case KvType::kQ8_0:
      return kernels_.load_q8_tile(bytes, positions, head_dim, padded, tile);
    case KvType::kF32:
      break;
  }
  const size_t row_bytes = static_cast<size_t>(head_dim) * sizeof(float);
  for (int t = 0; t < positions; ++t) {
    std::memcpy(tile + t * padded, from + static_cast<size_t>(t) * row_bytes, row_bytes);
    std::fill(tile + t * padded + head_dim, tile + (t + 1) * padded, 0.0f);
  }
}

void CpuAttention::Finish(const Call& call, int row) {
  const int head_dim = call.cache.spec().head_dim;
  const int64_t first = first_slot_[static_cast<size_t>(row)];
  const int64_t end = first_slot_[static_cast<size_t>(row) + 1];
  for (int head = 0; head < call.heads; ++head) {
    float* state = call.Slot(first, head);
    for (int64_t slot = first + 1; slot < end; ++slot) {
      FoldState(call.Slot(slot, head), call.state_floats, state);
    }
    float* out = call.out + (static_cast<int64_t>(row) * call.heads + head) * head_dim;
    for (int c = 0; c < head_dim; ++c) out[c] = state[kStateHeader + c] / state[1];
  }
}

}  // namespace layercake::kernels
