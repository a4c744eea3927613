#!/usr/bin/env bash
# Trains on a Cloud TPU with one or many hosts.
#
#   export NAME=ncl ZONE=us-west4-a TYPE=v5litepod-16 SHARE=10.0.0.2:/runs
#   launch/tpu_vm.sh [--dry_run] create | install | delete
#   launch/tpu_vm.sh [--dry_run] run  --config=configs/cifar10.py:ncl --workdir=/runs/a
#   launch/tpu_vm.sh [--dry_run] keep --config=...   # run; resume after preemption
#
# --dry_run prints the commands instead of running them. VERSION is the image of the
# hosts. SPOT= (empty) requests a TPU that is not preempted. SHARE, an NFS export that all
# hosts see, is mounted as /runs, so that checkpoints outlive the TPU; data may be there
# too. Needs gcloud, logged in. `keep` ends with the run, or when the run fails and the TPU
# still exists a minute later.
set -euo pipefail
cd "$(dirname "$0")/.."

dry_run=
[[ ${1:-} != --dry_run ]] || { dry_run=1 && shift; }
action=${1:-}
(($# == 0)) || shift
: "${NAME:?the name of the TPU}" "${ZONE:?its zone}"
TYPE=${TYPE:-v5litepod-16} VERSION=${VERSION:-v2-alpha-tpuv5-lite} SPOT=${SPOT-yes}
tpu=(gcloud compute tpus tpu-vm)
here=("$NAME" "--zone=$ZONE")

run() {
  printf '+'
  printf ' %q' "$@"
  printf '\n'
  [[ -n $dry_run ]] || "$@"
}

on_all() { run "${tpu[@]}" ssh "${here[@]}" --worker=all "--command=$1"; }

create() {
  run "${tpu[@]}" create "${here[@]}" "--accelerator-type=$TYPE" "--version=$VERSION" \
    ${SPOT:+--spot}
}

install() {
  local archive=/tmp/ncl_jax.tar.gz
  run git archive --format=tar.gz "--output=$archive" HEAD
  run "${tpu[@]}" scp "$archive" "$NAME:$archive" "--zone=$ZONE" --worker=all
  # The image's own Python is older than 3.11: uv brings one.
  on_all "mkdir -p ncl_jax && tar -xzf $archive -C ncl_jax && cd ncl_jax && pip3 install \
--user uv && python3 -m uv venv --python 3.12 .venv && python3 -m uv pip install '.[tpu]'"
  if [[ -n ${SHARE:-} ]]; then
    on_all "sudo apt-get install -y nfs-common && sudo mkdir -p /runs && \
(mountpoint -q /runs || sudo mount -t nfs $SHARE /runs)"
  fi
}

train() {
  on_all "cd ncl_jax && .venv/bin/python -m launch.train --distributed $(printf '%q ' "$@")"
}

delete() { run "${tpu[@]}" delete "${here[@]}" --quiet; }

state() {
  if [[ -n $dry_run ]]; then
    echo READY
  else
    "${tpu[@]}" describe "${here[@]}" '--format=value(state)' 2>/dev/null || echo MISSING
  fi
}

keep() {
  local code
  while true; do
    case $(state) in
      READY)
        code=0
        train "$@" || code=$?
        ((code)) || return 0
        # A TPU that is taken away is called ready for a little longer.
        sleep 60
        [[ $(state) != READY ]] || return "$code"
        ;;
      MISSING)
        # Creation fails while there is no capacity: ask again.
        if create; then install; else sleep 60; fi
        ;;
      CREATING | STARTING | RESTARTING | REPAIRING | DELETING) sleep 30 ;;
      *) delete || sleep 30 ;; # PREEMPTED, TERMINATED, STOPPED
    esac
  done
}

case $action in
  create | install | delete) "$action" ;;
  run) train "$@" ;;
  keep) keep "$@" ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
