#!/usr/bin/env bash
# Trains on a Cloud TPU slice, of one host or of many.
#
#   export NAME=ncl ZONE=us-west4-a TYPE=v5litepod-16 SHARE=10.0.0.2:/runs
#   launch/tpu_vm.sh [--dry_run] create | install | stop | delete
#   launch/tpu_vm.sh [--dry_run] run  --config=configs/cifar10.py:ncl --workdir=/runs/a
#   launch/tpu_vm.sh [--dry_run] keep --config=...   # run, and resume after preemption
#
# --dry_run, at any place, prints the commands instead of running them. Needs gcloud,
# logged in. `create` asks for the slice as a queued resource; `install` waits for it.
# SPOT= (empty) asks for a slice that is not preempted. VERSION, the image of the hosts,
# follows from TYPE. SHARE, an NFS export that all hosts see, is mounted as /runs:
# checkpoints and compiled programs outlive the slice there. Without SHARE, name a work
# directory in a bucket: --workdir=gs://BUCKET/runs/a.
#
# `keep` creates the slice if need be and installs the commit that is checked out when
# it starts. It ends with the training, with wrong input (exit code 2) and divergence
# (3). It goes on after a preemption, a SIGTERM and a lost connection, but gives up after
# five failures without an hour of training in between. Ctrl-C ends `keep`; the training
# goes on until `stop`.
set -euo pipefail
cd "$(dirname "$0")/.."

dry_run='' words=()
for word in "$@"; do
  if [[ $word == --dry_run ]]; then dry_run=1; else words+=("$word"); fi
done
set -- ${words[@]+"${words[@]}"}
action=${1:-}
(($# == 0)) || shift
case $action in
  create | install | stop | delete | run | keep) ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" && exit 2 ;;
esac
: "${NAME:?the name of the TPU}" "${ZONE:?its zone}"
TYPE=${TYPE:-v5litepod-16} SPOT=${SPOT-yes}
if [[ -z ${VERSION:-} ]]; then
  case $TYPE in
    v2-* | v3-* | v4-*) VERSION=tpu-ubuntu2204-base ;;
    v5litepod-*) VERSION=v2-alpha-tpuv5-lite ;;
    v5p-*) VERSION=v2-alpha-tpuv5 ;;
    v6e-*) VERSION=v2-alpha-tpuv6e ;;
    *)
      echo "$TYPE: known are v2- to v6e-. Later TPUs are rented by Kubernetes alone:" \
        "launch/kubernetes.sh. For another type set VERSION." >&2
      exit 2
      ;;
  esac
fi
if [[ -z $dry_run ]] && ! command -v gcloud >/dev/null; then
  echo "gcloud is not installed: https://cloud.google.com/sdk/docs/install" >&2
  exit 2
fi
tpu=(gcloud compute tpus tpu-vm)
queue=(gcloud compute tpus queued-resources)
here=("$NAME" "--zone=$ZONE")
commit=$(git rev-parse HEAD)
tries=5 short=3600 # seconds

run() {
  printf '+'
  printf ' %q' "$@"
  printf '\n'
  [[ -n $dry_run ]] || "$@"
}

# Without a sign of life from a host for two minutes the connection counts as lost.
on_all() {
  run "${tpu[@]}" ssh "${here[@]}" --worker=all --ssh-flag=-oServerAliveInterval=40 \
    "--command=$1"
}

create() {
  run "${queue[@]}" create "${here[@]}" "--node-id=$NAME" "--accelerator-type=$TYPE" \
    "--runtime-version=$VERSION" ${SPOT:+--spot}
}

# With the slice, whatever state it is in.
delete() { run "${queue[@]}" delete "${here[@]}" --force --quiet; }

install() {
  local archive=/tmp/ncl_jax-${commit:0:12}.tar.gz
  run git archive --format=tar.gz "--output=$archive" "$commit" || return
  run "${tpu[@]}" scp "$archive" "$NAME:$archive" "--zone=$ZONE" --worker=all || return
  if [[ -n ${SHARE:-} ]]; then
    on_all "sudo apt-get install -y nfs-common && sudo mkdir -p /runs" || return
  fi
  # The image's own Python is older than 3.11: uv brings one.
  on_all "if [ -e ncl_jax ]; then ncl_jax/launch/take_over.sh; fi && rm -rf ncl_jax && \
mkdir ncl_jax && tar -xzf $archive -C ncl_jax && cd ncl_jax && pip3 install --user uv && \
python3 -m uv venv --python 3.12 .venv && python3 -m uv pip install \
--constraints constraints.txt '.[tpu,tfds,gcs]' && touch installed-$commit"
}

train() {
  local environment="JAX_PLATFORMS=tpu,cpu" mount=''
  if [[ -n ${SHARE:-} ]]; then
    environment+=" JAX_COMPILATION_CACHE_DIR=/runs/.compiled"
    # Here and not at the installation: a host that was restarted has lost it.
    mount="(mountpoint -q /runs || sudo mount -t nfs $SHARE /runs) && "
  fi
  on_all "${mount}cd ncl_jax && $environment launch/take_over.sh .venv/bin/python \
-m launch.train --distributed $(printf '%q ' "$@")"
}

stop() { on_all "ncl_jax/launch/take_over.sh"; }

# The state that a description gives; MISSING, or UNKNOWN if the question failed.
described() {
  local errors
  errors=$(mktemp)
  if ! "$@" 2>"$errors"; then
    if grep -qi 'not.found' "$errors"; then
      echo MISSING
    else
      cat "$errors" >&2
      echo UNKNOWN
    fi
  fi
  rm "$errors"
}

# Of the slice, or of the request for it.
state() {
  local found
  [[ -z $dry_run ]] || { echo READY && return; }
  found=$(described "${tpu[@]}" describe "${here[@]}" '--format=value(state)')
  if [[ $found == MISSING ]]; then
    found=$(described "${queue[@]}" describe "${here[@]}" '--format=value(state.state)')
    # An active request whose slice is not there yet, or no longer.
    [[ $found != ACTIVE ]] || found=PROVISIONING
  fi
  echo "$found"
}

await() {
  local found
  while found=$(state) && [[ $found != READY ]]; do
    case $found in
      MISSING | UNKNOWN | FAILED | SUSPENDED)
        echo "$NAME is $found: create it first" >&2
        return 1
        ;;
    esac
    echo "$NAME is $found"
    sleep 30
  done
}

# Trains on a slice that is there, after installing what is not there yet.
attempt() {
  local code=0
  on_all "test -e ncl_jax/installed-$commit" || code=$?
  case $code in
    0) ;;
    1) install || return ;;
    *) return "$code" ;;
  esac
  train "$@"
}

keep() {
  local failed=0 code=1 brief='' began
  while true; do
    case $(state) in
      READY)
        # It was not taken away: the attempt before failed by itself.
        [[ -z $brief ]] || failed=$((failed + 1))
        ((failed < tries)) || break
        began=$SECONDS code=0
        attempt "$@" || code=$?
        case $code in 0 | 2 | 3 | 130) return "$code" ;; esac
        echo "exit code $code after $((SECONDS - began)) s"
        brief=1
        ((SECONDS - began < short)) || failed=0 brief=''
        ;;
      MISSING)
        brief=''
        create || failed=$((failed + 1))
        ;;
      UNKNOWN) failed=$((failed + 1)) ;;
      FAILED)
        failed=$((failed + 1))
        delete || true
        ;;
      SUSPENDED | PREEMPTED | TERMINATED | STOPPED)
        brief=''
        delete || true
        ;;
      *) brief='' ;; # on its way up or down
    esac
    ((failed < tries)) || break
    # A slice that is taken away is called ready for a little longer.
    sleep $((60 * (failed + 1)))
  done
  echo "$tries failures: giving up" >&2
  return "$code"
}

case $action in
  install) await && install ;;
  run) train "$@" ;;
  keep) keep "$@" ;;
  *) "$action" ;;
esac
