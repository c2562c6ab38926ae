#!/usr/bin/env bash
# A chain over two GPUs, measured: hops by channel kind, the table of decoding and prefill, the same
# without device-to-device copies, four stages on the two cards. Builds nothing; about six minutes.
#
#   tests/gpu/two_gpus.sh BIN Q4_MODEL [BF16_MODEL]
#
# BIN: the folder of the programs, and of device_hop_benchmark when it was built. Models: GGUF files,
# best in the page cache. Logs and JSON lines go to $OUT (default: a temporary folder).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$1 q4=$2 bf16=${3:-}
export OUT=${OUT:-$(mktemp -d)}
two=cuda:0,cuda:1

count=$(nvidia-smi -L | wc -l)
[[ $count -ge 2 ]] || { echo "this machine has $count GPUs; two are needed"; exit 1; }
nvidia-smi topo -m 2> /dev/null | head -4

if [[ -x $bin/device_hop_benchmark ]]; then
  echo "== hops between two cards"
  timeout 60 "$bin/device_hop_benchmark"
fi

measure() { timeout "$1" "$here/measure.sh" "$bin" "${@:2}"; }
measure 90 "$q4" cuda:0 auto text
measure 150 "$q4" "$two" auto text,decode,prefill,context
for transport in pinned_host ucx; do
  LAYERCAKE_MEASURE_STREAMS=1,8,32 measure 90 "$q4" "$two" "$transport" text,decode,prefill
done
measure 60 "$q4" cuda:0,cuda:1,cuda:0,cuda:1 auto text
[[ -z $bf16 ]] || measure 150 "$bf16" "$two" auto decode,prefill
echo "The lines \"text\" of one model must agree: the same tokens whatever the cut and the channel."
