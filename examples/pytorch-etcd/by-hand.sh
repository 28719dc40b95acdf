#!/bin/sh
# One agent of an elastic training that meets in an etcd, without Kubernetes and without a control plane. Start it on as many hosts as you
# like, at any time; in another terminal of the same host, too:
#
#   ETCD=etcd-0:2379,etcd-1:2379 RUN=my-run-1 examples/pytorch-etcd/by-hand.sh
#
# Each agent keeps its checkpoint in a folder of its own; the newest one brings the others up to date (train.py).
set -eu
cd "$(dirname "$0")/../.."
CHECKPOINT_DIR=$(mktemp -d)
export CHECKPOINT_DIR
exec torchrun --rdzv-backend elastic-etcd --rdzv-endpoint "${ETCD:-127.0.0.1:2379}" --rdzv-id "${RUN:?RUN is the id of this run, the same for all agents}" \
  --nnodes "${NNODES:-1:3}" --max-restarts 1000 examples/pytorch-etcd/train.py
