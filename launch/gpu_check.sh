#!/usr/bin/env bash
# Checks a GPU machine in at most eight minutes, and prints a table.
#
#   launch/gpu_check.sh [--dry_run] [FOLDER]     # FOLDER gets the outputs; default /tmp
#
# Runs the self-check; parity with the released code's numbers on the GPU; images a second
# of ResNet-18 at 32 and ResNet-50 at 224 pixels on synthetic data, and the loss; and a
# short run on digits. A check that fails or takes too long does not stop the others.
set -euo pipefail
cd "$(dirname "$0")/.."

dry_run=
[[ ${1:-} != --dry_run ]] || { dry_run=1 && shift; }
# Without this a GPU that does not start would be checked on the CPU. (The tests use the
# CPU unless this is set.)
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu}
out=${1:-/tmp/ncl_jax_gpu_check} PYTHON=${PYTHON:-.venv/bin/python}
[[ -n $dry_run ]] || mkdir -p "$out"
failed=0 table=

# check NAME SECONDS COMMAND...
check() {
  local name=$1 seconds=$2 began=$SECONDS word=ok
  shift 2
  printf '+ timeout %s' "$seconds"
  printf ' %q' "$@"
  printf '\n'
  [[ -z $dry_run ]] || return 0
  if ! timeout "$seconds" "$@" >"$out/$name.txt" 2>&1; then
    word=FAILED failed=1
    tail -n 5 "$out/$name.txt"
  fi
  table+=$(printf '%-12s %-7s %4d s' "$name" "$word" $((SECONDS - began)))$'\n'
}

check machine 10 nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
check self_test 90 "$PYTHON" -m launch.check
check parity 120 "$PYTHON" -m pytest -q -p no:cacheprovider \
  tests/losses/losses_test.py tests/nonneg_test.py tests/optimizers_test.py
check speed 160 "$PYTHON" -m benchmarks.accelerator --repeats=1 "--json=$out/speed.json"
check digits 100 "$PYTHON" -m launch.train --config=configs/digits.py:ncl \
  "--workdir=$out/digits-$$" --config.train.epochs=5 --config.optimizer.warmup_epochs=1.0
[[ -z $dry_run ]] || exit 0
printf '\n%s\n' "$table"
cat "$out/machine.txt" "$out/speed.txt"
exit "$failed"
