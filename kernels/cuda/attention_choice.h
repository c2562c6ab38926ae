// The kernels of other files (bf16 and q8_0 caches, the usual heads, Hopper), as the launchers for
// all caches choose among them.
#pragma once

#include "kernels/cuda/attention.h"

namespace layercake::kernels::cuda {

using DecodeKernel = void (*)(StepView, KvView, AttentionArguments, int);
struct DecodeChoice {
  DecodeKernel kernel = nullptr;  // null: none takes this cache
  int shared_bytes = 0;
};
DecodeChoice ChooseBf16Decode(KvElement element, int head_dim);
// For `group` query heads to a kv head.
DecodeChoice ChooseDirectDecode(KvElement element, int head_dim, int group);

using TiledKernel = void (*)(StepView, KvView, AttentionArguments);
struct TiledChoice {
  TiledKernel kernel = nullptr;
  int shared_bytes = 0;
};
TiledChoice ChooseBf16Tiled(KvElement element, int head_dim);
// For caches of halves where Hopper's code runs.
TiledChoice ChooseHopperTiled(const Context& context, KvElement element, int head_dim);

// The head widths that they are made for; others take the next one.
inline constexpr int kBf16HeadDims[] = {64, 96, 128, 256};

}  // namespace layercake::kernels::cuda
