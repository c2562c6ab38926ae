#!/usr/bin/env bash
# Installs what the tests need, builds, runs every test. ctest's closing lines come last.
#   LAYERCAKE_BUILD_DIR   the build folder (default: build)
#   LAYERCAKE_JOBS        compilers at once (default: the cores)
#   LAYERCAKE_CUDA_ARCHITECTURES   for the CUDA backend, built where nvcc is (default: this machine's
#                         GPU; without one a single architecture, to see that it compiles)
# Arguments go to ctest: tests/run.sh -R Scheduler
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${LAYERCAKE_BUILD_DIR:-$root/build}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/layercake

"$root/deploy/packages.sh" --tests
model=$("$root/deploy/fetch_smollm2.sh") || model=   # the tests that want it skip aloud

# The Python client's packages; its test skips aloud without them.
python=$cache/python/bin/python
if ! "$python" -c 'import grpc, grpc_tools' 2> /dev/null; then
  echo "Getting grpcio for the Python client, into $cache/python" >&2
  { python3 -m venv "$cache/python" &&
    "$python" -m pip install --quiet --disable-pip-version-check \
      --requirement "$root/clients/python/requirements.txt"; } >&2 ||
    echo "pip cannot install grpcio here: the Python client's test will be skipped" >&2
fi

export LAYERCAKE_TEST_MODEL=$model
architectures=auto
nvidia-smi -L > /dev/null 2>&1 || architectures=90a-real
options=(-DLAYERCAKE_TESTS=ON "-DLAYERCAKE_PYTHON_ENVIRONMENT=$cache/python"
  "-DLAYERCAKE_CUDA_ARCHITECTURES=${LAYERCAKE_CUDA_ARCHITECTURES:-$architectures}")
mkdir -p "$build"
cmake -S "$root" -B "$build" -G Ninja "${options[@]}" > "$build/configure.log" 2>&1 ||
  { cat "$build/configure.log"; exit 1; }
ninja -C "$build" -j "${LAYERCAKE_JOBS:-$(nproc)}" --quiet

cd "$build"
exec ctest -j2 --output-on-failure --no-tests=error "$@"
