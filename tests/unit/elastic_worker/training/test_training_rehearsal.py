"""The work of a worker before its hello: during a change, all others would wait for it."""

import subprocess
import sys
from pathlib import Path

from scripted_agent import ScriptedAgent

PROGRAM = """
import os, sys, torch
import torch.distributed as dist
from elastic_worker import Run
from elastic_worker.training.control import Control

def hello(self, **fields):
    wanted = ("torch._dynamo", "encodings.idna")
    drawn = ["random numbers"] * (not torch.equal(random, torch.get_rng_state()))
    hook = ["a hook of torch's that prints a rank"] * sys.excepthook.__module__.startswith("torch")
    print([name for name in wanted if name not in sys.modules] + ["a group"] * dist.is_initialized() + drawn + hook, flush=True)
    os._exit(0)

Control.start = hello
model = torch.nn.Linear(2, 2)
random = torch.get_rng_state()
for step in Run(model, torch.optim.SGD(model.parameters(), lr=0.1), batch=1).steps(1):
    pass
"""


def test_a_newcomer_has_made_its_imports_and_its_first_group_before_its_hello(tmp_path: Path) -> None:
    """The first DistributedDataParallel of a process imports torch._dynamo: 1.8 s of CPU time, for which all others waited."""
    agent = ScriptedAgent(tmp_path)
    try:
        command = [sys.executable, "-c", PROGRAM]
        ended = subprocess.run(command, env={"ELASTIC_WORLD": agent.path, "PATH": "/usr/bin"}, capture_output=True, text=True, timeout=300)
    finally:
        agent.close()
    assert ended.stdout == "[]\n", ended.stderr
