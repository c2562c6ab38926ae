// Runs plans made of hostile bytes through the checks, and CHECKs what they promise to the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace layercake::stage_worker {

// `bytes`: plans, each behind one byte that says its length.
void RunPlanFuzz(const uint8_t* bytes, size_t size);

}  // namespace layercake::stage_worker
