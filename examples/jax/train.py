"""Data-parallel training over the processes of a JAXJob, written as for one machine: the batch is one array, sharded over all devices.

The job sets COORDINATOR_ADDRESS, COORDINATOR_PORT, NUM_PROCESSES and PROCESS_ID; JAX wants them as arguments.
"""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STEPS = int(os.environ.get("STEPS", "200"))
ROWS = 64  # of each process and step


def predict(parameters: dict[str, jax.Array], points: jax.Array) -> jax.Array:
    hidden = jnp.tanh(points @ parameters["in"] + parameters["bias"])
    return (hidden @ parameters["out"])[:, 0]


def loss(parameters: dict[str, jax.Array], points: jax.Array) -> jax.Array:
    """The model learns the product of its two inputs."""
    return jnp.mean((predict(parameters, points) - points[:, 0] * points[:, 1]) ** 2)


@jax.jit
def step(parameters: dict[str, jax.Array], points: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """The mean is over the whole array, so its gradient is summed over all processes without a word about it here."""
    value, gradients = jax.value_and_grad(loss)(parameters, points)
    return jax.tree.map(lambda old, gradient: old - 0.1 * gradient, parameters, gradients), value


def main() -> None:
    jax.distributed.initialize(
        coordinator_address=f"{os.environ['COORDINATOR_ADDRESS']}:{os.environ['COORDINATOR_PORT']}",
        num_processes=int(os.environ["NUM_PROCESSES"]),
        process_id=int(os.environ["PROCESS_ID"]),
    )
    print(f"process {jax.process_index()} of {jax.process_count()}", flush=True)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere, by_row = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    start = np.random.default_rng(0)
    shapes = {"in": (2, 32), "bias": (32,), "out": (32, 1)}
    values = {name: start.normal(size=shape).astype(np.float32) / shape[0] ** 0.5 for name, shape in shapes.items()}
    parameters = {name: jax.device_put(value, everywhere) for name, value in values.items()}
    random = np.random.default_rng(jax.process_index() + 1)
    losses = []
    for _ in range(STEPS):
        own = random.uniform(-1, 1, size=(ROWS, 2)).astype(np.float32)
        parameters, value = step(parameters, jax.make_array_from_process_local_data(by_row, own))
        losses.append(float(value))
    print(f"trained {STEPS} steps on {jax.device_count()} devices: loss {losses[0]:.4f} -> {losses[-1]:.4f}", flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
