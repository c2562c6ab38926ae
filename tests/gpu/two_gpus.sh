#!/usr/bin/env bash
# A chain over two GPUs, measured. Builds nothing; below six minutes, as each part takes what its
# name says and what does not begin in time is left out, aloud.
#
#   tests/gpu/two_gpus.sh [--parts LIST] BIN Q4_MODEL [BF16_MODEL]
#
# LIST, in this order whatever the order given (default: all):
#   hops      between the two cards, by kind of channel (device_hop_benchmark, when it was built)
#   small     LAYERCAKE_SMALL_MODEL, when set: the same text from the CPU and from the cards by each
#             channel, hashes side by side
#   text      the text of Q4_MODEL from one card
#   q4        its text, decoding, prefill and 4,096 tokens of context on two stages
#   channels  its text and decoding without device-to-device copies: pinned_host, ucx
#   four      its text from four stages on the two cards
#   bf16      decoding and prefill of BF16_MODEL, when given
#
# BIN: the folder of the programs; models: GGUF files, best in the page cache. $OUT (default: a
# temporary folder) gets two_gpus.txt, what is printed, and two_gpus.tar.gz, logs and JSON lines.
# LAYERCAKE_GPUS_LIMIT: seconds for all of it (default 350).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
parts=hops,small,text,q4,channels,four,bf16
[[ ${1:-} != --parts ]] || { parts=$2; shift 2; }
[[ $# -ge 2 ]] || { sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 2; }
for part in ${parts//,/ }; do
  [[ ,hops,small,text,q4,channels,four,bf16, == *",$part,"* ]] || { echo "no part $part"; exit 2; }
done
bin=$1 q4=$2 bf16=${3:-}
small=${LAYERCAKE_SMALL_MODEL:-}
limit=${LAYERCAKE_GPUS_LIMIT:-350}
kept=${OUT:-$(mktemp -d)}
logs=$(mktemp -d)
two=cuda:0,cuda:1

count=$(nvidia-smi -L | wc -l)
[[ $count -ge 2 ]] || { echo "this machine has $count GPUs; two are needed"; exit 1; }
exec > >(tee "$kept/two_gpus.txt") 2>&1
trap 'tar -C "$logs" -czf "$kept/two_gpus.tar.gz" . && rm -rf "$logs"; echo "[$SECONDS s] logs: $kept"' EXIT
nvidia-smi topo -m 2> /dev/null | head -4

asked() { [[ ,$parts, == *",$1,"* ]]; }
say() { echo "[$SECONDS s] $*"; }
# within SECONDS COMMAND...: as long as that and the whole's limit allow.
within() {
  local most=$1 left=$((limit - SECONDS))
  shift
  ((left >= 10)) || { say "left out, no time: $*"; return 1; }
  timeout $((most < left ? most : left)) "$@" || say "failed with $?: $*"
}
# measure SECONDS MODEL DEVICES TRANSPORT PARTS
measure() {
  say "$(basename "$2") on $3 by $4: $5"
  OUT=$logs within "$1" "$here/measure.sh" "$bin" "${@:2}"
}
# What a layout makes of each prompt, on one line.
hashes() {
  printf '  %-14s %-17s' "$1" "$2"
  OUT=$logs within 45 "$here/measure.sh" "$bin" "$small" "$1" "$2" text | sed -n 's/^text .*: / /p' |
    tr '\n' ' '
  echo
}

if asked hops && [[ -x $bin/device_hop_benchmark ]]; then
  say "hops between two cards"
  # Beside the programs of pack.sh lie the libraries of what is not installed.
  LD_LIBRARY_PATH=$here/lib within 60 "$bin/device_hop_benchmark"
fi
if asked small && [[ -n $small ]]; then
  say "text of $(basename "$small"), a hash for each prompt: all lines should agree (cpu and cards may" \
    "part where two tokens are as good as equal, cards among each other may not)"
  LAYERCAKE_MEASURE_KV=1G hashes cpu auto
  hashes cuda:0 auto
  for transport in require:cuda_ipc pinned_host ucx; do hashes "$two" "$transport"; done
fi
asked text && measure 60 "$q4" cuda:0 auto text
asked q4 && measure 130 "$q4" "$two" auto text,decode,prefill,context
if asked channels; then
  for transport in pinned_host ucx; do
    LAYERCAKE_MEASURE_STREAMS=1,8,32 measure 60 "$q4" "$two" "$transport" text,decode
  done
fi
asked four && measure 60 "$q4" cuda:0,cuda:1,cuda:0,cuda:1 auto text
asked bf16 && [[ -n $bf16 ]] && measure 120 "$bf16" "$two" auto decode,prefill
say "done. The lines \"text\" of one model must agree: the same tokens whatever the cut and the channel."
