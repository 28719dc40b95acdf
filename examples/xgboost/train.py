"""Distributed boosting over the replicas of an XGBoostJob; needs xgboost 3 or newer, whose tracker listens where it is told to.

The job sets MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE. XGBoost reads none of them by itself: rank 0 starts a tracker at that
address, and everybody, rank 0 too, joins it under its rank.
"""

from __future__ import annotations

import os
import socket
import time

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ADDRESS, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
ROUNDS = int(os.environ.get("ROUNDS", "20"))
PATIENCE_S = 120.0


def start_tracker() -> RabitTracker:
    """Tasks are sorted by name, so that the rank in the collective is the rank of the pod."""
    tracker = RabitTracker(n_workers=WORLD, host_ip=socket.gethostbyname(ADDRESS), port=PORT, sortby="task")
    tracker.start()
    return tracker


def join() -> None:
    """XGBoost's own retries grow long: a worker that was quicker than the master would wait seconds too many."""
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
