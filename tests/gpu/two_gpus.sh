#!/usr/bin/env bash
# A chain over two GPUs, measured. Builds nothing; below eight minutes, as each part takes what its
# name says at most and what does not begin in time is left out, aloud. Ends with one table for each
# model: streams and prompts by kinds of channel, with what the other kinds lose.
#
#   tests/gpu/two_gpus.sh [--parts LIST] BIN Q4_MODEL [BF16_MODEL]
#
# LIST, in this order whatever the order given (default: all), each with its limit in seconds:
#   deaths   45   what CUDA does when one of two processes dies (peer_death_benchmark)
#   hops     60   between the two cards, by kind of channel (device_hop_benchmark)
#   small   225   LAYERCAKE_SMALL_MODEL, when set (one file or several): the same text from the CPU
#                 and from the cards by each channel, hashes side by side; the limit is for each
#   text     60   the text of Q4_MODEL from one card
#   q4      130   its text, decoding, prefill and 4,096 tokens of context on two stages
#   channels 120  its text, decoding and prefill without device-to-device copies: pinned_host, ucx
#   four     60   its text from four stages on the two cards
#   kill     90   16 streams of it while each process of the chain is killed in turn (kills.sh)
#   bf16    120   decoding and prefill of BF16_MODEL, when given
#   bf16channels 150   the same without device-to-device copies
#
# BIN: the folder of the programs; models: GGUF files, best in the page cache. $OUT (default: a
# temporary folder) gets two_gpus.txt, what is printed, and two_gpus.tar.gz, logs and JSON lines.
# LAYERCAKE_GPUS_LIMIT: seconds for all of it (default 470). LAYERCAKE_GPUS_DEVICES: others than
# cuda:0,cuda:1; "cpu,cpu" tries the script where there is no GPU.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
all=deaths,hops,small,text,q4,channels,four,kill,bf16,bf16channels
parts=$all
[[ ${1:-} != --parts ]] || { parts=$2; shift 2; }
[[ $# -ge 2 ]] || { sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 2; }
for part in ${parts//,/ }; do
  [[ ,$all, == *",$part,"* ]] || { echo "no part $part"; exit 2; }
done
bin=$1 q4=$2 bf16=${3:-}
small=${LAYERCAKE_SMALL_MODEL:-}
limit=${LAYERCAKE_GPUS_LIMIT:-470}
two=${LAYERCAKE_GPUS_DEVICES:-cuda:0,cuda:1}
one=${two%%,*}
kept=${OUT:-$(mktemp -d)}
logs=$(mktemp -d)

cards=0
if [[ $two == *cuda* ]]; then
  cards=$(nvidia-smi -L 2> /dev/null | grep -c ^GPU)
  [[ $cards -ge 2 ]] || { echo "this machine has $cards GPUs; two are needed"; exit 1; }
fi
exec > >(tee "$kept/two_gpus.txt") 2>&1
trap 'tar -C "$logs" -czf "$kept/two_gpus.tar.gz" . && rm -rf "$logs"; echo "[$SECONDS s] logs: $kept"' EXIT
[[ $cards -eq 0 ]] || nvidia-smi topo -m 2> /dev/null | head -4

# part NAME [NEEDED]: whether it is asked for and possible; says what the one before took.
took=() now= began=0
part() {
  [[ -z $now ]] || took+=("$now $((SECONDS - began)) s")
  now=
  [[ ,$parts, == *",$1,"* && -n ${2-x} ]] || return 1
  now=$1 began=$SECONDS
}
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
  OUT=$logs within "$1" "$here/measure.sh" "$bin" "${@:2}" |
    tee -a "$logs/$(basename "$2" .gguf).measured"
}
# hashes MODEL DEVICES TRANSPORT: what that makes of each prompt, on one line.
hashes() {
  printf '  %-14s %-17s' "$2" "$3"
  OUT=$logs LAYERCAKE_MEASURE_KV=256M LAYERCAKE_MEASURE_FLAGS="--context 512" \
    within 45 "$here/measure.sh" "$bin" "$@" text |
    awk '/^text / { text = text "  " $NF } !/^\[/ { last = $0 } END { print text != "" ? text : "  " last }'
}
# agreement FILE: the lines "text" that measure.sh printed of one model, a hash for each prompt.
agreement() {
  awk -v model="$(basename "$1" .measured)" '
    /^text / { layout = $2 " " $3; texts[layout] = texts[layout] " " $NF }
    END {
      for (layout in texts) { ++layouts; if (!seen[texts[layout]]++) ++different }
      if (layouts == 0) exit
      printf "text of %s: %s\n", model, different == 1 ? "the same from " layouts " layouts" : "DIFFERS"
      if (different > 1) for (layout in texts) print "  " layout texts[layout]
    }' "$1"
}

# Beside the programs of pack.sh lie the libraries of what is not installed.
if [[ $cards -ge 2 ]] && part deaths; then
  say "what CUDA does when a process dies"
  LD_LIBRARY_PATH=$here/lib within 45 "$bin/peer_death_benchmark" 0 1
fi
if [[ $cards -ge 2 ]] && part hops; then
  say "hops between two cards"
  LD_LIBRARY_PATH=$here/lib within 60 "$bin/device_hop_benchmark"
fi
if part small "$small"; then
  direct=auto
  [[ $cards -eq 0 ]] || direct=require:cuda_ipc
  for model in $small; do
    say "text of $(basename "$model"), a hash for each prompt: all lines should agree (cpu and cards" \
      "may part where two tokens are as good as equal, cards among each other may not)"
    hashes "$model" cpu auto
    hashes "$model" "$one" auto
    for transport in $direct pinned_host ucx; do hashes "$model" "$two" "$transport"; done
  done
fi
part text && measure 60 "$q4" "$one" auto text
part q4 && measure 130 "$q4" "$two" auto text,decode,prefill,context
if part channels; then
  for transport in pinned_host ucx; do
    LAYERCAKE_MEASURE_STREAMS=1,8,32 measure 60 "$q4" "$two" "$transport" text,decode,prefill
  done
fi
part four && measure 60 "$q4" "$two,$two" auto text
if part kill; then
  say "kills under 16 streams"
  OUT=$logs within 90 "$here/kills.sh" "$bin" "$q4" "$two"
fi
part bf16 "$bf16" && measure 120 "$bf16" "$two" auto decode,prefill
if part bf16channels "$bf16"; then
  for transport in pinned_host ucx; do
    LAYERCAKE_MEASURE_STREAMS=1,8,32 measure 75 "$bf16" "$two" "$transport" decode,prefill
  done
fi
part end
lines=("$logs"/*.jsonl)
[[ ! -s ${lines[0]} ]] || awk -f "$here/table.awk" "${lines[@]}"
echo
for measured in "$logs"/*.measured; do [[ ! -s $measured ]] || agreement "$measured"; done
list=$(printf ', %s' "${took[@]}")
say "done: ${list:2}"
