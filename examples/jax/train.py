"""Train with all processes of a JAXJob or TrainJob, written as for one machine: the batch is one array, sharded over all devices.

A JAXJob sets COORDINATOR_ADDRESS, COORDINATOR_PORT, NUM_PROCESSES and PROCESS_ID. A TrainJob sets them with the prefix JAX_, and the
address has the port. JAX wants them as arguments.
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
    """Return the mean squared error. The model learns the product of its two inputs."""
    return jnp.mean((predict(parameters, points) - points[:, 0] * points[:, 1]) ** 2)


@jax.jit
def step(parameters: dict[str, jax.Array], points: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """Do one step. The mean is over the whole array, so JAX sums its gradient over all processes."""
    value, gradients = jax.value_and_grad(loss)(parameters, points)
    return jax.tree.map(lambda old, gradient: old - 0.1 * gradient, parameters, gradients), value


def join() -> None:
    """Join the other processes of the job."""
    prefix = "JAX_" if "JAX_COORDINATOR_ADDRESS" in os.environ else ""
    address, port = os.environ[prefix + "COORDINATOR_ADDRESS"], os.environ[prefix + "COORDINATOR_PORT"]
    jax.distributed.initialize(
        coordinator_address=address if prefix else f"{address}:{port}",
        num_processes=int(os.environ[prefix + "NUM_PROCESSES"]),
        process_id=int(os.environ[prefix + "PROCESS_ID"]),
    )


def main() -> None:
    join()
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
