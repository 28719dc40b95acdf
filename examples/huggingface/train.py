"""Run Hugging Face's Trainer in an elastic job: after a change of the world it goes on from the last checkpoint on the shared volume.

torchrun starts it. Nothing is downloaded: a small GPT-2 learns to count. Your script needs `ElasticCallback`, and `resume_from_checkpoint`
with the newest checkpoint of a folder that all workers see.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

try:
    from elastic_worker.integrations.huggingface import ElasticCallback, newest_checkpoint
except ImportError:  # this container has no elastic_worker
    ElasticCallback, newest_checkpoint = TrainerCallback, get_last_checkpoint

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
    """Prints the steps."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(STEP_SECONDS)  # in place of a larger model's work

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs and "loss" in logs:
            print(f"step {state.global_step} world {args.world_size} loss {logs['loss']}", flush=True)


def main() -> None:
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
    trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Counting(), callbacks=[SaidSteps(), ElasticCallback()])
    os.makedirs(CHECKPOINTS, exist_ok=True)
    last = newest_checkpoint(CHECKPOINTS)
    rank, world = arguments.process_index, arguments.world_size
    print(f"world {world} rank {rank} goes on from {os.path.basename(last) if last else 'the beginning'}", flush=True)
    result = trainer.train(resume_from_checkpoint=last)
    print(f"rank {rank} done at step {result.global_step}, loss {trainer.state.log_history[-1].get('train_loss', 0.0):.4f}", flush=True)


if __name__ == "__main__":
    main()
