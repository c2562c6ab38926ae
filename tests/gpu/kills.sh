#!/usr/bin/env bash
# What 16 streams, `layercake serve` and the devices see when a process of the chain is killed
# (SIGKILL): a row for each process. Nothing takes its place yet, so what has to be true is: every
# stream ends with an error that names who was killed, none hangs, all memory comes back, and a new
# `serve` on the same port and devices answers with the same text. Builds nothing; 20 s a row at most.
#
#   tests/gpu/kills.sh BIN MODEL DEVICES [TRANSPORT]
#
# BIN: the folder of the programs. DEVICES: as --devices, one per stage (cuda:0,cuda:1; cpu,cpu). The
# KV cache takes LAYERCAKE_KILLS_KV of each stage (default 4G).
# Logs go to $OUT (default: a temporary folder). Exit code 1: something of that was not so.
set -uo pipefail
bin=$1 model=$2 devices=$3 transport=${4:-auto}
stages=$(tr ',' '\n' <<< "$devices" | wc -l)
address=127.0.0.1:${LAYERCAKE_MEASURE_PORT:-7171}
streams=16
patience=12
out=${OUT:-$(mktemp -d)}/kills
mkdir -p "$out"
wrong=0

since() { awk "BEGIN { printf \"%.2f\", $EPOCHREALTIME - $1 }"; }
# until_true SECONDS COMMAND...: asks again and again; false after so long.
until_true() {
  local most=$1 began=$EPOCHREALTIME
  shift
  until "$@"; do
    awk "BEGIN { exit !($EPOCHREALTIME - $began < $most) }" || return 1
    sleep 0.02
  done
}
# Those who wait to be reaped are gone.
gone() {
  local pid
  for pid in "$@"; do
    [[ ! -r /proc/$pid/stat ]] || grep -q ') Z ' "/proc/$pid/stat" 2> /dev/null || return 1
  done
}
# MiB that are taken on all devices; nothing without GPUs.
taken() {
  [[ $devices != *cuda* ]] ||
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ n += $1 } END { print n }'
}
memory_back() { (($(taken) <= before + 64)); }

serving() { "$bin/layercake" status --server "$address" > "$out/status" 2>&1 && grep -q ^serving "$out/status"; }
# Starts `serve`; sets `server`, `workers` (by stage) and `ready` (seconds).
start() {
  local began=$EPOCHREALTIME
  rm -f "$out"/serve.{end,pid}
  (
    "$bin/layercake" serve "$model" --stages "$stages" --devices "$devices" --transport "$transport" \
      --context 8192 --max-sequences 32 --kv-memory "${LAYERCAKE_KILLS_KV:-4G}" --listen "$address" \
      > "$out/serve.log" 2>&1 &
    echo $! > "$out/serve.pid"
    wait $!
    echo "$? $EPOCHREALTIME" > "$out/serve.end"
  ) 2> /dev/null &
  until_true 60 ready_or_over && [[ ! -s $out/serve.end ]] || { tail -3 "$out/serve.log"; exit 1; }
  ready=$(since "$began")
  server=$(< "$out/serve.pid")
  # "    0  0-32      cuda:0    host (4711)  ..."
  mapfile -t workers < <(sed -nE 's/^ +[0-9]+  [0-9]+-[0-9]+ .* \(([0-9]+)\) .*/\1/p' "$out/status")
  [[ ${#workers[@]} -eq $stages ]] || { echo "no pids in the status:"; cat "$out/status"; exit 1; }
}
ready_or_over() { serving || [[ -s $out/serve.end ]]; }
text() {
  local answer
  answer=$(timeout 20 "$bin/layercake" run --server "$address" --raw --temperature 0 --max-tokens 32 \
    "The capital of France is" 2> /dev/null) && sha256sum <<< "$answer" | cut -c1-16 || echo none
}

# stream NUMBER: one client; its answer, its error and its end go to files.
stream() {
  timeout 45 "$bin/layercake" run --server "$address" --raw --temperature 0 --max-tokens 4000 \
    "$1. The story begins" > "$out/stream$1.text" 2> "$out/stream$1.error"
  echo "$? $EPOCHREALTIME" > "$out/stream$1.end"
}
all_write() { [[ $(find "$out" -name 'stream*.text' -size +0 | wc -l) -eq $streams ]]; }
all_ended() { [[ $(find "$out" -name 'stream*.end' -size +0 | wc -l) -eq $streams ]]; }

# row VICTIM PID PATTERN: kills it under streams; a row of the table.
row() {
  local victim=$1 pid=$2 pattern=$3 i killed first last told=0 early serve back=- processes
  rm -f "$out"/stream*
  for ((i = 1; i <= streams; ++i)); do stream $i & done
  until_true $patience all_write || { echo "$victim: not all streams write"; wrong=1; }
  early=$(find "$out" -name 'stream*.end' | wc -l)
  killed=$EPOCHREALTIME
  kill -KILL "$pid"
  until_true $patience all_ended
  for ((i = 1; i <= streams; ++i)); do
    tail -n 1 "$out/stream$i.error" | grep -qE "$pattern" && told=$((told + 1))
  done
  read -r first last < <(cat "$out"/stream*.end | awk -v killed="$killed" '
    NR == 1 || $2 < first { first = $2 } $2 > last { last = $2 }
    END { printf "%.2f %.2f\n", first - killed, last - killed }')
  until_true $patience test -s "$out/serve.end"
  serve=$(awk -v killed="$killed" '{ printf "code %d, %.2f", $1, $2 - killed }' "$out/serve.end")
  until_true $patience gone "$server" "${workers[@]}" && processes=$(since "$killed")
  [[ -z $before ]] || { until_true $patience memory_back && back=$(since "$killed") || back=never; }
  local ended=$(find "$out" -name 'stream*.end' -size +0 | wc -l)
  local error=$(tail -qn 1 "$out"/stream*.error | sort | uniq -c | sort -rn | sed 's/^/    streams:/')
  local words=$(tail -n 1 "$out/serve.log")
  [[ $pid -ne $server ]] || words="(was killed)"
  start
  local again=$(text) same=same
  [[ $again == "$right" && $again != none ]] || same="OTHER ($again)"
  printf '%-12s %2d of %-2d %5d %8s %8s  %-16s %9s %9s %10s  %s\n' "$victim" "$told" "$streams" \
    $((streams - ended)) "$first" "$last" "${serve:-goes on}" "${processes:-never}" "$back" "$ready" "$same"
  printf '%s\n    serve:   %s\n' "$error" "$words"
  ((early == 0)) || echo "    $early streams had ended before"
  [[ $told -eq $streams && $same == same && -n ${processes:-} && $back != never ]] || wrong=1
}

before=$(taken)
start
trap 'kill -INT "$server" 2> /dev/null; until_true 15 gone "$server"' EXIT
right=$(text)
echo "$streams streams of $(basename "$model") on $devices, $transport; seconds after the SIGKILL; ready after $ready s, text $right"
printf '%-12s %-8s %5s %8s %8s  %-16s %9s %9s %10s  %s\n' killed "told so" hang "first end" "last end" \
  "serve ends" "all gone" "memory" "new ready" text
for ((stage = 0; stage < stages; ++stage)); do
  row "stage $stage" "${workers[stage]}" "the chain failed: stage $stage \("
done
row coordinator "$server" "no server answers at $address"
[[ -z $before ]] || echo "memory taken: $before MiB before, at the end with one server $(taken) MiB"
exit $wrong
