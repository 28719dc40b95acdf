"""Train LightGBM over the replicas of an XGBoostJob: each has its own rows, and all agree on every split.

The job sets MASTER_ADDR, MASTER_PORT, WORKER_ADDRS, WORKER_PORT and RANK. LightGBM wants a list of all machines with a port each, and finds
itself there by its own address, so that names will not do. Rank 0 saves the model every SAVE_EVERY rounds; a job that starts again goes on
from it.
"""

from __future__ import annotations

import os
import pathlib
import socket
import time

import lightgbm
import numpy as np

RANK = int(os.environ["RANK"])
MASTER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
WORKERS = [(name, int(os.environ["WORKER_PORT"])) for name in os.environ.get("WORKER_ADDRS", "").split(",") if name]
MODEL = pathlib.Path(os.environ.get("MODEL", "lightgbm.txt"))
ROUNDS = int(os.environ.get("ROUNDS", "40"))
ROUND_SECONDS = float(os.environ.get("ROUND_SECONDS", "0.1"))
SAVE_EVERY = 10
PATIENCE_S = 300.0


def address(name: str) -> str:
    """Wait until the name resolves: a pod has no address before it runs."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.gethostbyname(name)
        except socket.gaierror:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def shard() -> lightgbm.Dataset:
    """Return this replica's part of the rows. No single feature tells the label: it is the sign of a product."""
    rows = np.random.default_rng(RANK).uniform(-1, 1, size=(2000, 4))
    return lightgbm.Dataset(rows, (rows[:, 0] * rows[:, 1] > 0).astype(int), free_raw_data=False)


def save(booster: lightgbm.Booster) -> None:
    """Write next to the old model and rename: a replica that is killed here leaves a whole file."""
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    draft = MODEL.with_suffix(".new")
    booster.save_model(draft)
    draft.replace(MODEL)
    print(f"saved after round {booster.current_iteration()}", flush=True)


def main() -> None:
    machines = [MASTER, *WORKERS]
    parameters = {
        "objective": "binary",
        "metric": ["binary_logloss", "binary_error"],
        "tree_learner": "data",
        "pre_partition": True,
        "num_machines": len(machines),
        "machines": ",".join(f"{address(name)}:{port}" for name, port in machines),
        "local_listen_port": machines[RANK][1],
        "time_out": int(PATIENCE_S / 60),
        "num_threads": 1,
        "num_leaves": 8,
        "verbose": -1,
    }
    former = lightgbm.Booster(model_file=MODEL) if MODEL.exists() else None
    done = former.current_iteration() if former else 0
    print(f"rank {RANK} of {len(machines)} starts at round {done}", flush=True)
    if done >= ROUNDS:
        return
    history: dict = {}

    def keep(env: lightgbm.callback.CallbackEnv) -> None:
        round_ = env.iteration + 1
        if RANK == 0 and (round_ % SAVE_EVERY == 0 or round_ == ROUNDS):
            save(env.model)
        time.sleep(ROUND_SECONDS)  # in place of the work on more data

    rows = shard()
    lightgbm.train(
        parameters,
        rows,
        num_boost_round=ROUNDS - done,
        init_model=former,
        valid_sets=[rows],
        callbacks=[lightgbm.record_evaluation(history), keep],
    )
    errors = history["training"]["binary_error"]
    print(f"rank {RANK} trained {len(errors)} rounds: error {errors[0]:.3f} -> {errors[-1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
