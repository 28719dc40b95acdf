"""Run Lightning's Trainer in an elastic job: after a change of the world it goes on from the last checkpoint on the shared volume.

torchrun starts it. The script is ordinary Lightning and does not use the control plane. `devices="auto"` is right with any number of
workers, because the agent tells Lightning their number. Lightning adds `elastic_worker`'s callback by itself: it reports the steps, and
saves before the world changes. Your script needs a `ModelCheckpoint` with a folder that all workers see, and `ckpt_path="last"`.
"""

from __future__ import annotations

import os
import time

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINTS = os.environ.get("CHECKPOINT_DIR", "/checkpoints")
STEPS = int(os.environ.get("STEPS", "300"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "50"))


class Linear(LightningModule):
    """Learns a fixed linear function."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(16, 1)

    def on_train_start(self) -> None:
        print(f"world {self.trainer.world_size} rank {self.global_rank} goes on from step {self.global_step}", flush=True)

    def training_step(self, batch: list[torch.Tensor], batch_index: int) -> torch.Tensor:
        rows, wanted = batch
        loss = torch.nn.functional.mse_loss(self.layer(rows), wanted)
        if self.global_rank == 0:
            print(f"step {self.global_step} world {self.trainer.world_size} loss {loss.item():.6f}", flush=True)
        time.sleep(STEP_SECONDS)  # in place of a larger model's work
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main() -> None:
    torch.set_num_threads(1)
    rows = torch.randn(4096, 16, generator=torch.Generator().manual_seed(1))
    wanted = rows @ torch.randn(16, 1, generator=torch.Generator().manual_seed(0))
    trainer = Trainer(
        devices="auto",
        strategy="ddp",
        max_steps=STEPS,
        callbacks=[ModelCheckpoint(dirpath=CHECKPOINTS, save_last=True, every_n_train_steps=SAVE_EVERY)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Linear(), DataLoader(TensorDataset(rows, wanted), batch_size=32), ckpt_path="last")
    print(f"rank {trainer.global_rank} done at step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
