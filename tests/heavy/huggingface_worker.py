"""A Hugging Face Trainer for the lab: it trains a small network next to a ledger, a parameter per sample that counts its uses.

A sample has one to three items, and the loss is the mean over the items of the global batch, as for tokens of texts of different lengths.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import training_worker
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from elastic_worker.integrations.huggingface import newest_checkpoint
from elastic_worker.integrations.huggingface_trainer import ElasticTrainer, ElasticTrainingArguments
from elastic_worker.report import Answer

BATCH = 24
SAMPLES = 10 * BATCH + 7
"""No multiple of the batch, so that steps cross the ends of epochs."""
WORST = 1e-9


def items(id: int) -> int:
    return 1 + id % 3


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, id: int) -> dict[str, torch.Tensor]:
        x = torch.sin(id * torch.arange(1, 17, dtype=torch.float64))
        labels = torch.cos(id * torch.arange(1, 4, dtype=torch.float64))
        labels[items(id) :] = -100
        return {"x": x, "ids": torch.tensor(id), "labels": labels}


class Model(torch.nn.Module):
    """Takes any keyword, as models of transformers do that divide their loss by the items of the global batch."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
        self.ledger = torch.nn.Parameter(torch.zeros(SAMPLES))
        self.double()

    def forward(self, x: Any, ids: Any, labels: Any, num_items_in_batch: Any = None, **_: Any) -> dict[str, torch.Tensor]:
        counts = labels.ne(-100)
        errors = ((self.net(x) - labels.where(counts, labels.new_zeros(()))) ** 2 + self.ledger[ids][:, None]) * counts
        return {"loss": errors.sum() / (counts.sum() if num_items_in_batch is None else num_items_in_batch)}


class Told:
    """A control plane that asks for a checkpoint."""

    def send(self, step: int, **values: float) -> Answer:
        return Answer(checkpoint_s=30.0)


class Unlucky(ElasticTrainer):
    """Never ends its last save, if it is the first rank of three, or loses the connection in its last step, or is told to save."""

    lags: Path | None = None
    breaks: Path | None = None
    noticed_in: int | None = None

    def _gradients(self, step: Any) -> torch.Tensor:
        if step.number == self.noticed_in:
            self.run._reporter = Told()
        loss = super()._gradients(step)
        if self.breaks and self.run.rank == 0 and step.number == self.args.max_steps - 1 and not self.breaks.exists():
            self.breaks.touch()
            raise RuntimeError("gloo/transport/tcp/pair.cc: Connection reset by peer")
        return loss

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if self.lags and self.run.size == 3 and self.args.should_save and self.state.global_step == self.args.max_steps:
            self.lags.touch()
            time.sleep(600)
        super()._save_checkpoint(*args, **kwargs)


class Counts(TrainerCallback, ExportableState):
    """Has a state, as the callback that stops early: newcomers need it too."""

    def __init__(self) -> None:
        self.steps = 0

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"steps": self.steps}}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps += 1


class Follow(TrainerCallback):
    """Writes the step for the lab, and ends the training when the lab says so."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self._folder = folder
        self._options = options
        self.until: int | None = options.get("until")
        self.saved: list[int] = []
        self.epochs: list[tuple[int, float]] = []
        self.first: int | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.first = state.global_step if self.first is None else self.first
        time.sleep(self._options.get("compute_s", 0.0))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            draft = self._folder / f"draft-step-{os.getpid()}"
            draft.write_text(str(state.global_step))
            draft.replace(self._folder / "step")
        path = self._folder / "until"
        if self.until is None and path.exists():
            self.until = int(path.read_text())
        if self.until is not None and state.global_step >= self.until:
            control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epochs.append((state.global_step, state.epoch))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.saved.append(state.global_step)


def train(options: dict[str, Any], folder: Path) -> None:
    """Train until the lab or `max_steps` ends it, and write the result."""
    torch.set_num_threads(1)
    model = Model(options.get("seed", 7))
    args = ElasticTrainingArguments(
        output_dir=str(folder / "checkpoints"),
        global_batch_size=BATCH,
        per_device_train_batch_size=5,
        max_steps=options.get("max_steps", 100_000),
        logging_steps=5,
        save_strategy=options.get("save_strategy", "no"),
        save_steps=20,
        max_grad_norm=0.0,
        report_to=[],
        use_cpu=True,
        disable_tqdm=options.get("disable_tqdm", True),
        **options.get("arguments", {}),
    )
    net = {"params": model.net.parameters(), "lr": 0.01, "momentum": 0.9}
    optimizer = torch.optim.SGD([net, {"params": [model.ledger], "lr": 1.0}])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 1 / (1 + 0.01 * step), lambda step: 1.0])
    follow, counts = Follow(folder, options), Counts()
    trainer = Unlucky(
        model=model,
        args=args,
        train_dataset=Samples(),
        eval_dataset=Samples(),
        callbacks=[follow, counts],
        optimizers=(optimizer, scheduler),
    )
    trainer.lags = folder / "saves" if options.get("hang_in_last_save") else None
    trainer.breaks = folder / "broke" if options.get("break_last_step") else None
    trainer.noticed_in = options.get("noticed_in")
    output = trainer.train(resume_from_checkpoint=newest_checkpoint(args.output_dir) if options.get("resume") else None)
    steps, run = output.global_step, trainer.run
    expected = torch.zeros(SAMPLES, dtype=torch.float64)
    for number in range(steps):
        ids = trainer._sampler.ids(number)
        for id in ids:
            expected[id] += items(id) / sum(map(items, ids))
    result = {
        "steps": steps,
        "wrong": int(((-model.ledger.detach() - expected).abs() > WORST).sum()),
        "vector": torch.cat([one.detach().flatten() for one in model.net.parameters()])[::7].tolist(),
        "rank": run.rank,
        "size": run.size,
        "first": follow.first,
        "saved": follow.saved,
        "epochs": follow.epochs,
        "counted": counts.steps,
        "evaluated": {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry},
        "log": [entry for entry in trainer.state.log_history if "loss" in entry],
        "rate": scheduler.get_last_lr()[0],
    }
    draft = folder / f"draft-{os.getpid()}"
    draft.write_text(json.dumps(result))
    draft.replace(folder / f"result-{os.getpid()}")


if __name__ == "__main__":
    training_worker.main(train)
