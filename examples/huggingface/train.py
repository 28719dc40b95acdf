"""Hugging Face's Trainer in an elastic job: after a change of the world it goes on from the last checkpoint on the shared volume.

Run by torchrun. Nothing is downloaded: a small GPT-2 of its own learns to count. In your script two things stay: `ElasticCallback`, and
`resume_from_checkpoint` with the last checkpoint of a folder that all workers see.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

try:
    from elastic_worker.report import Reporter
except ImportError:  # not put into this container
    Reporter = None

CHECKPOINTS = os.environ.get("CHECKPOINT_DIR", "/checkpoints")
STEPS = int(os.environ.get("STEPS", "300"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "50"))
NUMBERS, LENGTH = 32, 16


class Counting(torch.utils.data.Dataset):
    """Rows of numbers that follow each other."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(LENGTH) + index) % NUMBERS
        return {"input_ids": row, "labels": row}


class ElasticCallback(TrainerCallback):
    """Reports each step, and saves when a worker must go soon: every rank hears rank 0's answer, so that all save at one step."""

    def __init__(self) -> None:
        takes_reports = os.environ.get("PET_RDZV_BACKEND") == "elastic" or "ELASTIC_REPORTS" in os.environ
        is_first = os.environ.get("RANK", "0") == "0"
        self._reporter = Reporter.from_environment() if Reporter and takes_reports and is_first else None
        self._loss: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self._loss = {"loss": float(logs["loss"])}

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            print(f"rank 0 saved step {state.global_step}", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        answer = None
        if self._reporter is not None:
            samples = state.global_step * args.per_device_train_batch_size * args.world_size
            answer = self._reporter.send(state.global_step, samples=samples, **self._loss)
        wants = torch.tensor([int(answer is not None and answer.checkpoint_s is not None)], device=args.device)
        if torch.distributed.is_initialized():
            torch.distributed.broadcast(wants, src=0)
        control.should_save = control.should_save or bool(wants)
        return control


def main() -> None:
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=NUMBERS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        output_dir=CHECKPOINTS,
        max_steps=STEPS,
        save_steps=SAVE_EVERY,
        save_total_limit=2,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Counting(), callbacks=[ElasticCallback()])
    last = get_last_checkpoint(CHECKPOINTS) if os.path.isdir(CHECKPOINTS) else None
    rank, world = arguments.process_index, arguments.world_size
    print(f"world {world} rank {rank} goes on from {os.path.basename(last) if last else 'the beginning'}", flush=True)
    result = trainer.train(resume_from_checkpoint=last)
    print(f"rank {rank} done at step {result.global_step}, loss {trainer.state.log_history[-1].get('train_loss', 0.0):.4f}", flush=True)


if __name__ == "__main__":
    main()
