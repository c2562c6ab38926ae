// The draw: the largest logit / temperature + Gumbel noise among the tokens kept, the lowest id on
// ties.
#pragma once

#include "kernels/cuda/sampling_row.cuh"

namespace layercake::kernels::cuda {

// The rule's cuts as one bound on keys, and the smallest logit that min_p keeps.
struct Kept {
  TokenKey least;
  double least_logit;

  __device__ __forceinline__ bool Has(float logit, int32_t token, float max) const {
    return KeyOf(logit, token) >= least &&
           (static_cast<double>(logit) >= least_logit || logit >= max);
  }
};

__device__ __forceinline__ int OrderedInt(float value) {
  const int bits = __float_as_int(value);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}
__device__ __forceinline__ float FloatOf(int ordered) {
  return __int_as_float(ordered >= 0 ? ordered : ordered ^ 0x7fffffff);
}

__device__ __forceinline__ Contender ContenderOf(float logit, int32_t token, uint32_t bits,
                                                 float inverse_temperature) {
  const float scaled = logit * inverse_temperature;
  return {scaled + GumbelNear(bits), Contender::ErrorOf(scaled), logit, bits, token};
}

// The best of all threads' contenders, in every thread of the block.
__device__ __forceinline__ Contender BestOfBlock(const Contender& contender, float temperature,
                                                 SampleMemory& memory) {
  if (threadIdx.x == 0) {
    memory.bar = OrderedInt(-INFINITY);
    memory.winner = Contender::None();
  }
  __syncthreads();
  if (contender.least() > -INFINITY) atomicMax(&memory.bar, OrderedInt(contender.least()));
  __syncthreads();
  const bool left =
      contender.token != INT32_MAX && !(contender.value + contender.error < FloatOf(memory.bar));
  bool wins = left;
  if (__syncthreads_count(left ? 1 : 0) > 1) {
    BestToken best = {-INFINITY, INT32_MAX};
    if (left) {
      best.Offer(Perturbed(contender.logit, contender.bits, temperature), contender.token);
    }
    best = ReduceBest(best, memory);
    wins = left && best.token == contender.token;
  }
  if (wins) memory.winner = contender;
  __syncthreads();
  return memory.winner;
}

// From the first `count` of this block's keys, in every thread of it.
__device__ __noinline__ int32_t DrawFew(int count, Kept kept, SampleMemory& memory) {
  const SampleJob& job = memory.job;
  const RowView row = memory.row;
  Contender best = Contender::None();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
    const int32_t token = TokenOf(memory.keys[i]);
    const float logit = LogitOf(memory.keys[i]);
    if (!kept.Has(logit, token, row.max)) continue;
    const auto id = static_cast<uint32_t>(token);
    const uint32_t bits = GumbelBits(job.seed, job.position, id / 4).word[id % 4];
    best.Offer(ContenderOf(logit, token, bits, row.inverse_temperature), job.temperature);
  }
  return BestOfBlock(best, job.temperature, memory).token;
}

// Offers the tokens of one quad that are kept and can still win.
template <int kBlocks>
__device__ __forceinline__ void OfferQuad(const RowView& row, const SampleJob& job, int32_t quad,
                                          const Kept& kept, float bar, Contender& best) {
  const Words4 bits =
      GumbelBits(job.seed, job.position, static_cast<uint32_t>(row.begin / 4 + quad));
  float logits[4];
  ReadQuad<kBlocks>(row, quad, logits);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float logit = logits[j];
    const float scaled = logit * row.inverse_temperature;
    const float most = scaled + GumbelBound(bits.word[j]) + Contender::ErrorOf(scaled);
    if (logit == -INFINITY || most < bar || most < best.least()) continue;
    const int32_t token = row.begin + 4 * quad + j;
    if (!kept.Has(logit, token, row.max)) continue;
    best.Offer(ContenderOf(logit, token, bits.word[j], row.inverse_temperature), job.temperature);
  }
}

// From the whole row, in every thread of the team's first block.
template <int kBlocks>
__device__ __noinline__ int32_t DrawMany(Kept kept, SampleMemory& memory) {
  const SampleJob& job = memory.job;
  const RowView row = memory.row;
  using Team = BlockTeam<kBlocks>;
  // The likeliest token sets a bar: whatever its noise, it needs none that most others can reach.
  const auto id = static_cast<uint32_t>(row.likeliest);
  const float bar =
      ContenderOf(row.max, row.likeliest, GumbelBits(job.seed, job.position, id / 4).word[id % 4],
                  row.inverse_temperature)
          .least();
  Contender best = Contender::None();
  const int32_t quads = (row.size + 3) / 4;
  // Quads with a token that could win are listed first, so that noise is made by full warps.
  for (int32_t chunk = 0; chunk < quads; chunk += kListedQuads) {
    if (threadIdx.x == 0) memory.listed = 0;
    __syncthreads();
    const int32_t end = min(chunk + kListedQuads, quads);
#pragma unroll 2
    for (int32_t quad = chunk + static_cast<int32_t>(threadIdx.x); quad < end;
         quad += kSampleThreads) {
      float logits[4];
      ReadQuad<kBlocks>(row, quad, logits);
      const float most = fmaxf(fmaxf(logits[0], logits[1]), fmaxf(logits[2], logits[3]));
      const float scaled = most * row.inverse_temperature;
      if (most == -INFINITY || scaled + kMostGumbel + Contender::ErrorOf(scaled) < bar) continue;
      memory.quads[atomicAdd(&memory.listed, 1u)] = static_cast<uint16_t>(quad - chunk);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < memory.listed; i += kSampleThreads) {
      OfferQuad<kBlocks>(row, job, chunk + memory.quads[i], kept, bar, best);
    }
    __syncthreads();
  }
  best = BestOfBlock(best, job.temperature, memory);
  if (threadIdx.x == 0) *Team::At(memory.winners + Team::Rank(), 0) = best;
  Team::Sync();
  if (Team::Rank() != 0) return -1;
  best = memory.winners[0];
  for (int block = 1; block < kBlocks; ++block) {
    const Contender other = memory.winners[block];
    if (other.token != INT32_MAX) best.Offer(other, job.temperature);
  }
  return best.token;
}

}  // namespace layercake::kernels::cuda
