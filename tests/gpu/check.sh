#!/usr/bin/env bash
# Runs the GPU tests of a folder that pack.sh made; one line each. Builds nothing.
#
#   check.sh [TEST...]                     default: all; names without cuda_ and _test
#   LAYERCAKE_SANITIZER=racecheck check.sh attention      a tool of compute-sanitizer around them
#   LAYERCAKE_CHECK_FILTER='*Q8*' check.sh attention      as --gtest_filter
#
# Logs go to $OUT (default: a temporary folder).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$(mktemp -d)}
export LD_LIBRARY_PATH=$here/lib
around=()
[[ -z ${LAYERCAKE_SANITIZER:-} ]] ||
  around=(compute-sanitizer --tool "$LAYERCAKE_SANITIZER" --error-exitcode 99)
names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
  for test in "$here"/bin/cuda_*_test; do
    name=$(basename "$test" _test)
    names+=("${name#cuda_}")
  done
fi
failed=0
for name in "${names[@]}"; do
  log=$out/$name.log
  began=$SECONDS
  timeout "${LAYERCAKE_CHECK_LIMIT:-150}" "${around[@]}" "$here/bin/cuda_${name}_test" \
    --gtest_filter="${LAYERCAKE_CHECK_FILTER:-*}" > "$log" 2>&1
  code=$?
  [[ $code -eq 0 ]] || failed=1
  passed=$(grep -c '^\[       OK' "$log")
  skipped=$(grep -c '^\[  SKIPPED \].*ms)' "$log")
  echo "$name: exit $code, $passed passed, $skipped skipped, $((SECONDS - began)) s"
  [[ $code -eq 0 ]] || grep -E '^\[  FAILED|Failure|ERROR SUMMARY|========= (Error|Race|Invalid|Program hit)' "$log" |
    sort | uniq -c | head -12
done
exit $failed
