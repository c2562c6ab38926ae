// Finding the best tokens of a row without sorting it: a histogram, and a sort of what lies before
// its cut. Every function is called by all blocks of the team alike, and all get the same results.
#pragma once

#include "kernels/cuda/sampling_row.cuh"

namespace layercake::kernels::cuda {

constexpr int kMaxRanked = 256;  // keys sorted by counting those ahead of each

// Inclusive sums over the threads of the block. `all`: of all threads. The barriers as ReduceBlock.
__device__ __forceinline__ Pair ScanBlock(Pair own, SampleMemory& memory, Pair* all) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Pair other = {__shfl_up_sync(0xffffffffu, own.first, step),
                        __shfl_up_sync(0xffffffffu, own.second, step)};
    if (lane >= step) own = SumOfBoth()(own, other);
  }
  if (lane == 31) memory.warp_pairs[warp] = own;
  __syncthreads();
  *all = {0, 0};
  Pair before = {0, 0};
  for (int w = 0; w < kSampleWarps; ++w) {
    if (w == warp) before = *all;
    *all = SumOfBoth()(*all, memory.warp_pairs[w]);
  }
  return SumOfBoth()(own, before);
}

// How far a selection goes: the first tokens whose number, or weight, reaches `value`.
struct Target {
  bool by_weight;
  Weight value;
};

__device__ __forceinline__ Weight WeightWanted(float top_p, Weight weight) {
  const double share =
      ceil(static_cast<double>(fmaxf(top_p, 1e-30f)) * static_cast<double>(weight));
  return max(Weight{1}, static_cast<Weight>(share));
}

__device__ __forceinline__ void ClearHistogram(SampleMemory& memory) {
  memory.count[threadIdx.x] = 0;
  memory.weight_low[threadIdx.x] = 0;
  memory.weight_high[threadIdx.x] = 0;
  __syncthreads();
}

// The bin where the target is reached, or the last one that holds tokens. `own`: count and weight
// of the bin that has this thread's number.
__device__ __forceinline__ Cut CutAt(Pair own, const Target& target, SampleMemory& memory) {
  Pair all = {0, 0};
  const Pair through = ScanBlock(own, memory, &all);
  const Weight here = target.by_weight ? through.second : through.first;
  const Weight before = here - (target.by_weight ? own.second : own.first);
  const Weight most = target.by_weight ? all.second : all.first;
  const bool reached = before < target.value && here >= target.value;
  const bool last = most < target.value && own.first > 0 && through.first == all.first;
  if (reached || last) {
    memory.cut = {static_cast<int>(threadIdx.x), reached, through.first - own.first,
                  through.second - own.second, through.first};
  }
  __syncthreads();
  return memory.cut;
}

// Adds the blocks' histograms up and finds the bin where the target is reached, or the last one
// that holds tokens.
template <int kBlocks>
__device__ __forceinline__ Cut CutHistogram(const Target& target, SampleMemory& memory) {
  using Team = BlockTeam<kBlocks>;
  constexpr int kBinsOfBlock = kBins / kBlocks;
  const int tid = static_cast<int>(threadIdx.x);
  Team::Sync();
  // A thread reads one bin of one block; the lanes that hold a bin's parts add them up, and each
  // tells one block.
  const int bin = Team::Rank() * kBinsOfBlock + tid / kBlocks;
  const SampleMemory& peer = *Team::At(&memory, tid % kBlocks);
  uint32_t count = peer.count[bin];
  Weight weight = (static_cast<Weight>(peer.weight_high[bin]) << 32) + peer.weight_low[bin];
#pragma unroll
  for (int mask = kBlocks / 2; mask > 0; mask /= 2) {
    count += __shfl_xor_sync(0xffffffffu, count, mask);
    weight += __shfl_xor_sync(0xffffffffu, weight, mask);
  }
  SampleMemory& told = *Team::At(&memory, tid % kBlocks);
  told.merged.count[bin] = count;
  told.merged.weight[bin] = weight;
  Team::Sync();
  return CutAt({memory.merged.count[tid], memory.merged.weight[tid]}, target, memory);
}

// The cut among the tokens for which bin_of gives a bin (not -1).
template <int kBlocks, typename BinOf>
__device__ __forceinline__ Cut FindCut(const RowView& row, BinOf bin_of, const Target& target,
                                       SampleMemory& memory) {
  ClearHistogram(memory);
  uint32_t last_bin = 0;  // most tokens of a row are far behind: not one by one
  ForEachToken<kBlocks>(row, [&](float logit, int32_t t) {
    if (logit == -INFINITY) return;
    const int bin = bin_of(logit, t);
    if (bin < 0) return;
    if (bin == kBins - 1) {
      ++last_bin;
    } else {
      atomicAdd(&memory.count[bin], 1u);
    }
    if (!target.by_weight) return;
    const Weight weight = row.WeightOf(logit);
    if (weight == 0) return;
    const auto low = static_cast<uint32_t>(weight);
    const uint32_t old = atomicAdd(&memory.weight_low[bin], low);
    const uint32_t high = static_cast<uint32_t>(weight >> 32) + (old + low < old ? 1u : 0u);
    if (high != 0) atomicAdd(&memory.weight_high[bin], high);
  });
  if (last_bin != 0) atomicAdd(&memory.count[kBins - 1], last_bin);
  return CutHistogram<kBlocks>(target, memory);
}

// Logits that hold the best tokens of the row, and few others.
struct Range {
  float max;
  float scale;
  float end;  // of (max - logit) * scale; infinity: everything

  __device__ __forceinline__ bool Has(float logit) const {
    return logit != -INFINITY && ((max - logit) * scale < end || end == INFINITY);
  }
};

// The same for a histogram of small counts and no weights: all blocks tell all others everything.
template <int kBlocks>
__device__ __forceinline__ Cut CutCounts(const Target& target, SampleMemory& memory) {
  using Team = BlockTeam<kBlocks>;
  const int tid = static_cast<int>(threadIdx.x);
  __syncthreads();
  const auto count = static_cast<uint16_t>(memory.count[tid]);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    *Team::At(&memory.counts[Team::Rank()][tid], block) = count;
  }
  Team::Sync();
  Weight sum = 0;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) sum += memory.counts[block][tid];
  return CutAt({sum, 0}, target, memory);
}

// A range with the row's best `wanted` tokens (all, when it has fewer). Instead of the tokens it
// counts the largest of each thread, `of_thread`: as many as are wanted lie in the range, so at
// least as many tokens do, and few more, since the best tokens of a row seldom meet in one thread.
template <int kBlocks>
__device__ __forceinline__ Range RangeOfBest(const RowView& row, float of_thread, int wanted,
                                             SampleMemory& memory) {
  const float width = row.max - row.lowest_of_threads;
  const float scale = width > 0 ? fminf(static_cast<float>(kBins - 1) / width, 1e30f) : 0;
  ClearHistogram(memory);
  if (of_thread != -INFINITY) {
    const float place = (row.max - of_thread) * scale;
    // The comparison also catches what is no number.
    const int bin = place < static_cast<float>(kBins - 1) ? static_cast<int>(place) : kBins - 1;
    atomicAdd(&memory.count[bin], 1u);
  }
  const Cut cut = CutCounts<kBlocks>({false, static_cast<Weight>(wanted)}, memory);
  const bool everything = !cut.reached || cut.bin == kBins - 1;
  return {row.max, scale, everything ? INFINITY : static_cast<float>(cut.bin + 1)};
}

__device__ __forceinline__ void StageKey(TokenKey key, SampleMemory& memory) {
  const uint32_t place = atomicAdd(&memory.gathered, 1u);
  if (place < kMaxSorted) memory.staged[place] = key;
}

// Tells all blocks what this one has staged, and sums up what all have. `weights`: of the tokens
// staged, and of all.
template <int kBlocks>
__device__ __forceinline__ Contribution TellStaged(Pair weights, SampleMemory& memory) {
  using Team = BlockTeam<kBlocks>;
  __syncthreads();
  if (threadIdx.x < kBlocks) {
    *Team::At(memory.contributions + Team::Rank(), static_cast<int>(threadIdx.x)) = {
        memory.gathered, weights.first, weights.second};
  }
  Team::Sync();
  Contribution sum = memory.contributions[0];
#pragma unroll
  for (int block = 1; block < kBlocks; ++block) {
    sum.count += memory.contributions[block].count;
    sum.weight += memory.contributions[block].weight;
    sum.all += memory.contributions[block].all;
  }
  return sum;
}

// Stages the keys of the tokens that `wanted` names. Counts are right even when there are more than
// can be staged.
template <int kBlocks, typename Wanted>
__device__ __forceinline__ Contribution Stage(const RowView& row, Wanted wanted,
                                              SampleMemory& memory) {
  if (threadIdx.x == 0) memory.gathered = 0;
  __syncthreads();
  ForEachToken<kBlocks>(row, [&](float logit, int32_t t) {
    if (logit != -INFINITY && wanted(logit, t)) StageKey(KeyOf(logit, t), memory);
  });
  return TellStaged<kBlocks>({0, 0}, memory);
}

// The same for a range, with its tokens' weight and roughly that of all when `weigh` says so.
template <int kBlocks>
__device__ __forceinline__ Contribution StageRange(const RowView& row, const Range& range,
                                                   bool weigh, SampleMemory& memory) {
  if (threadIdx.x == 0) memory.gathered = 0;
  __syncthreads();
  Weight weight = 0;
  RoughWeight all;
  ForEachQuad<kBlocks>(row, [&](const float(&logits)[4], float most, int32_t quad) {
    if (weigh) {
      for (const float logit : logits) all.Add(row, logit);
    }
    if (!range.Has(most)) return;
    for (int j = 0; j < 4; ++j) {
      if (!range.Has(logits[j])) continue;
      if (weigh) weight += row.WeightOf(logits[j]);
      StageKey(KeyOf(logits[j], row.begin + 4 * quad + j), memory);
    }
  });
  Pair weights = {weight, all.weight()};
  if (weigh) weights = ReduceBlock(weights, memory, SumOfBoth());
  return TellStaged<kBlocks>(weights, memory);
}

// Copies what all blocks have staged, at most kMaxSorted keys in all, into this block's keys.
template <int kBlocks>
__device__ __forceinline__ void Collect(SampleMemory& memory) {
  constexpr int kThreads = kSampleThreads / kBlocks;  // for each block
  const int block = static_cast<int>(threadIdx.x) / kThreads;
  const TokenKey* const staged = BlockTeam<kBlocks>::At(memory.staged, block);
  uint32_t before = 0;
  for (int other = 0; other < block; ++other) before += memory.contributions[other].count;
  const uint32_t count = memory.contributions[block].count;
  for (uint32_t i = threadIdx.x % kThreads; i < count; i += kThreads) {
    memory.keys[before + i] = staged[i];
  }
  __syncthreads();
}

// Few keys: each goes to the place that the number of larger ones is.
__device__ __forceinline__ void RankKeys(int count, SampleMemory& memory) {
  const int lanes = count <= 64 ? 8 : count <= 128 ? 4 : 2;  // for each key
  const int i = static_cast<int>(threadIdx.x) / lanes;
  const TokenKey key = i < count ? memory.keys[i] : 0;
  int ahead = 0;
#pragma unroll 4
  for (int j = static_cast<int>(threadIdx.x) % lanes; j < count; j += lanes) {
    ahead += memory.keys[j] > key ? 1 : 0;
  }
  for (int mask = lanes / 2; mask > 0; mask /= 2) {
    ahead += __shfl_xor_sync(0xffffffffu, ahead, mask);
  }
  __syncthreads();
  if (i < count && static_cast<int>(threadIdx.x) % lanes == 0) memory.keys[ahead] = key;
  __syncthreads();
}

// The first `count` keys of this block, the largest first: the order of arrival does not matter.
__device__ __forceinline__ void SortKeys(int count, SampleMemory& memory) {
  if (count <= kMaxRanked) return RankKeys(count, memory);
  int size = 1;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kSampleThreads) {
    memory.keys[i] = 0;
  }
  __syncthreads();
  for (int width = 2; width <= size; width *= 2) {
    for (int step = width / 2; step > 0; step /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < size; i += kSampleThreads) {
        const int other = i ^ step;
        if (other <= i) continue;
        const TokenKey a = memory.keys[i];
        const TokenKey b = memory.keys[other];
        if ((i & width) == 0 ? a < b : a > b) {
          memory.keys[i] = b;
          memory.keys[other] = a;
        }
      }
      __syncthreads();
    }
  }
}

// Among `count` sorted keys, of which the first is behind so many tokens of that weight: the last
// that the target needs.
__device__ __forceinline__ Selection CutSorted(const RowView& row, int count, const Target& target,
                                               Pair before, SampleMemory& memory) {
  const int tid = static_cast<int>(threadIdx.x);
  if (tid == 0) memory.found = {0, 0};
  __syncthreads();
  for (int first = 0; first < count; first += kSampleThreads) {
    const int i = first + tid;
    const TokenKey key = i < count ? memory.keys[i] : 0;
    const Weight weight = i < count ? row.WeightOf(LogitOf(key)) : 0;
    Pair all = {0, 0};
    const Pair scanned = ScanBlock({i < count ? Weight{1} : 0, weight}, memory, &all);
    const Pair through = SumOfBoth()(scanned, before);
    before = SumOfBoth()(before, all);
    if (i < count) {
      const bool cut = target.by_weight ? through.second >= target.value &&
                                              through.second - weight < target.value
                                        : through.first == target.value;
      const bool short_of_it = (target.by_weight ? through.second : through.first) < target.value;
      if (cut || (i == count - 1 && short_of_it)) memory.found = {key, through.second};
    }
    __syncthreads();
  }
  return memory.found;
}

// Where a piece of a row's keys begins and ends.
struct KeyRange {
  TokenKey low;
  TokenKey high;
};

template <int kBlocks, typename Wanted>
__device__ __forceinline__ KeyRange FindRange(const RowView& row, Wanted wanted,
                                              SampleMemory& memory, int& turn) {
  Pair ends = {0, 0};  // the complement of the lowest, the highest
  ForEachToken<kBlocks>(row, [&](float logit, int32_t t) {
    if (logit == -INFINITY || !wanted(logit, t)) return;
    const TokenKey key = KeyOf(logit, t);
    ends = LargerOfBoth()(ends, {~key, key});
  });
  ends = ReduceTeam<kBlocks>(ends, memory, turn, LargerOfBoth());
  return {~ends.first, ends.second};
}

// Sorts the tokens that `wanted` names, at most kMaxSorted, and cuts them.
template <int kBlocks, typename Wanted>
__device__ __forceinline__ Selection SortAndCut(const RowView& row, Wanted wanted,
                                                const Target& target, Pair before,
                                                SampleMemory& memory) {
  const auto count = static_cast<int>(Stage<kBlocks>(row, wanted, memory).count);
  Collect<kBlocks>(memory);
  SortKeys(count, memory);
  return CutSorted(row, count, target, before, memory);
}

// The selection among the tokens of keys >= `floor` of memory.row, whatever their number.
template <int kBlocks>
__device__ __noinline__ Selection Select(TokenKey floor, Target target, SampleMemory& memory) {
  const RowView row = memory.row;
  int turn = 0;  // histograms, which wait for all blocks, stand between any two reductions
  Cut cut = FindCut<kBlocks>(
      row, [&](float logit, int32_t t) { return KeyOf(logit, t) < floor ? -1 : row.BinOf(logit); },
      target, memory);
  Pair before = {cut.count_before, cut.weight_before};
  const int bin = cut.bin;
  const auto in_bin = [&](float logit, int32_t t) {
    return row.BinOf(logit) == bin && KeyOf(logit, t) >= floor;
  };
  if (cut.count_through - cut.count_before <= kMaxSorted) {
    return SortAndCut<kBlocks>(row, in_bin, target, before, memory);
  }
  // The bin is cut up by keys, until a piece can be sorted: keys differ, so it gets there.
  KeyRange range = FindRange<kBlocks>(row, in_bin, memory, turn);
  while (true) {
    const int shift =
        max(0, 64 - __clzll(static_cast<long long>(range.high - range.low)) - kBinBits);
    const auto piece_of = [range, shift](float logit, int32_t t) {
      const TokenKey key = KeyOf(logit, t);
      return key < range.low || key > range.high ? -1
                                                 : static_cast<int>((range.high - key) >> shift);
    };
    const Target rest = {target.by_weight,
                         target.value - (target.by_weight ? before.second : before.first)};
    cut = FindCut<kBlocks>(row, piece_of, rest, memory);
    before = SumOfBoth()(before, {cut.count_before, cut.weight_before});
    const int piece = cut.bin;
    const auto in_piece = [&](float logit, int32_t t) { return piece_of(logit, t) == piece; };
    if (cut.count_through - cut.count_before <= kMaxSorted) {
      return SortAndCut<kBlocks>(row, in_piece, target, before, memory);
    }
    range = FindRange<kBlocks>(row, in_piece, memory, turn);
  }
}

}  // namespace layercake::kernels::cuda
