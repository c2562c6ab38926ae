// A row of logits in slices, one per block of a team, and what the blocks tell each other of it.
//
// Slices depend on the vocabulary alone, and all that is reduced over threads and blocks are
// largest keys and sums of integers: a row gives the same whatever happens beside it. Weights are
// exp((logit - max) / temperature) in units of 2^-44.
#pragma once

#include "kernels/cuda/block_team.cuh"
#include "kernels/cuda/sampling_rule.cuh"
#include "kernels/cuda/sampling_shape.h"

namespace layercake::kernels::cuda {

using Weight = unsigned long long;

constexpr int kSampleThreads = 512;
constexpr int kSampleWarps = kSampleThreads / 32;
constexpr int kBinBits = 9;
constexpr int kBins = 1 << kBinBits;
static_assert(kBins == kSampleThreads);  // one each where they are added up
constexpr int kMaxSorted = 1024;         // keys of the whole row that are sorted in one block
constexpr int kListedQuads = 5120;
constexpr float kBinsPerUnit = 16;  // of (max - logit) / temperature
constexpr int kWeightBits = 44;
constexpr double kWeightUnit = 0x1p44;

struct BestToken {
  double value;
  int32_t token;

  __device__ __forceinline__ void Offer(double other, int32_t id) {
    if (other > value || (other == value && id < token)) {
      value = other;
      token = id;
    }
  }
};

// What the host compares.
__device__ __noinline__ double Perturbed(float logit, uint32_t bits, float temperature) {
  return static_cast<double>(logit) / static_cast<double>(temperature) + GumbelFromBits(bits);
}

// The token that is ahead of those offered so far. Floats tell most tokens apart; only those that
// are nearer than floats are exact need the host's doubles, so a thread seldom computes any before
// the end. Comparisons are written so that a NaN (temperatures near zero) counts as near.
struct Contender {
  float value;  // within `error` of what the host would have
  float error;
  float logit;
  uint32_t bits;
  int32_t token;  // INT32_MAX: none

  __device__ __forceinline__ static Contender None() { return {-INFINITY, 0, 0, 0, INT32_MAX}; }

  __device__ __forceinline__ static float ErrorOf(float scaled) {
    return kGumbelError + 1e-5f + 1e-6f * fabsf(scaled);
  }
  __device__ __forceinline__ float least() const { return value - error; }

  __device__ __forceinline__ void Offer(const Contender& other, float temperature) {
    if (other.value + other.error < least() || other.token == token) return;
    bool better = token == INT32_MAX || other.least() > value + error;
    if (!better) {
      const double mine = Perturbed(logit, bits, temperature);
      const double theirs = Perturbed(other.logit, other.bits, temperature);
      better = theirs > mine || (theirs == mine && other.token < token);
    }
    if (better) *this = other;
  }
};

struct Pair {
  Weight first;
  Weight second;
};

// What a block has of the tokens that a selection wants.
struct Contribution {
  uint32_t count;
  Weight weight;  // of these tokens
  Weight all;     // of the block's whole slice
};

// Where a selection ends: in a bin of the histogram.
struct Cut {
  int bin;
  bool reached;  // there is as much as was wanted
  Weight count_before;
  Weight weight_before;
  Weight count_through;
};

struct Selection {
  TokenKey least;  // of the tokens selected
  Weight weight;   // of all of them
};

// The slice of a row that a block works on. `logits[0]` is token `begin`.
struct RowView {
  const float* logits;
  const uint32_t* allowed;  // of one block alone; null: all. Others have it in the logits
  int32_t begin;
  int32_t size;
  // Of the whole row:
  float max;
  int32_t likeliest;        // its first token
  float lowest_of_threads;  // of the largest finite logits of the threads
  float inverse_temperature;

  template <int kBlocks>
  __device__ __forceinline__ float At(int32_t i) const {
    if constexpr (kBlocks == 1) {
      const int32_t token = begin + i;
      if (allowed != nullptr && ((allowed[token / 32] >> (token % 32)) & 1u) == 0) return -INFINITY;
    }
    return logits[i];
  }
  __device__ __forceinline__ int BinOf(float logit) const {
    return static_cast<int>(
        fminf((max - logit) * inverse_temperature * kBinsPerUnit, static_cast<float>(kBins - 1)));
  }
  // 0 below 2^-44. Exact bits of the float, shifted: no double has to be converted.
  __device__ __forceinline__ Weight WeightOf(float logit) const {
    const uint32_t bits = __float_as_uint(expf((logit - max) * inverse_temperature));
    const Weight mantissa = (bits & 0x7fffffu) | 0x800000u;
    return (mantissa << (kWeightBits - 23)) >> min(127u - (bits >> 23), 63u);
  }
};

// One block's shared memory. "Peers" marks what other blocks of the team read or write; everything
// else may be used again after a barrier of the block.
struct alignas(16) SampleMemory {
  SampleJob job;
  RowView row;  // here rather than in registers of every thread across calls
  // A histogram of the block's slice; peers read it.
  uint32_t count[kBins];
  uint32_t weight_low[kBins];
  uint32_t weight_high[kBins];  // of 2^32 low ones
  // Counts of all blocks' histograms, none above the number of threads; peers write them.
  uint16_t counts[kSampleBlocks][kBins];
  // Keys that the block contributes to a selection; peers read them.
  TokenKey staged[kMaxSorted];
  union {
    struct {  // the histogram of the whole row; peers write it
      Weight weight[kBins];
      uint32_t count[kBins];
    } merged;
    TokenKey keys[kMaxSorted];     // the selection of the whole row, in the making or sorted
    uint16_t quads[kListedQuads];  // of the slice, that may hold the token drawn
  };
  Pair told[2][kSampleBlocks];                // one of each block, in turns; peers write
  Contribution contributions[kSampleBlocks];  // peers write
  Contender winners[kSampleBlocks];           // peers write
  Pair warp_pairs[kSampleWarps];
  BestToken warp_best[kSampleWarps];
  Cut cut;
  Selection found;
  Contender winner;
  int bar;         // a float in the order of ints
  int top_count;   // of the log-probabilities reported
  double log_sum;  // of the raw logits
  uint32_t gathered;
  uint32_t listed;
};
static_assert(sizeof(SampleMemory) <= kSampleMemoryBytes);

// Calls f(logit, token) for all tokens of the slice. Loads go ahead in groups: one after the other
// they would wait for memory each time.
template <int kBlocks, int kAhead = 8, typename F>
__device__ __forceinline__ void ForEachToken(const RowView& row, F f) {
  for (int32_t first = static_cast<int32_t>(threadIdx.x); first < row.size;
       first += kAhead * kSampleThreads) {
    float logits[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t t = first + i * kSampleThreads;
      logits[i] = t < row.size ? row.At<kBlocks>(t) : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t t = first + i * kSampleThreads;
      if (t < row.size) f(logits[i], row.begin + t);
    }
  }
}

// The logits of a quad of the slice; -infinity behind its end.
template <int kBlocks>
__device__ __forceinline__ void ReadQuad(const RowView& row, int32_t quad, float (&logits)[4]) {
  if constexpr (kBlocks > 1) {  // in shared memory, where whole quads were laid
    const float4 four = *reinterpret_cast<const float4*>(row.logits + 4 * quad);
    logits[0] = four.x;
    logits[1] = four.y;
    logits[2] = four.z;
    logits[3] = four.w;
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int32_t i = 4 * quad + j;
      logits[j] = i < row.size ? row.At<kBlocks>(i) : -INFINITY;
    }
  }
}

// Calls f(logits, largest or NaN, quad) for the quads of the slice: what is rarely found in a quad
// is looked for in four tokens at once.
template <int kBlocks, typename F>
__device__ __forceinline__ void ForEachQuad(const RowView& row, F f) {
  const int32_t quads = (row.size + 3) / 4;
#pragma unroll 4
  for (int32_t quad = static_cast<int32_t>(threadIdx.x); quad < quads; quad += kSampleThreads) {
    float logits[4];
    ReadQuad<kBlocks>(row, quad, logits);
    f(logits, MaxOrNan(MaxOrNan(logits[0], logits[1]), MaxOrNan(logits[2], logits[3])), quad);
  }
}

struct LargerOfBoth {
  __device__ __forceinline__ Pair operator()(const Pair& a, const Pair& b) const {
    return {a.first > b.first ? a.first : b.first, a.second > b.second ? a.second : b.second};
  }
};
struct SumOfBoth {
  __device__ __forceinline__ Pair operator()(const Pair& a, const Pair& b) const {
    return {a.first + b.first, a.second + b.second};
  }
};

// `pair` of all threads of the block, put together, in every thread. Ends before a barrier: whoever
// calls it again has passed one.
template <typename Combine>
__device__ __forceinline__ Pair ReduceBlock(Pair pair, SampleMemory& memory, Combine combine) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    pair = combine(pair, {__shfl_xor_sync(0xffffffffu, pair.first, mask),
                          __shfl_xor_sync(0xffffffffu, pair.second, mask)});
  }
  if (threadIdx.x % 32 == 0) memory.warp_pairs[threadIdx.x / 32] = pair;
  __syncthreads();
  pair = memory.warp_pairs[threadIdx.x % kSampleWarps];
#pragma unroll
  for (int mask = kSampleWarps / 2; mask > 0; mask /= 2) {
    pair = combine(pair, {__shfl_xor_sync(0xffffffffu, pair.first, mask),
                          __shfl_xor_sync(0xffffffffu, pair.second, mask)});
  }
  return pair;
}

// The same over all blocks of the team. `turn` counts the calls of a kernel: what is told in one is
// read until the next but one.
template <int kBlocks, typename Combine>
__device__ __forceinline__ Pair ReduceTeam(Pair pair, SampleMemory& memory, int& turn,
                                           Combine combine) {
  using Team = BlockTeam<kBlocks>;
  pair = ReduceBlock(pair, memory, combine);
  Pair* const told = memory.told[turn++ & 1];
  if (threadIdx.x < kBlocks) {
    *Team::At(told + Team::Rank(), static_cast<int>(threadIdx.x)) = pair;
  }
  Team::Sync();
  pair = told[0];
#pragma unroll
  for (int block = 1; block < kBlocks; ++block) pair = combine(pair, told[block]);
  return pair;
}

// The best of the block's threads, in every thread; the barriers as above.
__device__ __forceinline__ BestToken ReduceBest(BestToken best, SampleMemory& memory) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    const double value = __shfl_xor_sync(0xffffffffu, best.value, mask);
    const int32_t token = __shfl_xor_sync(0xffffffffu, best.token, mask);
    best.Offer(value, token);
  }
  if (threadIdx.x % 32 == 0) memory.warp_best[threadIdx.x / 32] = best;
  __syncthreads();
  best = memory.warp_best[threadIdx.x % kSampleWarps];
#pragma unroll
  for (int mask = kSampleWarps / 2; mask > 0; mask /= 2) {
    const double value = __shfl_xor_sync(0xffffffffu, best.value, mask);
    const int32_t token = __shfl_xor_sync(0xffffffffu, best.token, mask);
    best.Offer(value, token);
  }
  return best;
}

// The largest logit of a row with its first token, and what the threads' own largest are.
struct Largest {
  TokenKey key;             // kBadKey: there is a NaN or +infinity
  float lowest_of_threads;  // as in RowView
  float of_thread;          // -infinity when it has none
};
constexpr TokenKey kBadKey = ~TokenKey{0};

__device__ __forceinline__ bool IsBad(float logit) { return !(logit < INFINITY); }

// Put together from what each thread found.
template <int kBlocks>
__device__ __forceinline__ Largest LargestOfRow(float largest, int32_t token, bool bad,
                                                SampleMemory& memory, int& turn) {
  const Weight low = largest == -INFINITY ? 0 : ~static_cast<uint32_t>(KeyOf(largest, token) >> 32);
  const Pair all = ReduceTeam<kBlocks>({bad ? kBadKey : KeyOf(largest, token), low}, memory, turn,
                                       LargerOfBoth());
  const auto order = static_cast<TokenKey>(~static_cast<uint32_t>(all.second));
  return {all.first, LogitOf(order << 32), largest};
}

// Of logits that lie far away and are looked at once.
template <int kBlocks, int kAhead>
__device__ __forceinline__ Largest FindLargest(const RowView& row, SampleMemory& memory,
                                               int& turn) {
  float largest = -INFINITY;
  int32_t token = INT32_MAX;
  bool bad = false;
  ForEachToken<kBlocks, kAhead>(row, [&](float logit, int32_t t) {
    bad |= IsBad(logit);
    if (logit > largest) {
      largest = logit;
      token = t;
    }
  });
  return LargestOfRow<kBlocks>(largest, token, bad, memory, turn);
}

// Of logits at hand.
template <int kBlocks>
__device__ __forceinline__ Largest FindLargestByQuads(const RowView& row, SampleMemory& memory,
                                                      int& turn) {
  float largest = -INFINITY;
  int32_t best = -1;
  ForEachQuad<kBlocks>(row, [&](const float(&)[4], float most, int32_t quad) {
    if (most > largest) best = quad;
    largest = MaxOrNan(largest, most);
  });
  const bool bad = IsBad(largest);
  int32_t token = INT32_MAX;
  if (!bad && best >= 0) {
    float logits[4];
    ReadQuad<kBlocks>(row, best, logits);
#pragma unroll
    for (int j = 3; j >= 0; --j) {
      if (logits[j] == largest) token = row.begin + 4 * best + j;
    }
  }
  return LargestOfRow<kBlocks>(largest, token, bad, memory, turn);
}

// What all tokens of a slice weigh, for sums of which no part is compared with: a thread adds its
// own up as floats, always in the same order.
struct RoughWeight {
  float sum = 0;

  __device__ __forceinline__ void Add(const RowView& row, float logit) {
    sum += __expf((logit - row.max) * row.inverse_temperature);
  }
  __device__ __forceinline__ Weight weight() const {
    return static_cast<Weight>(static_cast<double>(sum) * kWeightUnit);
  }
};

template <int kBlocks>
__device__ __forceinline__ Weight WeighAll(const RowView& row, SampleMemory& memory, int& turn) {
  RoughWeight all;
  ForEachQuad<kBlocks>(row, [&](const float(&logits)[4], float, int32_t) {
    for (const float logit : logits) all.Add(row, logit);
  });
  return ReduceTeam<kBlocks>({all.weight(), 0}, memory, turn, SumOfBoth()).first;
}

// The weight of the tokens of keys >= least.
template <int kBlocks>
__device__ __forceinline__ Weight SumWeights(const RowView& row, TokenKey least,
                                             SampleMemory& memory, int& turn) {
  Weight sum = 0;
  ForEachToken<kBlocks>(row, [&](float logit, int32_t t) {
    if (logit != -INFINITY && KeyOf(logit, t) >= least) sum += row.WeightOf(logit);
  });
  return ReduceTeam<kBlocks>({sum, 0}, memory, turn, SumOfBoth()).first;
}

}  // namespace layercake::kernels::cuda
