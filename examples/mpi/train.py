"""Do data-parallel gradient descent over MPI: each rank works on its own rows, and one all-reduce per step adds the gradients.

mpirun in the launcher starts it, and gets the hosts, and how to reach them, from the job.
"""

from __future__ import annotations

import os
import socket

import numpy as np
from mpi4py import MPI

STEPS = int(os.environ.get("STEPS", "200"))


def rows(step: int, rank: int) -> np.ndarray:
    return np.random.default_rng([step, rank]).normal(size=(32, 8))


def main() -> None:
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    hosts = sorted(set(world.allgather(socket.gethostname())))
    truth = np.random.default_rng(0).normal(size=8)
    weights, losses = np.zeros(8), []
    for step in range(STEPS):
        own = rows(step, rank)
        errors = own @ (weights - truth)
        mean = world.allreduce(np.append(own.T @ errors, errors @ errors) / len(own)) / size
        weights -= 0.1 * mean[:-1]
        losses.append(mean[-1])
    if rank == 0:
        print(f"{size} ranks on {', '.join(hosts)}: loss {losses[0]:.4f} -> {losses[-1]:.6f}", flush=True)


if __name__ == "__main__":
    main()
