#!/usr/bin/env bash
# Runs the tests that make no network namespaces with other Pythons: bash tests/tools/pythons.sh DIR PYTHON...
# Each PYTHON (a command or a path) gets an environment below DIR. One line per Python at the end; exit status 1 if a test
# failed. A Python that is not here is named, and left out.
set -euo pipefail
directory=$1
shift
failed=0 lines=()
for python in "$@"; do
  if ! version=$("$python" -c 'import platform; print(platform.python_version())' 2>/dev/null); then
    lines+=("$python: not here")
    continue
  fi
  venv=$directory/$version
  PYTHON=$python bash tests/tools/setup.sh "$venv"
  log=$directory/$version.log
  result=failed
  # tests/system starts whole daemons, and tests/docs compares pages with what one Python prints.
  if "$venv/bin/python" -m pytest -q -n "$(nproc)" -p no:cacheprovider -m "not netns and not long" \
    --ignore=tests/system --ignore=tests/docs --ignore=tests/tools tests >"$log" 2>&1; then
    result=held
  else
    failed=1
    tail -40 "$log"
  fi
  lines+=("Python $version: $result ($(tail -1 "$log" | tr -d =))")
done
printf '%s\n' "${lines[@]}"
exit "$failed"
