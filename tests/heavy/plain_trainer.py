"""A script for Hugging Face's Trainer that knows nothing of us: it imports no library of ours and names no integration."""

import os
import time
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

NUMBERS, LENGTH = 32, 16


class Counting(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(LENGTH) + index) % NUMBERS
        return {"input_ids": row, "labels": row}


class Slow(TrainerCallback):
    """Stands for a model that takes its time."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(float(os.environ["STEP_SECONDS"]))


config = GPT2Config(vocab_size=NUMBERS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
arguments = TrainingArguments(
    output_dir="/tmp/unused",
    max_steps=int(os.environ["STEPS"]),
    save_strategy="no",
    per_device_train_batch_size=4,
    logging_steps=2,
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Counting(), callbacks=[Slow()])
print(f"done at step {trainer.train().global_step}", flush=True)
