#!/usr/bin/env bash
# Trains in N processes on this machine, on CPU, to rehearse a run on N machines.
#
#   launch/local.sh [--dry_run] 2 --config=configs/digits.py:ncl --workdir=runs/two
#
# A single process uses all of a machine's GPUs or TPUs and needs no launcher. Ctrl-C or
# SIGTERM reaches all processes, which save the same step. PORT must be free.
set -euo pipefail
cd "$(dirname "$0")/.."

dry_run=
[[ ${1:-} != --dry_run ]] || { dry_run=1 && shift; }
count=${1:-}
[[ $count =~ ^[1-9][0-9]*$ ]] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 2; }
shift
PYTHON=${PYTHON:-.venv/bin/python} PORT=${PORT:-8476}

children=()
for ((i = 0; i < count; i++)); do
  command=("$PYTHON" -m launch.train "--coordinator=127.0.0.1:$PORT"
    "--num_processes=$count" "--process_id=$i" "$@")
  printf '+ JAX_PLATFORMS=cpu'
  printf ' %q' "${command[@]}"
  printf '\n'
  [[ -z $dry_run ]] || continue
  JAX_PLATFORMS=cpu "${command[@]}" &
  children+=($!)
done
[[ -z $dry_run ]] || exit 0

asked=
trap 'asked=1; kill -TERM "${children[@]}" 2>/dev/null || true' TERM INT
worst=0
for child in "${children[@]}"; do
  code=0
  wait "$child" || code=$?
  # A signal ends `wait`, not the child.
  while [[ -n $asked ]] && kill -0 "$child" 2>/dev/null; do
    code=0
    wait "$child" || code=$?
  done
  ((code <= worst)) || worst=$code
done
exit "$worst"
