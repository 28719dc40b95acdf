"""Train synchronously with Keras over the workers of a TFJob, which find each other through TF_CONFIG.

The model learns to tell points inside a circle from points outside. With BackupAndRestore, a restarted job goes on after the last
complete epoch.
"""

from __future__ import annotations

import os
import tempfile

import numpy as np
import tensorflow as tf

EPOCHS = int(os.environ.get("EPOCHS", "10"))
STEPS = 20
BATCH = 64  # over all workers


def points(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    sample = np.random.default_rng(seed).uniform(-1, 1, size=(count, 2)).astype(np.float32)
    return sample, ((sample**2).sum(axis=1) < 0.6).astype(np.float32)


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    print(f"worker {resolver.task_id} of {strategy.num_replicas_in_sync}", flush=True)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(32, activation="tanh", input_shape=(2,)), tf.keras.layers.Dense(1)])
        loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(0.05), loss, metrics=[tf.keras.metrics.BinaryAccuracy(threshold=0.0)])
    rows = tf.data.Dataset.from_tensor_slices(points(0, STEPS * BATCH)).repeat().batch(BATCH)
    folder = os.path.join(os.environ.get("CHECKPOINT_DIR", tempfile.gettempdir()), f"backup-{resolver.task_id}")
    history = model.fit(
        rows, epochs=EPOCHS, steps_per_epoch=STEPS, verbose=0, callbacks=[tf.keras.callbacks.BackupAndRestore(folder)]
    ).history
    print(f"trained {EPOCHS} epochs: loss {history['loss'][0]:.4f} -> {history['loss'][-1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
