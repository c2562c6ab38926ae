// Kernels of peer_death_benchmark. All of them end by themselves.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace layercake::testing {

// to[0, count) = value.
cudaError_t LaunchFill(uint32_t* to, size_t count, uint32_t value, cudaStream_t stream);
// The same again and again for `nanoseconds`.
cudaError_t LaunchFillFor(uint32_t* to, size_t count, uint32_t value, uint64_t nanoseconds,
                          cudaStream_t stream);
// One thread that goes round until *stop is not 0, for `nanoseconds` at most. `stop` is host memory
// as the device sees it.
cudaError_t LaunchSpin(const uint32_t* stop, uint64_t nanoseconds, cudaStream_t stream);
// Ends the context with an error that nothing clears.
cudaError_t LaunchTrap(cudaStream_t stream);

}  // namespace layercake::testing
