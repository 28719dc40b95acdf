"""Train with Keras and a separate evaluator. All replicas of the TFJob run this program, and TF_CONFIG says which part each one has.

Chief and worker train synchronously and save each epoch. The evaluator loads the newest checkpoint and measures it with points that
training has not seen. A restarted job goes on after the last complete epoch. Each run needs its own folder.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

EPOCHS = int(os.environ.get("EPOCHS", "30"))
STEPS = 20
BATCH = 64  # over all workers
FOLDER = Path(os.environ.get("CHECKPOINT_DIR", tempfile.gettempdir()))
MEASURED = FOLDER / "measured"
"""The evaluator makes it once it has measured the last checkpoint."""
PATIENCE_S = 300


def points(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    sample = np.random.default_rng(seed).uniform(-1, 1, size=(count, 2)).astype(np.float32)
    return sample, ((sample**2).sum(axis=1) < 0.6).astype(np.float32)


def compiled() -> tf.keras.Model:
    model = tf.keras.Sequential([tf.keras.layers.Dense(32, activation="tanh", input_shape=(2,)), tf.keras.layers.Dense(1)])
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.05), loss, metrics=[tf.keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)])
    return model


def train(role: str) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    print(f"{role} of {strategy.num_replicas_in_sync} that train", flush=True)
    with strategy.scope():
        model = compiled()
    rows = tf.data.Dataset.from_tensor_slices(points(0, STEPS * BATCH)).repeat().batch(BATCH)
    kept = [
        tf.keras.callbacks.BackupAndRestore(str(FOLDER / "backup" / role.replace(" ", "-"))),
        tf.keras.callbacks.ModelCheckpoint(str(FOLDER / "ckpt-{epoch}"), save_weights_only=True),
    ]
    model.fit(rows, epochs=EPOCHS, steps_per_epoch=STEPS, verbose=0, callbacks=kept)
    # All wait here for the slowest, because TensorFlow takes a peer that has ended for one that has crashed.
    strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(1.0)), axis=None)
    print(f"trained {EPOCHS} epochs", flush=True)


def wait_for_evaluator() -> None:
    end = time.monotonic() + PATIENCE_S
    while not MEASURED.exists():
        if time.monotonic() > end:
            raise SystemExit(f"the evaluator has not measured the last checkpoint within {PATIENCE_S} s; see its log")
        time.sleep(1)


def evaluate() -> None:
    model = compiled()
    rows = tf.data.Dataset.from_tensor_slices(points(1, 1000)).batch(100)
    epoch = 0
    while epoch < EPOCHS:
        newest = tf.train.latest_checkpoint(FOLDER)
        if newest is None or int(newest.rpartition("-")[2]) <= epoch:
            time.sleep(1)
            continue
        model.load_weights(newest).expect_partial()
        epoch = int(newest.rpartition("-")[2])
        _, accuracy = model.evaluate(rows, verbose=0)
        print(f"epoch {epoch}: accuracy {accuracy:.3f} on new points", flush=True)
    MEASURED.touch()


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    role = f"{resolver.task_type} {resolver.task_id}"
    if resolver.task_type == "evaluator":
        evaluate()
        return
    train(role)
    if resolver.task_type == "chief":
        wait_for_evaluator()


if __name__ == "__main__":
    main()
