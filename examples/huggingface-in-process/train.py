"""Hugging Face's Trainer in a job whose workers come and go while its processes keep running, and no step is lost.

Run by torchrun. Nothing is downloaded: a small GPT-2 learns to count. Your script needs `ElasticTrainer` in place of `Trainer`, and
`ElasticTrainingArguments` with the batch of all workers together. The checkpoints are for the case that all workers are lost.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback

from elastic_worker.integrations.huggingface import newest_checkpoint
from elastic_worker.integrations.huggingface_trainer import ElasticTrainer, ElasticTrainingArguments

CHECKPOINTS = os.environ.get("CHECKPOINT_DIR", "/checkpoints")
STEPS = int(os.environ.get("STEPS", "300"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "50"))
NUMBERS, LENGTH = 32, 16


class Counting(torch.utils.data.Dataset):
    """Rows of numbers that follow each other."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(LENGTH) + index) % NUMBERS
        return {"input_ids": row, "labels": row}


class SaidSteps(TrainerCallback):
    """Prints the steps, with the number of workers that made each."""

    trainer: ElasticTrainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(STEP_SECONDS)  # in place of a larger model's work

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs and "loss" in logs:
            print(f"step {state.global_step} world {self.trainer.run.size} loss {logs['loss']}", flush=True)


def main() -> None:
    config = GPT2Config(vocab_size=NUMBERS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    arguments = ElasticTrainingArguments(
        output_dir=CHECKPOINTS,
        global_batch_size=48,
        per_device_train_batch_size=16,
        max_steps=STEPS,
        save_steps=SAVE_EVERY,
        save_total_limit=2,
        learning_rate=3e-3,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    steps = SaidSteps()
    steps.trainer = ElasticTrainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Counting(), callbacks=[steps])
    result = steps.trainer.train(resume_from_checkpoint=newest_checkpoint(CHECKPOINTS))
    print(f"rank {steps.trainer.run.rank} done at step {result.global_step}, loss {result.training_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
