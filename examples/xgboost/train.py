"""Boost on the rows of all replicas of an XGBoostJob or TrainJob. It needs xgboost 3 or newer, whose tracker can listen at any address.

An XGBoostJob sets MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, and a TrainJob sets DMLC_TRACKER_URI, DMLC_TRACKER_PORT, DMLC_TASK_ID and
DMLC_NUM_WORKER. XGBoost reads none of them by itself: rank 0 starts a tracker at the address, and all ranks join it, rank 0 too.
"""

from __future__ import annotations

import os
import socket
import time

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

if "DMLC_TRACKER_URI" in os.environ:
    NAMES = ("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER")
else:
    NAMES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
ADDRESS = os.environ[NAMES[0]]
PORT, RANK, WORLD = (int(os.environ[name]) for name in NAMES[1:])
ROUNDS = int(os.environ.get("ROUNDS", "20"))
PATIENCE_S = 120.0


def start_tracker() -> RabitTracker:
    """Start the tracker. It sorts tasks by name, so that the rank in the collective is the rank of the pod."""
    tracker = RabitTracker(n_workers=WORLD, host_ip=socket.gethostbyname(ADDRESS), port=PORT, sortby="task")
    tracker.start()
    return tracker


def join() -> None:
    """Join the collective. XGBoost's own retries grow long, and a worker that is quicker than the tracker would wait for seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return collective.init(dmlc_tracker_uri=ADDRESS, dmlc_tracker_port=PORT, dmlc_task_id=f"{RANK:06}", dmlc_retry=1)
        except xgboost.core.XGBoostError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def shard(rank: int) -> xgboost.DMatrix:
    """Return this replica's part of the rows. No single feature tells the label: it is the sign of a product."""
    random = np.random.default_rng(rank)
    rows = random.uniform(-1, 1, size=(2000, 4)).astype(np.float32)
    return xgboost.DMatrix(rows, (rows[:, 0] * rows[:, 1] > 0).astype(np.int32))


def main() -> None:
    tracker = start_tracker() if RANK == 0 else None
    join()
    try:
        print(f"rank {collective.get_rank()} of {collective.get_world_size()}", flush=True)
        rows, history = shard(RANK), {}
        booster = xgboost.train(
            {"objective": "binary:logistic", "max_depth": 4, "nthread": 1, "eval_metric": ["logloss", "error"]},
            rows,
            num_boost_round=ROUNDS,
            evals=[(rows, "train")],
            evals_result=history,
            verbose_eval=False,
        )
        seen = collective.allreduce(np.array([rows.num_row()]), collective.Op.SUM)[0]
    finally:
        collective.finalize()
    measured = history["train"]
    print(f"trained {booster.num_boosted_rounds()} rounds on {seen} rows: error {measured['error'][0]:.3f} -> {measured['error'][-1]:.3f}")
    if tracker is not None:
        tracker.wait_for(timeout=60)


if __name__ == "__main__":
    main()
