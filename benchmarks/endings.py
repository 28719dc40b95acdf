"""Count how often torch hangs or aborts at the end of a gloo job. The examples run repeatedly, each rank as a fork with torch imported.

    python -m benchmarks.endings [--runs 334] [--hold] [--stacks FOLDER] [examples/pytorch-elastic/train.py]

`--hold` keeps the DistributedDataParallel object beyond destroy_process_group(), as scripts that do everything in one function do. A rank
that has not ended a minute after the first of its peers is counted as hung and killed; with `--stacks` gdb writes down where it stands.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
import torch._dynamo  # or the first optimizer step of each rank imports it
import torch.distributed as dist

RUN_S = 180.0
PEER_S = 60.0
EXAMPLES = Path(__file__).parent.parent / "examples"
DEBUGGER = ("gdb", "-iex", "set sysroot /", "-iex", "set auto-load off", "-batch", "-ex", "thread apply all bt 40", "-p")


def hold_wrappers(held: list[object]) -> None:
    """Let every DistributedDataParallel object of this process live as long as the list."""

    class Held(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]
            held.append(self)

    torch.nn.parallel.DistributedDataParallel = Held  # type: ignore[misc]


def be_rank(script: Path, *, rank: int, ranks: int, port: int, folder: str, hold: bool) -> None:
    """Run the script as a worker that was forked under torchrun runs it."""
    held: list[object] = []  # goes with this frame, as the variables of a script's main() do
    if hold:
        hold_wrappers(held)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks), TORCHELASTIC_ERROR_FILE=f"{folder}/{rank}/error.json")
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", STEPS="20", STEP_SECONDS="0", CHECKPOINT_DIR=folder)
    torch.set_num_threads(1)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    runpy.run_path(str(script), run_name="__main__")


def await_ends(pids: list[int], stacks: str) -> Counter[str]:
    """Count the ends of the ranks by their words. Kill ranks that hang."""
    ends: Counter[str] = Counter()
    left, until = set(pids), time.monotonic() + RUN_S
    while left and time.monotonic() < until:
        for pid in list(left):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                left.remove(pid)
                until = min(until, time.monotonic() + PEER_S)
                code = os.waitstatus_to_exitcode(status)
                ends["ended with 0" if code == 0 else f"ended with {code}"] += 1
        time.sleep(0.005)
    for pid in left:
        if stacks:
            text = subprocess.run([*DEBUGGER, str(pid)], capture_output=True, text=True, timeout=120).stdout
            (Path(stacks) / f"hung.{pid}.txt").write_text(text)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ends["hung"] += 1
    return ends


def start_store() -> tuple[int, int]:
    """Start a TCPStore in its own process, and return its pid and port. A store that ranks inherit by fork would abort their exit."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        served = dist.TCPStore(  # type: ignore[attr-defined]
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        os.write(writer, str(served.port).encode())
        time.sleep(2 * RUN_S)
        os._exit(0)
    port = int(os.read(reader, 16))
    os.close(reader)
    os.close(writer)
    return pid, port


def run_once(script: Path, *, ranks: int, hold: bool, stacks: str) -> Counter[str] | None:
    """Run one job with this number of ranks. Return None in a rank, which then ends as a program does."""
    folder = tempfile.mkdtemp()
    store, port = start_store()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            be_rank(script, rank=rank, ranks=ranks, port=port, folder=folder, hold=hold)
            return None
        pids.append(pid)
    ends = await_ends(pids, stacks)
    os.kill(store, signal.SIGKILL)
    os.waitpid(store, 0)
    shutil.rmtree(folder)
    return ends


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("scripts", nargs="*", type=Path, default=sorted(EXAMPLES.glob("pytorch-*/train.py")))
    reader.add_argument("--runs", type=int, default=334)
    reader.add_argument("--ranks", type=int, default=3)
    reader.add_argument("--hold", action="store_true")
    reader.add_argument("--stacks", default="")
    given = reader.parse_args()
    for script in given.scripts:
        total: Counter[str] = Counter()
        for _ in range(given.runs):
            ends = run_once(script, ranks=given.ranks, hold=given.hold, stacks=given.stacks)
            if ends is None:
                return
            total += ends
        told = ", ".join(f"{count} {words}" for words, count in sorted(total.items()))
        print(f"{script.parent.name}/{script.name}, {given.runs} runs of {given.ranks} ranks: {told}", flush=True)


if __name__ == "__main__":
    main()
