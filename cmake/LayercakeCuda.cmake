# The CUDA backend (kernels/cuda) is built where there is a CUDA compiler; without one everything
# else builds as ever. The runtime is linked statically, so programs start on machines without CUDA.
set(LAYERCAKE_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (when nvcc is found), ON, OFF")
set_property(CACHE LAYERCAKE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(LAYERCAKE_CUDA_ARCHITECTURES "80-real;86-real;89-real;90a-real;90-virtual" CACHE STRING
  "GPU architectures to build for (CMAKE_CUDA_ARCHITECTURES)")

set(LAYERCAKE_HAS_CUDA OFF)
# nvcc knows neither the sanitizers' nor the fuzzer's options.
if(LAYERCAKE_CUDA STREQUAL "AUTO" AND (LAYERCAKE_SANITIZE OR LAYERCAKE_FUZZ))
  message(STATUS "CUDA backend: left out of a build with sanitizers or fuzz targets")
elseif(NOT LAYERCAKE_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES ${LAYERCAKE_CUDA_ARCHITECTURES})
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    # CMake before 3.26 does not know that nvcc has C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    # Else -isystem /usr/include comes before the headers of libstdc++, which must come first.
    list(APPEND CMAKE_CUDA_IMPLICIT_INCLUDE_DIRECTORIES ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(LAYERCAKE_HAS_CUDA ON)
    message(STATUS "CUDA backend: ${CUDAToolkit_VERSION} for ${LAYERCAKE_CUDA_ARCHITECTURES}")
  elseif(LAYERCAKE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LAYERCAKE_CUDA is ON and no CUDA compiler was found; put nvcc on PATH or "
      "set CMAKE_CUDA_COMPILER")
  else()
    message(STATUS "CUDA backend: left out, no CUDA compiler found")
  endif()
endif()
