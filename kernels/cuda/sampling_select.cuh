// Finding the best tokens of a row without sorting it: a histogram, and a sort of one bin.
//
// Weights are exp((logit - max) / temperature) as integers in units of 2^-44, so that sums do not
// depend on the order of additions.
#pragma once

#include "kernels/cuda/sampling_rule.cuh"

namespace layercake::kernels::cuda {

constexpr int kSampleThreads = 1024;
constexpr int kBins = kSampleThreads;  // one per thread where they are added up
constexpr int kMaxSorted = 2048;
constexpr float kBinsPerUnit = 32;  // of (max - logit) / temperature
constexpr int kWeightBits = 44;
constexpr double kWeightUnit = 0x1p44;

struct SelectMemory {
  uint32_t count[kBins];
  uint32_t weight_low[kBins];
  uint32_t weight_high[kBins];  // of 2^32 low ones
  TokenKey keys[kMaxSorted];
  unsigned long long scan[32];
  uint32_t gathered;
  // Results of one thread for all.
  int cut_bin;
  unsigned long long count_before;
  unsigned long long weight_before;
  unsigned long long count_through;
  unsigned long long all_weight;
  TokenKey low;
  TokenKey high;
};

// A row as the selection sees it.
struct RowView {
  const float* logits;
  const uint32_t* allowed;  // null: all
  int32_t size;
  float max;
  float inverse_temperature;

  __device__ float At(int32_t token) const {
    if (allowed != nullptr && ((allowed[token / 32] >> (token % 32)) & 1u) == 0) return -INFINITY;
    return logits[token];
  }
  __device__ int BinOf(float logit) const {
    return static_cast<int>(
        fminf((max - logit) * inverse_temperature * kBinsPerUnit, static_cast<float>(kBins - 1)));
  }
  // 0 below 2^-44. Exact bits of the float, shifted: no double has to be converted.
  __device__ unsigned long long WeightOf(float logit) const {
    const uint32_t bits = __float_as_uint(expf((logit - max) * inverse_temperature));
    const int shift = static_cast<int>(bits >> 23) - 127 - 23 + kWeightBits;
    const unsigned long long mantissa = (bits & 0x7fffffu) | 0x800000u;
    if (shift >= 0) return mantissa << shift;
    return shift > -24 ? mantissa >> -shift : 0;
  }
};

// Calls f(logit, token) for all tokens. Loads go ahead in groups: one after the other they would
// wait for memory each time.
template <typename F>
__device__ __forceinline__ void ForEachToken(const RowView& row, F f) {
  constexpr int kAhead = 8;
  for (int32_t first = static_cast<int32_t>(threadIdx.x); first < row.size;
       first += kAhead * kSampleThreads) {
    float logits[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t t = first + i * kSampleThreads;
      logits[i] = t < row.size ? row.At(t) : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t t = first + i * kSampleThreads;
      if (t < row.size) f(logits[i], t);
    }
  }
}

// Inclusive sum over the block; every thread gets its own. `total`: of all.
__device__ inline unsigned long long ScanBlock(unsigned long long value, SelectMemory& memory,
                                               unsigned long long* total) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int step = 1; step < 32; step *= 2) {
    const unsigned long long other = __shfl_up_sync(0xffffffffu, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) memory.scan[warp] = value;
  __syncthreads();
  if (warp == 0) {
    unsigned long long sum = memory.scan[lane];
    for (int step = 1; step < 32; step *= 2) {
      const unsigned long long other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += other;
    }
    memory.scan[lane] = sum;
  }
  __syncthreads();
  if (warp > 0) value += memory.scan[warp - 1];
  *total = memory.scan[31];
  __syncthreads();
  return value;
}

// How far a selection goes: the first tokens whose number, or weight, reaches `value`.
struct Target {
  bool by_weight;
  unsigned long long value;
  float share = 0;     // not 0: of all the weight there is, instead of `value`
  bool weigh = false;  // add the weights up even when tokens are counted
};

__device__ inline unsigned long long Share(float top_p, unsigned long long weight) {
  const double share = ceil(static_cast<double>(top_p) * static_cast<double>(weight));
  return max(1ull, static_cast<unsigned long long>(share));
}

// Fills the histogram with the tokens for which bin_of gives a bin (not -1), and finds the bin
// where the target is reached (the last one that holds tokens, when it is not).
template <typename BinOf>
__device__ void FindCutBin(const RowView& row, BinOf bin_of, const Target& target,
                           SelectMemory& memory) {
  const int tid = static_cast<int>(threadIdx.x);
  const bool weigh = target.by_weight || target.weigh;
  memory.count[tid] = 0;
  memory.weight_low[tid] = 0;
  memory.weight_high[tid] = 0;
  __syncthreads();
  uint32_t last_bin = 0;  // most tokens of a row are far behind: not one by one
  ForEachToken(row, [&](float logit, int32_t t) {
    if (logit == -INFINITY) return;
    const int bin = bin_of(logit, t);
    if (bin < 0) return;
    if (bin == kBins - 1) {
      ++last_bin;
    } else {
      atomicAdd(&memory.count[bin], 1u);
    }
    if (!weigh) return;
    const unsigned long long weight = row.WeightOf(logit);
    if (weight == 0) return;
    const auto low = static_cast<uint32_t>(weight);
    const uint32_t old = atomicAdd(&memory.weight_low[bin], low);
    const uint32_t high = static_cast<uint32_t>(weight >> 32) + (old + low < old ? 1u : 0u);
    if (high != 0) atomicAdd(&memory.weight_high[bin], high);
  });
  if (last_bin != 0) atomicAdd(&memory.count[kBins - 1], last_bin);
  __syncthreads();
  const unsigned long long count = memory.count[tid];
  const unsigned long long weight =
      (static_cast<unsigned long long>(memory.weight_high[tid]) << 32) + memory.weight_low[tid];
  unsigned long long all_count = 0;
  unsigned long long all_weight = 0;
  const unsigned long long counts = ScanBlock(count, memory, &all_count);
  const unsigned long long weights = ScanBlock(weight, memory, &all_weight);
  const unsigned long long here = target.by_weight ? weights : counts;
  const unsigned long long before = target.by_weight ? weights - weight : counts - count;
  const unsigned long long all = target.by_weight ? all_weight : all_count;
  const unsigned long long wanted =
      target.share != 0 ? Share(target.share, all_weight) : target.value;
  const bool reached = before < wanted && here >= wanted;
  const bool last = all < wanted && count > 0 && counts == all_count;
  if (reached || last) {
    memory.cut_bin = tid;
    memory.count_before = counts - count;
    memory.weight_before = weights - weight;
    memory.count_through = counts;
    memory.all_weight = all_weight;
  }
  __syncthreads();
}

// Collects the keys of the tokens that `wanted` names; at most kMaxSorted (the caller knows).
template <typename Wanted>
__device__ int Gather(const RowView& row, Wanted wanted, SelectMemory& memory) {
  if (threadIdx.x == 0) memory.gathered = 0;
  __syncthreads();
  ForEachToken(row, [&](float logit, int32_t t) {
    if (logit == -INFINITY || !wanted(logit, t)) return;
    const uint32_t place = atomicAdd(&memory.gathered, 1u);
    if (place < kMaxSorted) memory.keys[place] = KeyOf(logit, t);
  });
  __syncthreads();
  return static_cast<int>(min(memory.gathered, static_cast<uint32_t>(kMaxSorted)));
}

// The first `count` keys, the largest first (bitonic: the order of arrival does not matter).
__device__ inline void SortKeys(int count, SelectMemory& memory) {
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

// The smallest and largest key among the wanted tokens, into memory.low and memory.high.
template <typename Wanted>
__device__ void FindRange(const RowView& row, Wanted wanted, SelectMemory& memory) {
  if (threadIdx.x == 0) {
    memory.low = ~TokenKey{0};
    memory.high = 0;
  }
  __syncthreads();
  TokenKey low = ~TokenKey{0};
  TokenKey high = 0;
  ForEachToken(row, [&](float logit, int32_t t) {
    if (logit == -INFINITY || !wanted(logit, t)) return;
    const TokenKey key = KeyOf(logit, t);
    low = min(low, key);
    high = max(high, key);
  });
  atomicMin(&memory.low, low);
  atomicMax(&memory.high, high);
  __syncthreads();
}

struct Selection {
  TokenKey least;             // of the tokens selected
  unsigned long long weight;  // of all of them
};

// Among `count` sorted keys, of which the first is behind count_before and weight_before: the last
// that the target needs.
__device__ inline Selection CutSorted(const RowView& row, int count, const Target& target,
                                      SelectMemory& memory) {
  const int tid = static_cast<int>(threadIdx.x);
  const unsigned long long count_before = memory.count_before;
  unsigned long long running = memory.weight_before;
  Selection result = {0, 0};
  __shared__ Selection found;
  if (tid == 0) found = {0, 0};
  __syncthreads();
  for (int first = 0; first < count; first += kSampleThreads) {
    const int i = first + tid;
    const unsigned long long weight = i < count ? row.WeightOf(LogitOf(memory.keys[i])) : 0;
    unsigned long long all = 0;
    const unsigned long long weights = running + ScanBlock(weight, memory, &all);
    if (i < count) {
      const unsigned long long number = count_before + static_cast<unsigned long long>(i) + 1;
      const bool cut = target.by_weight ? weights >= target.value && weights - weight < target.value
                                        : number == target.value;
      if (cut || (i == count - 1 && found.least == 0 &&
                  (target.by_weight ? weights < target.value : number < target.value))) {
        found = {memory.keys[i], weights};
      }
    }
    running += all;
    __syncthreads();
  }
  result = found;
  __syncthreads();
  return result;
}

// The selection among the tokens of keys >= `floor`, whatever their number.
__device__ inline Selection Select(const RowView& row, TokenKey floor, const Target& target,
                                   SelectMemory& memory) {
  FindCutBin(
      row, [&](float logit, int32_t t) { return KeyOf(logit, t) < floor ? -1 : row.BinOf(logit); },
      target, memory);
  const int bin = memory.cut_bin;
  const auto in_bin = [&](float logit, int32_t t) {
    return row.BinOf(logit) == bin && KeyOf(logit, t) >= floor;
  };
  if (memory.count_through - memory.count_before <= kMaxSorted) {
    const int count = Gather(row, in_bin, memory);
    SortKeys(count, memory);
    return CutSorted(row, count, target, memory);
  }
  // The bin is cut up by keys, until a piece can be sorted: keys differ, so it gets there.
  FindRange(row, in_bin, memory);
  while (true) {
    const TokenKey low = memory.low;
    const TokenKey high = memory.high;
    const unsigned long long count_outside = memory.count_before;
    const unsigned long long weight_outside = memory.weight_before;
    const TokenKey width = high - low;
    const int shift = max(0, 64 - __clzll(static_cast<long long>(width)) - 10);
    const Target rest = {target.by_weight,
                         target.value - (target.by_weight ? weight_outside : count_outside)};
    __syncthreads();
    FindCutBin(
        row,
        [&](float logit, int32_t t) {
          const TokenKey key = KeyOf(logit, t);
          return key < low || key > high ? -1 : static_cast<int>((high - key) >> shift);
        },
        rest, memory);
    const int piece = memory.cut_bin;
    const unsigned long long count = memory.count_through - memory.count_before;
    __syncthreads();
    if (threadIdx.x == 0) {
      memory.count_before += count_outside;
      memory.weight_before += weight_outside;
    }
    __syncthreads();
    const auto in_piece = [&](float logit, int32_t t) {
      const TokenKey key = KeyOf(logit, t);
      return key >= low && key <= high && static_cast<int>((high - key) >> shift) == piece;
    };
    if (count <= kMaxSorted) {
      const int gathered = Gather(row, in_piece, memory);
      SortKeys(gathered, memory);
      return CutSorted(row, gathered, target, memory);
    }
    FindRange(row, in_piece, memory);
  }
}

}  // namespace layercake::kernels::cuda
