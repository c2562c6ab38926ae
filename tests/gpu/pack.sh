#!/usr/bin/env bash
# Makes a folder that runs on another machine with a GPU, without a compiler or gRPC there: the
# installed programs, the GPU tests and benchmarks, and the shared libraries that they need.
#
#   tests/gpu/pack.sh BUILD FOLDER
#
# BUILD: a build folder with CUDA, LAYERCAKE_TESTS and LAYERCAKE_BENCHMARKS, all of it built.
# There: FOLDER/check.sh (tests), FOLDER/measure.sh, kills.sh and two_gpus.sh (tables) with
# FOLDER/bin. A test or benchmark that is started by hand finds its libraries with
# LD_LIBRARY_PATH=FOLDER/lib.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1 folder=$2
cmake --install "$build" --prefix "$folder" --strip > /dev/null
mkdir -p "$folder/lib"
cp "$here"/{check,measure,kills,two_gpus}.sh "$here/table.awk" "$folder"
for program in "$build"/kernels/cuda/cuda_*_test "$build"/tests/gpu/cuda_channel_test \
    "$build"/bin/{cuda_*,device_hop,peer_death}_benchmark; do
  case $program in *cuda_plan_test | *cuda_layout_test) continue ;; esac   # these need no GPU
  [[ -x $program && -f $program ]] || { echo "not built: $program" >&2; exit 1; }
  strip -o "$folder/bin/$(basename "$program")" "$program"
  # What every Linux system brings with its compiler's run time stays where it is.
  ldd "$program" | awk '$3 ~ /^\// {print $3}' |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcuda)\.so' |
    while read -r library; do
      [[ -e $folder/lib/$(basename "$library") ]] || cp -L "$library" "$folder/lib/"
    done
done
du -sh "$folder"
