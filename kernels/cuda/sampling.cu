#include "kernels/cuda/sampling.h"
#include "kernels/cuda/sampling_draw.cuh"
#include "kernels/cuda/sampling_select.cuh"
#include "kernels/cuda/sampling_shape.h"

namespace layercake::kernels::cuda {
namespace {

// How many of a row's tokens are looked at first when only top_p cuts.
constexpr int kNucleus = 192;
// Above this the largest logits of threads say too little about the best tokens.
constexpr int kMostInRange = 512;

// ---- the block's slice of logits

// Copies that a block issues all at once, without registers in between. Both: shared memory first.
__device__ __forceinline__ void CopyQuadAsync(float* to, const float* from) {
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}
__device__ __forceinline__ void CopyOneAsync(float* to, const float* from) {
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(from) : "memory");
}
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}

// Copies the slice to shared memory, as whole quads with -infinity at the end.
__device__ __forceinline__ void CopySlice(const float* from, int32_t size, float* to) {
  const auto tid = static_cast<int32_t>(threadIdx.x);
  const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
  const int32_t in_quads = aligned ? size / 4 * 4 : 0;
  for (int32_t i = 4 * tid; i < in_quads; i += 4 * kSampleThreads) CopyQuadAsync(to + i, from + i);
  for (int32_t i = in_quads + tid; i < size; i += kSampleThreads) CopyOneAsync(to + i, from + i);
  const int32_t behind = size + tid;
  if (behind < (size + 3) / 4 * 4) to[behind] = -INFINITY;
  WaitForCopies();
}

// Penalties and the mask. A slice in shared memory takes both; a row where it lies takes penalties
// and gives them back at the end, and keeps its mask beside it.
template <int kBlocks>
__device__ __forceinline__ void Adjust(RowView& row, float* logits, const SampleJob& job) {
  for (int i = static_cast<int>(threadIdx.x); i < job.seen_count; i += kSampleThreads) {
    const DeviceSeenToken seen = job.seen[i];
    const int32_t at = seen.token - row.begin;
    if (at < 0 || at >= row.size) continue;
    if constexpr (kBlocks == 1) job.seen_raw[i] = logits[at];
    logits[at] = Penalized(logits[at], seen.output_count, job);
  }
  __syncthreads();
  if constexpr (kBlocks == 1) {
    row.allowed = job.allowed;
  } else if (job.allowed != nullptr) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < row.size; i += kSampleThreads) {
      const int32_t token = row.begin + i;
      if (((job.allowed[token / 32] >> (token % 32)) & 1u) == 0) logits[i] = -INFINITY;
    }
    __syncthreads();
  }
}

__device__ __forceinline__ void TakeBackPenalties(float* logits, const SampleJob& job) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < job.seen_count; i += kSampleThreads) {
    logits[job.seen[i].token] = job.seen_raw[i];
  }
  __syncthreads();
}

// ---- log-probabilities

// The logarithm of the sum of exp(logit) of memory.row, and by the team's first block the best
// log-probabilities.
template <int kBlocks>
__device__ __noinline__ void ReportTop(float of_thread, SampleOutcome* outcome,
                                       SampleMemory& memory, int turn) {
  const RowView raw = memory.row;
  const int wanted = memory.job.top_logprobs;
  const auto log_of = [&](Weight weight) {
    return static_cast<double>(raw.max) + log(static_cast<double>(weight) / kWeightUnit);
  };
  if (wanted == 0) {
    const double log_sum = log_of(WeighAll<kBlocks>(raw, memory, turn));
    if (threadIdx.x == 0) memory.log_sum = log_sum;
    return;
  }
  const Range range = RangeOfBest<kBlocks>(raw, of_thread, wanted, memory);
  Contribution staged = StageRange<kBlocks>(raw, range, true, memory);
  const double log_sum = log_of(staged.all);
  if (staged.count > kMaxSorted) {
    const TokenKey least = Select<kBlocks>(0, {false, static_cast<Weight>(wanted)}, memory).least;
    BlockTeam<kBlocks>::Sync();  // others may still collect what this block staged there
    staged = Stage<kBlocks>(
        raw, [&](float logit, int32_t t) { return KeyOf(logit, t) >= least; }, memory);
  }
  const int count = min(static_cast<int>(staged.count), wanted);
  if (threadIdx.x == 0) {
    memory.log_sum = log_sum;
    memory.top_count = count;
  }
  if (BlockTeam<kBlocks>::Rank() != 0) return;
  Collect<kBlocks>(memory);
  SortKeys(static_cast<int>(staged.count), memory);
  if (static_cast<int>(threadIdx.x) < count) {
    const TokenKey key = memory.keys[threadIdx.x];
    outcome->top_token[threadIdx.x] = TokenOf(key);
    outcome->top_logprob[threadIdx.x] =
        static_cast<float>(static_cast<double>(LogitOf(key)) - log_sum);
  }
}

// ---- drawing

// How many of the `count` sorted keys stay. `total`: the weight of the row, when top_k is off.
__device__ __forceinline__ int KeepFew(const RowView& row, const SampleJob& job, int count,
                                       bool top_k, Weight total, SampleMemory& memory) {
  static_assert(kMostInRange <= kSampleThreads);  // one round when top_k cuts
  if (top_k) count = min(count, job.top_k);
  if (!(job.top_p < 1)) return count;
  int kept = 0;
  Weight before = 0;
  for (int first = 0; first < count; first += kSampleThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const Weight weight = i < count ? row.WeightOf(LogitOf(memory.keys[i])) : 0;
    Pair all = {0, 0};
    const Pair through = ScanBlock({0, weight}, memory, &all);
    if (top_k) total = all.second;
    const bool stays =
        i < count && before + through.second - weight < WeightWanted(job.top_p, total);
    kept += __syncthreads_count(stays ? 1 : 0);
    before += all.second;
  }
  return kept;
}

// The least key that stays, whatever there is. `total`: the weight of the row.
template <int kBlocks>
__device__ __forceinline__ TokenKey KeepMany(const RowView& row, const SampleJob& job, bool top_k,
                                             Weight total, SampleMemory& memory, int& turn) {
  TokenKey least = 0;
  if (top_k) {
    least = Select<kBlocks>(0, {false, static_cast<Weight>(job.top_k)}, memory).least;
    if (job.top_p < 1) total = SumWeights<kBlocks>(row, least, memory, turn);
  }
  if (!(job.top_p < 1)) return least;
  return Select<kBlocks>(least, {true, WeightWanted(job.top_p, total)}, memory).least;
}

// The token of memory.row, in every thread of the team's first block. The others are done then:
// their memory is not looked at afterwards.
template <int kBlocks>
__device__ __noinline__ int32_t Draw(int32_t vocabulary, float of_thread, SampleMemory& memory,
                                     int turn) {
  const RowView row = memory.row;
  const SampleJob& job = memory.job;
  const bool top_k = job.top_k > 0 && job.top_k < vocabulary;
  const bool top_p = job.top_p < 1;
  Kept kept = {0, -INFINITY};
  if (job.min_p > 0) {
    kept.least_logit = static_cast<double>(row.max) +
                       static_cast<double>(job.temperature) * log(static_cast<double>(job.min_p));
  }
  if (top_k || top_p) {
    const int wanted = top_k ? job.top_k : kNucleus;
    Contribution staged = {kMaxSorted + 1, 0, 0};
    if (wanted <= kMostInRange) {
      const Range range = RangeOfBest<kBlocks>(row, of_thread, wanted, memory);
      staged = StageRange<kBlocks>(row, range, !top_k, memory);
    }
    const bool few = staged.count <= kMaxSorted &&
                     (top_k || staged.weight >= WeightWanted(job.top_p, staged.all));
    if (few) {
      const bool first = BlockTeam<kBlocks>::Rank() == 0;
      if (first) Collect<kBlocks>(memory);
      BlockTeam<kBlocks>::Sync();  // nobody needs the others any more
      if (!first) return -1;
      auto count = static_cast<int>(staged.count);
      SortKeys(count, memory);
      count = KeepFew(row, job, count, top_k, staged.all, memory);
      return DrawFew(count, kept, memory);
    }
    kept.least = KeepMany<kBlocks>(row, job, top_k, staged.all, memory, turn);
  }
  return DrawMany<kBlocks>(kept, memory);
}

// ---- kernels

struct SampleArguments {
  float* logits;  // (rows, vocabulary)
  int32_t vocabulary;
  int32_t slice;
  const SampleJob* jobs;
  SampleOutcome* outcomes;
};

// Block x of row y has the tokens from x * slice on.
__device__ __forceinline__ RowView SliceOf(const SampleArguments& arguments, int rank,
                                           const float* logits) {
  const int32_t begin = min(rank * arguments.slice, arguments.vocabulary);
  const int32_t size = min(arguments.slice, arguments.vocabulary - begin);
  return {logits + begin, nullptr, begin, size, 0, 0, 0, 1};
}

struct Header {
  int32_t token;
  int32_t non_finite;
  float logprob;
  int32_t top_count;
};

__device__ __forceinline__ void WriteHeader(const Header& header, SampleOutcome* outcome) {
  *reinterpret_cast<int4*>(outcome) =
      make_int4(header.token, header.non_finite, __float_as_int(header.logprob), header.top_count);
}

__device__ __forceinline__ bool IsUsable(const Largest& largest) {
  return largest.key != kBadKey && LogitOf(largest.key) != -INFINITY;
}

__device__ __forceinline__ void Keep(RowView row, const Largest& largest, SampleMemory& memory) {
  row.max = LogitOf(largest.key);
  row.likeliest = TokenOf(largest.key);
  row.lowest_of_threads = largest.lowest_of_threads;
  if (threadIdx.x == 0) memory.row = row;
  __syncthreads();
}

// In shared memory it takes no registers.
__device__ __forceinline__ const SampleJob& ReadJob(const SampleJob* from, SampleMemory& memory) {
  constexpr int kWords = sizeof(SampleJob) / sizeof(uint32_t);
  static_assert(kWords * sizeof(uint32_t) == sizeof(SampleJob) && kWords <= kSampleThreads);
  if (threadIdx.x < kWords) {
    reinterpret_cast<uint32_t*>(&memory.job)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(from)[threadIdx.x];
  }
  if (threadIdx.x == 0) memory.top_count = 0;
  __syncthreads();
  return memory.job;
}

template <int kBlocks>
__global__ void __launch_bounds__(kSampleThreads, kBlocks == 1 ? 1 : 2)
    SampleKernel(SampleArguments arguments) {
  using Team = BlockTeam<kBlocks>;
  extern __shared__ __align__(16) uint8_t shared[];
  SampleMemory& memory = *reinterpret_cast<SampleMemory*>(shared);
  GridDependencyWait();
  GridLaunchDependents();
  Team::Arrive();
  const SampleJob& job = ReadJob(arguments.jobs + blockIdx.y, memory);
  SampleOutcome* const outcome = arguments.outcomes + blockIdx.y;
  float* const all = arguments.logits + static_cast<int64_t>(job.logits_row) * arguments.vocabulary;
  RowView row = SliceOf(arguments, Team::Rank(), all);
  float* logits = all + row.begin;
  if constexpr (kBlocks > 1) {
    float* const copy = reinterpret_cast<float*>(shared + sizeof(SampleMemory));
    CopySlice(logits, row.size, copy);
    row.logits = logits = copy;
  }
  Team::Wait();  // peers run

  int turn = 0;
  Largest largest = FindLargestByQuads<kBlocks>(row, memory, turn);
  const bool usable = IsUsable(largest);
  if (usable) {
    if (job.top_logprobs >= 0) {
      Keep(row, largest, memory);
      ReportTop<kBlocks>(largest.of_thread, outcome, memory, turn++);
    }
    if (job.seen_count > 0 || job.allowed != nullptr) {
      Adjust<kBlocks>(row, logits, job);
      largest = FindLargestByQuads<kBlocks>(row, memory, turn);
    }
  }
  const bool drawable = usable && IsUsable(largest);
  int32_t token = drawable ? TokenOf(largest.key) : -1;
  if (drawable && job.temperature > 0) {
    row.inverse_temperature = fminf(1.0f / job.temperature, 1e30f);
    Keep(row, largest, memory);
    token = Draw<kBlocks>(arguments.vocabulary, largest.of_thread, memory, turn);
  } else {
    Team::Sync();  // the first block may still collect what others staged
  }
  if constexpr (kBlocks == 1) {
    if (usable) TakeBackPenalties(logits, job);
  }
  if (Team::Rank() == 0 && threadIdx.x == 0) {
    Header header = {token, token < 0 ? 1 : 0, 0, token < 0 ? 0 : memory.top_count};
    if (token >= 0 && job.top_logprobs >= 0) {
      header.logprob = static_cast<float>(static_cast<double>(all[token]) - memory.log_sum);
    }
    WriteHeader(header, outcome);
  }
}

template <int kBlocks>
__global__ void __launch_bounds__(kSampleThreads) GreedyKernel(SampleArguments arguments) {
  using Team = BlockTeam<kBlocks>;
  extern __shared__ __align__(16) uint8_t shared[];
  SampleMemory& memory = *reinterpret_cast<SampleMemory*>(shared);
  GridDependencyWait();
  GridLaunchDependents();
  Team::Arrive();
  const int64_t at = arguments.jobs[blockIdx.y].logits_row;
  const RowView row =
      SliceOf(arguments, Team::Rank(), arguments.logits + at * arguments.vocabulary);
  Team::Wait();  // peers run
  int turn = 0;
  // The logits lie far away and are read once: twenty of a thread at a time.
  const Largest largest = FindLargest<kBlocks, 20>(row, memory, turn);
  if (Team::Rank() != 0 || threadIdx.x != 0) return;
  const bool usable = IsUsable(largest);
  WriteHeader({usable ? TokenOf(largest.key) : -1, usable ? 0 : 1, 0, 0},
              arguments.outcomes + blockIdx.y);
}

template <typename Kernel>
cudaError_t LaunchRows(const Context& context, Kernel* kernel, const SamplingShape& shape, int rows,
                       const SampleArguments& arguments) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(rows));
  config.blockDim = dim3(kSampleThreads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = context.stream;
  config.attrs = attributes;
  if (context.use_pdl) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.blocks > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(shape.blocks);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, arguments);
}

}  // namespace

cudaError_t PrepareSampling(const Context& context) {
  if (context.code_major < 9) return cudaSuccess;
  const cudaError_t allowed =
      AllowSharedBytes(SampleKernel<kSampleBlocks>, static_cast<size_t>(context.max_shared_bytes));
  if (allowed != cudaSuccess) return allowed;
  // Else the driver may leave room for one block only, where two fit.
  return cudaFuncSetAttribute(SampleKernel<kSampleBlocks>,
                              cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

cudaError_t LaunchSample(const Context& context, float* logits, int64_t vocabulary,
                         const SampleJob* jobs, int count, bool greedy, SampleOutcome* outcomes) {
  const SamplingShape shape =
      greedy ? ChooseGreedy(context.code_major, vocabulary)
             : ChooseSampling(context.code_major, context.max_shared_bytes, vocabulary);
  const SampleArguments arguments = {logits, static_cast<int32_t>(vocabulary), shape.slice, jobs,
                                     outcomes};
  if (greedy) {
    return shape.blocks > 1
               ? LaunchRows(context, GreedyKernel<kSampleBlocks>, shape, count, arguments)
               : LaunchRows(context, GreedyKernel<1>, shape, count, arguments);
  }
  return shape.blocks > 1
             ? LaunchRows(context, SampleKernel<kSampleBlocks>, shape, count, arguments)
             : LaunchRows(context, SampleKernel<1>, shape, count, arguments);
}

}  // namespace layercake::kernels::cuda
