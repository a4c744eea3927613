#!/usr/bin/env bash
# Trains on Kubernetes, by a JobSet: launch/jobset_tpu.yaml or launch/jobset_gpu.yaml.
#
#   export IMAGE=REGISTRY/ncl_jax:tpu CLAIM=runs   # CLAIM: a volume that all pods may write
#   NAME=ncl HOSTS=4 ACCELERATOR=tpu-v5-lite-podslice TOPOLOGY=4x4 \
#     launch/kubernetes.sh [--dry_run] tpu --config=configs/cifar10.py:ncl --workdir=/runs/a
#   NAME=ncl HOSTS=2 PER_HOST=8 launch/kubernetes.sh [--dry_run] gpu --config=...
#   launch/kubernetes.sh [--dry_run] delete
#
# --dry_run, in any position, prints the manifest. PER_HOST is the number of chips per host
# (TPU: 4). Build the image with
#   docker build --build-arg EXTRA=tpu --tag "$IMAGE" .      (or EXTRA=cuda)
# The cluster needs JobSet (https://jobset.sigs.k8s.io). If a pod is preempted or dies, all
# pods restart and resume from the last checkpoint.
set -euo pipefail
cd "$(dirname "$0")"

dry_run='' words=()
for word in "$@"; do
  if [[ $word == --dry_run ]]; then dry_run=1; else words+=("$word"); fi
done
set -- ${words[@]+"${words[@]}"}
action=${1:-}
(($# == 0)) || shift
NAME=${NAME:-ncl}

case $action in
  tpu) : "${ACCELERATOR:=tpu-v5-lite-podslice}" "${TOPOLOGY:=4x4}" "${PER_HOST:=4}" ;;
  gpu) ACCELERATOR='' TOPOLOGY='' PER_HOST=${PER_HOST:-8} ;;
  delete)
    echo "+ kubectl delete jobset $NAME"
    [[ -n $dry_run ]] || kubectl delete jobset "$NAME"
    exit
    ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
: "${IMAGE:?the container image}" "${CLAIM:?the volume claim}" "${HOSTS:?how many hosts}"

# The program's arguments, as the inside of a YAML list of quoted strings.
arguments=
for argument in "$@"; do
  [[ $argument != *[\"\\\|\&]* ]] || { echo "cannot pass $argument" >&2 && exit 2; }
  arguments+=", \"$argument\""
done

manifest=$(sed -e '/^#/d' -e "s|\${NAME}|$NAME|g" -e "s|\${IMAGE}|$IMAGE|g" \
  -e "s|\${CLAIM}|$CLAIM|g" -e "s|\${HOSTS}|$HOSTS|g" -e "s|\${PER_HOST}|$PER_HOST|g" \
  -e "s|\${ACCELERATOR}|$ACCELERATOR|g" -e "s|\${TOPOLOGY}|$TOPOLOGY|g" \
  -e "s|, \"\${ARGUMENTS}\"|$arguments|g" "jobset_$action.yaml")
printf '%s\n' "$manifest"
[[ -n $dry_run ]] || kubectl apply -f - <<<"$manifest"
