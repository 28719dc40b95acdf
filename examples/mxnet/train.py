"""Train synchronously through a parameter server, over the replicas of an MXJob. The job sets DMLC_ROLE and the scheduler's address.

In the scheduler and the servers, `import mxnet` never returns: they serve in it, and end after the workers.
"""

from __future__ import annotations

import os

import mxnet
import numpy as np
from mxnet import autograd, gluon

STEPS = int(os.environ.get("STEPS", "150"))


def main() -> None:
    store = mxnet.kv.create("dist_sync")
    print(f"worker {store.rank} of {store.num_workers}", flush=True)
    network = gluon.nn.Dense(1)
    network.initialize(mxnet.init.Zero())
    trainer = gluon.Trainer(network.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=store)
    random = np.random.default_rng(store.rank)
    truth = np.array([[1.0], [-2.0], [0.5]])
    losses = []
    for _ in range(STEPS):
        rows = random.normal(size=(32, 3))
        wanted = mxnet.nd.array(rows @ truth)
        with autograd.record():
            loss = ((network(mxnet.nd.array(rows)) - wanted) ** 2).mean()
        loss.backward()
        trainer.step(store.num_workers)  # gradients of all workers are summed
        losses.append(float(loss.asscalar()))
    mxnet.nd.waitall()  # work that is not done when the process ends could keep it from ever leaving the others
    print(f"trained {STEPS} steps: loss {losses[0]:.4f} -> {losses[-1]:.6f}", flush=True)


if __name__ == "__main__":
    main()
