// What launches need to know of a device (launch.h).
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace layercake::kernels::cuda {

// Everything of a context but its stream, for `device`, which becomes the calling thread's. A build
// without code that the device runs: cudaErrorNoKernelImageForDevice or
// cudaErrorInvalidDeviceFunction.
cudaError_t DescribeDevice(int device, Context* context);

}  // namespace layercake::kernels::cuda
