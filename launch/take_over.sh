#!/usr/bin/env bash
# Ends the training that an earlier call left on this host, then runs a command.
#
#   launch/take_over.sh [COMMAND...]     # without a command it only ends what runs
#
# tpu_vm.sh calls this on every host. A training whose ssh connection broke goes on
# alone and holds the chips. It gets SIGTERM and two minutes to save its step.
set -euo pipefail
cd "$(dirname "$0")/.."

file=train.pid
old=$(cat "$file" 2>/dev/null || true)
# After a restart of the host another program may have that number.
if [[ -n $old ]] && grep -qa launch.train "/proc/$old/cmdline" 2>/dev/null; then
  echo "ending process $old, which an earlier call left here"
  kill -TERM "$old"
  for ((second = 0; second < ${GRACE:-120}; second++)); do
    kill -0 "$old" 2>/dev/null || break
    sleep 1
  done
  kill -KILL "$old" 2>/dev/null || true
fi
(($#)) || exit 0
echo $$ >"$file"
exec "$@"
