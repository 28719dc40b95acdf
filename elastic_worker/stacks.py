"""Print what the training processes of this container do, with their Python stacks.

    python -m elastic_worker.stacks                all of them
    python -m elastic_worker.stacks --rank 3       the one with this rank

It needs no rights beyond those of the container's user. `elastic stacks JOB` runs it in each pod of a job.
"""

import argparse
import json
import os
import sys
import time
import typing

from elastic_worker.gloo_deadlock import procfs
from elastic_worker.looking.source_lines import SourceLines
from elastic_worker.looking.watching import Look, Watched, text_of, title_of
from elastic_worker.settings import POD_UID

APART_S = 0.3
"""Seconds between two looks, which show the CPU time that a worker uses."""
LONGEST_TEXT = 128 * 1024
MOST_WORKERS = 64
RUN = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets for its workers."""


class Worker(typing.NamedTuple):
    """A worker, or the stub that represents it."""

    local_rank: int
    rank: int
    size: int
    """Size of its world when the worker began."""
    pid: int


def workers_of(pids: typing.Iterable[int], own: typing.Mapping[str, str]) -> typing.List[Worker]:
    """Return the workers of torchrun among these processes, by local rank. `own`: the variables of this process.

    Pods of a laptop cluster may see each other's processes, so each one must have the pod's uid.
    """
    found = []
    for pid in pids:
        try:
            variables = procfs.environment(pid)
            if RUN not in variables or "LOCAL_RANK" not in variables or variables.get(POD_UID, "") != own.get(POD_UID, ""):
                continue
            if "LOCAL_RANK" in procfs.environment(procfs.stat(pid).parent):
                continue  # a child process of a worker
            local_rank, rank, size = (int(variables[name]) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))
        except (procfs.Unreadable, KeyError, ValueError):
            continue
        found.append(Worker(local_rank, rank, size, pid))
    return sorted(found)[:MOST_WORKERS]


def look_at(workers: typing.Sequence[Worker], pod_rank: typing.Optional[int]) -> typing.List[typing.Tuple[int, Look]]:
    """Look at the workers twice, and return the second looks by present rank.

    pod_rank: the present rank of this pod. Without it, workers have the ranks with which they began.
    """
    lines = SourceLines()
    watched = [Watched(worker.pid, look_s=0.0, lines=lines) for worker in workers]
    for one, worker in zip(watched, workers):
        one.look(size=worker.size)
    time.sleep(APART_S)
    looks = []
    for one, worker in zip(watched, workers):
        rank = worker.rank if pod_rank is None else pod_rank * len(workers) + worker.local_rank
        looks.append((rank, one.look(size=worker.size, is_complete=True)))
    return looks


def as_fields(rank: int, look: Look) -> typing.Dict[str, typing.Any]:
    """Return a look as an object for programs."""
    pid = look.sight.main.pid if look.sight is not None else None
    told = {name: look.fields.get(name, "") for name in ("kind", "does", "place", "code")}
    return {"rank": rank, "pid": pid, **told, "cpu": look.fields.get("cpu", 0.0), "stacks": text_of(look, "", LONGEST_TEXT).strip("\n")}


def main(arguments: typing.Optional[typing.Sequence[str]] = None) -> int:
    """Print the stacks, and return 0."""
    parser = argparse.ArgumentParser(prog="python -m elastic_worker.stacks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rank", type=int, help="only the worker with this rank")
    parser.add_argument("--pod-rank", type=int, help="the present rank of this pod, if workers may have begun with another one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    workers = workers_of(pids, os.environ)
    looks = [(rank, look) for rank, look in look_at(workers, given.pod_rank) if given.rank in (None, rank)]
    if given.json:
        print(json.dumps({"workers": [as_fields(rank, look) for rank, look in looks]}))
    elif not looks:
        named = "no worker with rank {}".format(given.rank) if workers else "no training process of torchrun"
        print("elastic_worker: {} runs in this container".format(named), file=sys.stderr)
    else:
        print("\n\n".join(text_of(look, title_of(look, rank), LONGEST_TEXT) for rank, look in looks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
