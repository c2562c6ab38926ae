#!/usr/bin/env bash
# The table of a chain on GPUs: decoding by streams, prefill, decoding at 4,096 tokens of context, as
# `layercake bench` sees it, for one model and one way to lay it out. Builds nothing.
#
#   tests/gpu/measure.sh BIN MODEL DEVICES [TRANSPORT] [PARTS]
#
# BIN: the folder of the programs. DEVICES: as --devices, one per stage (cuda:0,cuda:1).
# PARTS: any of decode,prefill,context,text (default decode,prefill). Prints a table; JSON lines and
# the server's log go to $OUT (default: a temporary folder). The KV cache takes LAYERCAKE_MEASURE_KV
# of each stage (default 16G), so that runs can be compared; streams of decode and of context are
# LAYERCAKE_MEASURE_STREAMS and LAYERCAKE_MEASURE_CONTEXT.
set -uo pipefail
bin=$1 model=$2 devices=$3 transport=${4:-auto} parts=${5:-decode,prefill}
stages=$(tr ',' '\n' <<< "$devices" | wc -l)
out=${OUT:-$(mktemp -d)}
name=$(basename "$model" .gguf)-${stages}x-$(tr -dc 'a-zA-Z0-9' <<< "$devices")-${transport//:/}
address=127.0.0.1:${LAYERCAKE_MEASURE_PORT:-7171}

started=$(date +%s.%N)
"$bin/layercake" serve "$model" --stages "$stages" --devices "$devices" --transport "$transport" \
  --context 8192 --max-sequences 160 --kv-memory "${LAYERCAKE_MEASURE_KV:-16G}" --listen "$address" ${LAYERCAKE_MEASURE_FLAGS:-} \
  > "$out/$name.serve.log" 2>&1 &
server=$!
trap 'kill -INT $server 2>/dev/null; wait $server' EXIT
until "$bin/layercake" status --server "$address" 2>&1 | tee "$out/$name.status.txt" | grep -q ^serving; do
  kill -0 $server 2>/dev/null || { tail -5 "$out/$name.serve.log"; exit 1; }
  [[ $SECONDS -lt ${LAYERCAKE_MEASURE_START:-90} ]] || { echo "not ready in $SECONDS s"; exit 1; }
  sleep 0.2
done
echo "== $name: ready after $(awk "BEGIN { printf \"%.1f\", $(date +%s.%N) - $started }") s"
grep -oE "(stage [0-9]+: promised|warning|stage [0-9]+: of the) .*" "$out/$name.serve.log"
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader | tr '\n' ';'
  echo
fi

bench() {
  timeout "${LAYERCAKE_MEASURE_LIMIT:-120}" "$bin/layercake" bench --server "$address" --jsonl "$@" \
    2> >(grep -v '^$' >&2) >> "$out/$name.jsonl"
}
if [[ $parts == *text* ]]; then
  for prompt in "The capital of France is" "In 1969,"; do
    if text=$("$bin/layercake" run --server "$address" --raw --temperature 0 --max-tokens 32 "$prompt" \
        2> "$out/$name.run.log") && [[ -n $text ]]; then
      echo "text $devices $transport: $(sha256sum <<< "$text" | cut -c1-16)"
    else
      echo "text $devices $transport: FAILED: $(tail -1 "$out/$name.run.log")"
    fi
  done
fi
[[ $parts == *decode* ]] && bench --npp 128 --ntg 64 --npl "${LAYERCAKE_MEASURE_STREAMS:-1,2,4,8,16,32,64,128}"
[[ $parts == *prefill* ]] && bench --npp 2048 --ntg 16 --npl 1 && bench --npp 4096 --ntg 64 --npl 8
[[ $parts == *context* ]] && bench --npp 4096 --ntg 64 --npl "${LAYERCAKE_MEASURE_CONTEXT:-1,8}"
exit 0
