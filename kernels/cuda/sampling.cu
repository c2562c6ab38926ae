#include "kernels/cuda/sampling_select.cuh"

namespace layercake::kernels::cuda {
namespace {

struct Best {
  double value;
  int32_t token;

  __device__ void Offer(double other, int32_t id) {
    if (other > value || (other == value && id < token)) {
      value = other;
      token = id;
    }
  }
};

// The best of all threads, in every thread.
__device__ Best ReduceBest(Best best) {
  __shared__ Best warps[32];
  for (int mask = 16; mask > 0; mask /= 2) {
    const double value = __shfl_xor_sync(0xffffffffu, best.value, mask);
    const int32_t token = __shfl_xor_sync(0xffffffffu, best.token, mask);
    best.Offer(value, token);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    best.Offer(warps[w].value, warps[w].token);
  }
  return best;
}

__device__ bool IsBad(float logit) { return isnan(logit) || logit == INFINITY; }

// The largest value and its first token; `bad` when there is a NaN or +infinity.
__device__ Best FindLargest(const RowView& row, bool* bad) {
  Best best = {-INFINITY, INT32_MAX};
  bool found = false;
  float largest = -INFINITY;
  int32_t token = INT32_MAX;
  ForEachToken(row, [&](float logit, int32_t t) {
    found |= IsBad(logit);
    if (logit > largest) {
      largest = logit;
      token = t;
    }
  });
  best = {largest, token};
  *bad = __syncthreads_or(found ? 1 : 0) != 0;
  return ReduceBest(best);
}

// The sum of exp((logit - max) / T) over the row, in weight units.
__device__ unsigned long long SumWeights(const RowView& row, TokenKey least, SelectMemory& memory) {
  unsigned long long sum = 0;
  ForEachToken(row, [&](float logit, int32_t t) {
    if (logit != -INFINITY && KeyOf(logit, t) >= least) sum += row.WeightOf(logit);
  });
  unsigned long long all = 0;
  ScanBlock(sum, memory, &all);
  return all;
}

// The rule's cuts as one bound on keys, and the smallest logit that min_p keeps.
struct Kept {
  TokenKey least;
  double least_logit;

  __device__ bool Has(float logit, int32_t token, float max) const {
    return KeyOf(logit, token) >= least &&
           (static_cast<double>(logit) >= least_logit || logit >= max);
  }
};

// When the candidates fit: sorted in shared memory, cut as the host cuts them. Returns their
// number, or -1 when there are too many. `total` becomes the weight of the whole row when top_k is
// off.
__device__ int CutFew(const RowView& row, const SampleJob& job, bool top_k, bool top_p,
                      unsigned long long* total, SelectMemory& memory) {
  const Target target = top_k ? Target{false, static_cast<unsigned long long>(job.top_k)}
                              : Target{true, 1, fmaxf(job.top_p, 1e-30f)};
  FindCutBin(
      row, [&](float logit, int32_t) { return row.BinOf(logit); }, target, memory);
  *total = memory.all_weight;
  if (memory.count_through > kMaxSorted) return -1;
  const int bin = memory.cut_bin;
  __syncthreads();
  int count = Gather(
      row, [&](float logit, int32_t) { return row.BinOf(logit) <= bin; }, memory);
  SortKeys(count, memory);
  if (top_k) count = min(count, job.top_k);
  if (!top_p) return count;
  if (threadIdx.x == 0) {
    memory.count_before = 0;
    memory.weight_before = 0;
  }
  if (top_k) {
    unsigned long long all = 0;
    unsigned long long own = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
      own += row.WeightOf(LogitOf(memory.keys[i]));
    }
    ScanBlock(own, memory, &all);
    *total = all;
  }
  __syncthreads();
  const Selection cut = CutSorted(row, count, {true, Share(job.top_p, *total)}, memory);
  // Keys are sorted: count those that stay.
  int own = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
    own += memory.keys[i] >= cut.least ? 1 : 0;
  }
  unsigned long long kept = 0;
  ScanBlock(static_cast<unsigned long long>(own), memory, &kept);
  return static_cast<int>(kept);
}

__device__ TokenKey CutMany(const RowView& row, const SampleJob& job, bool top_k, bool top_p,
                            unsigned long long total, SelectMemory& memory) {
  Selection cut = {0, total};
  if (top_k) {
    cut = Select(row, 0, {false, static_cast<unsigned long long>(job.top_k)}, memory);
    if (top_p) cut.weight = SumWeights(row, cut.least, memory);
  }
  if (top_p) cut = Select(row, cut.least, {true, Share(job.top_p, cut.weight)}, memory);
  return cut.least;
}

__device__ double Perturbed(float logit, uint32_t bits, double temperature) {
  return static_cast<double>(logit) / temperature + GumbelFromBits(bits);
}

__device__ int32_t DrawFew(const SampleJob& job, int count, const Kept& kept, float max,
                           const SelectMemory& memory) {
  Best best = {-INFINITY, INT32_MAX};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
    const int32_t token = TokenOf(memory.keys[i]);
    const float logit = LogitOf(memory.keys[i]);
    if (!kept.Has(logit, token, max)) continue;
    const auto id = static_cast<uint32_t>(token);
    best.Offer(
        Perturbed(logit, GumbelBits(job.seed, job.position, id / 4).word[id % 4], job.temperature),
        token);
  }
  return ReduceBest(best).token;
}

__device__ int OrderedInt(float value) {
  const int bits = __float_as_int(value);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}
__device__ float FloatOf(int ordered) {
  return __int_as_float(ordered >= 0 ? ordered : ordered ^ 0x7fffffff);
}

__device__ int32_t DrawMany(const RowView& row, const SampleJob& job, const Kept& kept,
                            int32_t likeliest) {
  // The likeliest token sets a bar that spares most others their logarithms.
  const auto likeliest_id = static_cast<uint32_t>(likeliest);
  __shared__ int shared_bar;  // a float in the order of ints: what some token has reached
  const Best first = {
      Perturbed(row.max,
                GumbelBits(job.seed, job.position, likeliest_id / 4).word[likeliest_id % 4],
                job.temperature),
      likeliest};
  if (threadIdx.x == 0) shared_bar = OrderedInt(static_cast<float>(first.value));
  __syncthreads();
  Best best = first;
  const int32_t quads = (row.size + 3) / 4;
  constexpr int kAhead = 2;
  for (int32_t first = static_cast<int32_t>(threadIdx.x); first < quads;
       first += kAhead * kSampleThreads) {
    float logits[kAhead][4];
    // Read while others raise it: any value it ever had is a bar that the winner passes.
    const float bar = FloatOf(*static_cast<volatile int*>(&shared_bar));
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int32_t t = (first + i * kSampleThreads) * 4 + j;
        logits[i][j] = t < row.size ? row.At(t) : -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t quad = first + i * kSampleThreads;
      Words4 bits = {};
      bool drawn = false;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float logit = logits[i][j];
        // The largest possible noise is below 23; most tokens are further behind than that.
        const float scaled = logit * row.inverse_temperature;
        const float slack = 1e-4f + 1e-5f * fabsf(scaled);
        if (logit == -INFINITY || scaled + 23.0f + slack < bar) continue;
        if (!drawn) bits = GumbelBits(job.seed, job.position, static_cast<uint32_t>(quad));
        drawn = true;
        if (scaled + GumbelBound(bits.word[j]) + slack < bar) continue;
        const int32_t t = quad * 4 + j;
        if (!kept.Has(logit, t, row.max)) continue;
        const double value = Perturbed(logit, bits.word[j], job.temperature);
        best.Offer(value, t);
        atomicMax(&shared_bar, OrderedInt(static_cast<float>(value)));
      }
    }
  }
  return ReduceBest(best).token;
}

__device__ int32_t Draw(const RowView& row, const SampleJob& job, int32_t likeliest,
                        SelectMemory& memory) {
  const bool top_k = job.top_k > 0 && job.top_k < row.size;
  const bool top_p = job.top_p < 1;
  Kept kept = {0, -INFINITY};
  if (job.min_p > 0) {
    kept.least_logit = static_cast<double>(row.max) +
                       static_cast<double>(job.temperature) * log(static_cast<double>(job.min_p));
  }
  if (top_k || top_p) {
    unsigned long long total = 0;
    const int count = CutFew(row, job, top_k, top_p, &total, memory);
    if (count >= 0) return DrawFew(job, count, kept, row.max, memory);
    __syncthreads();
    kept.least = CutMany(row, job, top_k, top_p, total, memory);
  }
  return DrawMany(row, job, kept, likeliest);
}

// The best raw log-probabilities; returns the logarithm of the sum of all.
__device__ double ReportTop(const RowView& raw, int wanted, SampleOutcome* outcome,
                            SelectMemory& memory) {
  const auto log_of = [&](unsigned long long weight) {
    return static_cast<double>(raw.max) + log(static_cast<double>(weight) / kWeightUnit);
  };
  if (wanted == 0) return log_of(SumWeights(raw, 0, memory));
  FindCutBin(
      raw, [&](float logit, int32_t) { return raw.BinOf(logit); },
      {false, static_cast<unsigned long long>(wanted), 0, true}, memory);
  const double log_sum = log_of(memory.all_weight);
  int count = 0;
  if (memory.count_through <= kMaxSorted) {
    const int bin = memory.cut_bin;
    __syncthreads();
    count = Gather(
        raw, [&](float logit, int32_t) { return raw.BinOf(logit) <= bin; }, memory);
  } else {
    __syncthreads();
    const Selection cut = Select(raw, 0, {false, static_cast<unsigned long long>(wanted)}, memory);
    count = Gather(
        raw, [&](float logit, int32_t t) { return KeyOf(logit, t) >= cut.least; }, memory);
  }
  SortKeys(count, memory);
  count = min(count, wanted);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
    outcome->top_token[i] = TokenOf(memory.keys[i]);
    outcome->top_logprob[i] =
        static_cast<float>(static_cast<double>(LogitOf(memory.keys[i])) - log_sum);
  }
  if (threadIdx.x == 0) outcome->top_count = count;
  __syncthreads();
  return log_sum;
}

__device__ void Penalize(float* logits, const SampleJob& job) {
  for (int i = static_cast<int>(threadIdx.x); i < job.seen_count; i += kSampleThreads) {
    const DeviceSeenToken seen = job.seen[i];
    job.seen_raw[i] = logits[seen.token];
    logits[seen.token] = Penalized(logits[seen.token], seen.output_count, job);
  }
  __syncthreads();
}

__device__ void TakeBackPenalties(float* logits, const SampleJob& job) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < job.seen_count; i += kSampleThreads) {
    logits[job.seen[i].token] = job.seen_raw[i];
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kSampleThreads)
    SampleKernel(float* all_logits, int32_t vocabulary, const SampleJob* jobs,
                 SampleOutcome* outcomes) {
  __shared__ SelectMemory memory;
  GridDependencyWait();
  GridLaunchDependents();
  const SampleJob job = jobs[blockIdx.x];
  SampleOutcome* outcome = outcomes + blockIdx.x;
  float* logits = all_logits + static_cast<int64_t>(job.logits_row) * vocabulary;
  if (threadIdx.x == 0) *outcome = {-1, 0, 0, 0, {}, {}};
  __syncthreads();

  RowView row = {logits, nullptr, vocabulary, 0, 1};
  bool bad = false;
  Best largest = FindLargest(row, &bad);
  double log_sum = 0;
  if (!bad) {
    row.max = static_cast<float>(largest.value);
    if (job.top_logprobs >= 0 && row.max != -INFINITY) {
      log_sum = ReportTop(row, job.top_logprobs, outcome, memory);
    }
    Penalize(logits, job);
    row.allowed = job.allowed;
    if (job.seen_count > 0 || job.allowed != nullptr) largest = FindLargest(row, &bad);
    row.max = static_cast<float>(largest.value);
  }
  int32_t token = -1;
  if (!bad && row.max != -INFINITY) {
    token = largest.token;
    if (job.temperature > 0) {
      row.inverse_temperature = fminf(1.0f / job.temperature, 1e30f);
      token = Draw(row, job, largest.token, memory);
    }
  }
  if (!bad) TakeBackPenalties(logits, job);
  if (threadIdx.x != 0) return;
  outcome->token = token;
  outcome->non_finite = token < 0 ? 1 : 0;
  if (token < 0) outcome->top_count = 0;
  if (token >= 0 && job.top_logprobs >= 0) {
    outcome->logprob = static_cast<float>(static_cast<double>(logits[token]) - log_sum);
  }
}

__global__ void __launch_bounds__(kSampleThreads)
    GreedyKernel(const float* all_logits, int32_t vocabulary, const SampleJob* jobs,
                 SampleOutcome* outcomes) {
  GridDependencyWait();
  GridLaunchDependents();
  const RowView row = {all_logits + static_cast<int64_t>(jobs[blockIdx.x].logits_row) * vocabulary,
                       nullptr, vocabulary, 0, 1};
  bool bad = false;
  const Best largest = FindLargest(row, &bad);
  if (threadIdx.x != 0) return;
  const bool none = bad || largest.value == -INFINITY;
  outcomes[blockIdx.x] = {none ? -1 : largest.token, none ? 1 : 0, 0, 0, {}, {}};
}

}  // namespace

cudaError_t LaunchSample(const Context& context, float* logits, int64_t vocabulary,
                         const SampleJob* jobs, int count, bool greedy, SampleOutcome* outcomes) {
  const dim3 grid(static_cast<unsigned>(count));
  const auto size = static_cast<int32_t>(vocabulary);
  return greedy ? Launch(context, grid, dim3(kSampleThreads), 0, GreedyKernel, logits, size, jobs,
                         outcomes)
                : Launch(context, grid, dim3(kSampleThreads), 0, SampleKernel, logits, size, jobs,
                         outcomes);
}

}  // namespace layercake::kernels::cuda
