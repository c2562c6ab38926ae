#!/usr/bin/env bash
# Installs the distribution's packages of deploy/packages.txt; with --tests those of the tests too.
# Asks apt only for what is missing: when nothing is, it needs neither root nor network.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

with_tests=no
[[ ${1:-} == --tests ]] && with_tests=yes

missing=()
while read -r first second; do
  case $first in
    '' | '#'*) continue ;;
    '[test]') [[ $with_tests == yes ]] || continue; package=$second ;;
    *) package=$first ;;
  esac
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $state == installed ]] || missing+=("$package")
done < "$here/packages.txt"
[[ ${#missing[@]} -eq 0 ]] && exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo > /dev/null || {
    echo "These packages are missing, and installing them needs root or sudo:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "Installing: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -q >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
