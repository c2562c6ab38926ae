#!/usr/bin/env bash
# From a fresh Debian 12 or Ubuntu 24.04 to an answer: installs packages, builds, gets a small model,
# serves it with a coordinator and three stage workers, asks a question. Run as root or with sudo at
# hand. A second run takes seconds.
#
#   deploy/quickstart.sh [--model FILE] [--stages N] [QUESTION]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

model=
stages=3
question="Why is the sky blue? Answer in two sentences."
while [[ $# -gt 0 ]]; do
  case $1 in
    --model) model=${2:?--model needs a file}; shift 2 ;;
    --stages) stages=${2:?--stages needs a number}; shift 2 ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "unknown option $1; see $0 --help" >&2; exit 2 ;;
    *) question=$1; shift ;;
  esac
done

say() { printf '\n== %s\n' "$*" >&2; }

say "Packages"
"$root/deploy/packages.sh"

build=${LAYERCAKE_BUILD_DIR:-$root/build}
options=(-DLAYERCAKE_TESTS=OFF)
device=cpu
if nvidia-smi -L > /dev/null 2>&1; then
  gpu=yes
else
  gpu=
  # Nothing here could run it: one architecture shows that it builds.
  options+=(-DLAYERCAKE_CUDA_ARCHITECTURES=90a-real)
fi
if command -v nvcc > /dev/null; then
  [[ -n $gpu ]] && device=auto
  say "Build with CUDA, in $build (answers come from: $device)"
else
  say "CPU build, in $build"
  [[ -z $gpu ]] || echo "There is a GPU, but no nvcc: install the CUDA toolkit and run this again" >&2
fi
if [[ ! -f $build/build.ninja ]]; then
  cmake -S "$root" -B "$build" -G Ninja "${options[@]}" > "$build.configure.log" 2>&1 || {
    cat "$build.configure.log" >&2
    exit 1
  }
  rm -f "$build.configure.log"
fi
# A compiler of gRPC code takes most of a gigabyte.
jobs=$(nproc)
by_memory=$(awk '/MemAvailable/ {print int($2 / 1000000)}' /proc/meminfo)
[[ $by_memory -ge 1 && $by_memory -lt $jobs ]] && jobs=$by_memory
ninja -C "$build" -j "$jobs" layercake layercake-worker layercake-coordinator >&2

if [[ -z $model ]]; then
  say "Model"
  model=$("$root/deploy/fetch_smollm2.sh")
fi

say "Serving $model with $stages stage workers"
log=$(mktemp)
server_pid=
clean_up() {
  if [[ -n $server_pid ]] && kill -INT "$server_pid" 2> /dev/null; then
    wait "$server_pid" || true
  fi
  rm -f "$log"
}
trap clean_up EXIT
"$build/bin/layercake" serve "$model" --stages "$stages" --devices "$device" \
  --listen 127.0.0.1:0 --log-level warn \
  > "$log" &
server_pid=$!
address=
while [[ -z $address ]]; do
  kill -0 "$server_pid" 2> /dev/null || { wait "$server_pid" || exit $?; exit 1; }
  address=$(sed -n 's/^ *gRPC on //p' "$log")
  [[ -n $address ]] || sleep 0.1
done

say "$question"
"$build/bin/layercake" run --server "$address" --temperature 0 --max-tokens 200 "$question"
"$build/bin/layercake" status --server "$address" >&2

cat >&2 << END

What to try next:
  $build/bin/layercake run "$model"                      a conversation
  $build/bin/layercake serve "$model" --stages $stages         the server, until Ctrl-C
  $build/bin/layercake bench "$model" --stages $stages         tokens per second
  $build/bin/layercake inspect "$model"                  what is in the file
END
