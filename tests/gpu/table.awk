# One table for each model out of the JSON lines of `layercake bench`, as measure.sh leaves them:
#   awk -f table.awk MODEL-2x-cuda0cuda1-auto.jsonl MODEL-2x-cuda0cuda1-ucx.jsonl ...
# Rows: streams and prompts; columns: kinds of channel, each beside what it loses against "auto",
# with the hop into the last stage; for "auto" also busy share and step of each stage. What was
# measured several times is a mean.

# The first number behind a key, from place `from` of the line on.
function number(key, from,    rest) {
  rest = substr($0, from)
  return substr(rest, index(rest, "\"" key "\":") + length(key) + 3) + 0
}

# The values of a key in all stages, as in "3.17/3.15".
function stages(key, format,    rest, parts, n, i, text) {
  rest = substr($0, index($0, "\"stage_figures\""))
  n = split(rest, parts, "\"" key "\":")
  for (i = 2; i <= n; ++i) text = text (i > 2 ? "/" : "") sprintf(format, parts[i])
  return text
}

function note(what, value, busy, steps, hop,    key) {
  if (!((model, what) in seen)) {
    seen[model, what] = 1
    row_of[model, ++rows[model]] = what
  }
  key = model SUBSEP what SUBSEP kind
  sum[key] += value
  ++count[key]
  busy_of[key] = busy
  steps_of[key] = steps
  hop_of[key] = hop == "0" ? "-" : hop  # ucx does not say
}

function mean(key) { return sum[key] / count[key] }

function of_streams(n) { return n == 1 ? "1 stream" : n " streams" }

FNR == 1 {
  model = FILENAME
  sub(/.*\//, "", model)
  sub(/\.jsonl$/, "", model)
  kind = model
  sub(/.*-/, "", kind)
  sub(/-[0-9]+x-[^-]*-[^-]*$/, "", model)
  if (!(model in rows)) models[++model_count] = model
}

{
  figures = index($0, "\"stage_figures\"")
  streams = number("streams", 1)
  prompt = number("prompt_tokens", 1)
  answer = number("output_tokens", 1)
  hop = stages("hop_microseconds", "%.0f")
  sub(/.*\//, "", hop)
  # The last stage's: into the first no activation goes.
  if (kind == "auto" && match($0, /.*"transport":"[a-z_]+"/)) {
    name_of["auto"] = substr($0, 1, RLENGTH - 1)
    sub(/.*"/, "", name_of["auto"])
  }
  if (prompt >= 1024) note("prefill, " streams " of " prompt, number("prefill_tokens_per_second", 1), "", "", "")
  if (prompt < 1024 || answer >= 32) {
    what = "decode, " of_streams(streams) (prompt < 1024 ? "" : " at " prompt)
    note(what, number("decode_tokens_per_second", 1), stages("busy", "%.2f"), stages("step_milliseconds", "%.2f"), hop)
  }
}

END {
  kinds = split("auto pinned_host ucx", kind_of, " ")
  for (m = 1; m <= model_count; ++m) {
    model = models[m]
    printf "\n%s, tok/s\n%-28s %10s %11s %13s %7s", model, "", "auto" in name_of ? name_of["auto"] : "auto", "busy", "step ms", "hop us"
    for (k = 2; k <= kinds; ++k) printf " | %11s %6s %7s", kind_of[k], "loss", "hop us"
    printf "\n"
    for (r = 1; r <= rows[model]; ++r) {
      what = row_of[model, r]
      base = model SUBSEP what SUBSEP "auto"
      printf "%-28s", what
      if (base in sum) printf " %10.1f %11s %13s %7s", mean(base), busy_of[base], steps_of[base], hop_of[base]
      else printf " %10s %11s %13s %7s", "-", "", "", ""
      for (k = 2; k <= kinds; ++k) {
        key = model SUBSEP what SUBSEP kind_of[k]
        if (!(key in sum)) { printf " | %11s %6s %7s", "-", "", ""; continue }
        loss = base in sum ? sprintf("%.1f%%", 100 * (1 - mean(key) / mean(base))) : "?"
        printf " | %11.1f %6s %7s", mean(key), loss, hop_of[key]
      }
      printf "\n"
    }
  }
}
