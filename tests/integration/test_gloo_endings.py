"""The examples end in a way in which torch neither hangs nor aborts: nothing holds the process group when it is destroyed.

A DistributedDataParallel object that is still there then drops the group's last reference later, with the GIL held, while a thread of the
group may want the GIL. How often that hits is `python -m benchmarks.endings --hold`; here it is asked of the code, not of chance.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(240)]
ROOT = Path(__file__).parent.parent.parent
SCRIPTS = sorted((ROOT / "examples").glob("pytorch-*/train.py"))
EXAMPLES = list({path.read_text(): path for path in reversed(SCRIPTS)}.values())
"""One of those that are the same."""
HELD_BY_TORCH = ("pytorch-fsdp", "pytorch-fsdp-in-process")
"""DTensor's own caches keep the group until the process ends, whatever a script drops; nothing joins its threads then."""
WATCHED = """
import os, runpy, sys, time
import torch.distributed as dist
destroy = dist.destroy_process_group
def watched():
    print("before:", threads(), flush=True)
    destroy()
    # A joined thread may stand in /proc for another moment; one of a group that is held stays.
    until = time.monotonic() + 10
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    print("after:", threads(), flush=True)
def threads():
    return [name for name in map(name_of, os.listdir("/proc/self/task")) if "gloo" in name]
def name_of(task):
    try:
        with open(f"/proc/self/task/{task}/comm") as comm:
            return comm.read().strip()
    except OSError:
        return ""  # it ended in between
dist.destroy_process_group = watched
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_there_are_examples_to_look_at() -> None:
    kinds = ("checkpoints", "elastic", "etcd", "fsdp", "fsdp-in-process", "in-process", "static")
    assert [path.parent.name for path in SCRIPTS] == [f"pytorch-{kind}" for kind in kinds]


@pytest.mark.parametrize("example", [path for path in EXAMPLES if path.parent.name not in HELD_BY_TORCH], ids=lambda path: path.parent.name)
def test_the_group_of_an_example_is_gone_with_its_threads_once_it_is_destroyed(example: Path, tmp_path: Path) -> None:
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1", "STEPS": "3", "STEP_SECONDS": "0"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    command = [sys.executable, "-c", WATCHED, str(example)]
    ended = subprocess.run(
        command, env=environment | alone | {"CHECKPOINT_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr
    told = dict(line.split(": ") for line in ended.stdout.splitlines() if line.startswith(("before", "after")))
    assert "pt_gloo_runloop" in told["before"]
    assert told["after"] == "[]"


@pytest.mark.full
def test_ranks_of_the_examples_end_with_0_again_and_again() -> None:
    command = [sys.executable, "-m", "benchmarks.endings", "--runs", "2", *map(str, EXAMPLES)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=220, check=False)
    assert ended.returncode == 0, ended.stderr
    assert [line.partition(": ")[2] for line in ended.stdout.splitlines()] == ["6 ended with 0"] * len(EXAMPLES), ended.stdout
