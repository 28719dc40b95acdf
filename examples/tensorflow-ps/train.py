"""Train asynchronously with a parameter server. All replicas of the TFJob run this program, and TF_CONFIG says which part each one has.

It learns the parameters of a line from noisy points. Servers and workers serve until they are stopped.
"""

from __future__ import annotations

import os

# A worker that has not started or has gone should cause an error, after which the chief tries again, and not a long wait.
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")

import tensorflow as tf

STEPS = int(os.environ.get("STEPS", "300"))
SLOPE, OFFSET = 3.0, -1.0


def coordinate(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        slope, offset = tf.Variable(0.0), tf.Variable(0.0)

    @tf.function
    def step() -> tf.Tensor:
        x = tf.random.uniform((32,), -1, 1)
        y = SLOPE * x + OFFSET + tf.random.normal((32,), stddev=0.05)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((slope * x + offset - y) ** 2)
        for variable, gradient in zip((slope, offset), tape.gradient(loss, (slope, offset)), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    for _ in range(STEPS):
        coordinator.schedule(step)
    coordinator.join()
    print(f"variables on {slope.device}", flush=True)
    print(f"trained {STEPS} steps: slope {float(slope.numpy()):.3f} offset {float(offset.numpy()):.3f}", flush=True)


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "chief":
        coordinate(resolver)
        return
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc")
    print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
    server.join()


if __name__ == "__main__":
    main()
