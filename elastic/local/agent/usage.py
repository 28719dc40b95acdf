"""Measure the CPU and memory of running containers, as in a kubelet's summary.

It reads CPU time from /proc for all processes at once, every few seconds, because a rate needs two readings. It reads memory only when a
request comes. It knows containers by their runs, and writes nothing.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from elastic.local.agent import memory
from elastic.local.agent.environment import Object
from elastic.local.agent.pod import PodRunner

READ_EVERY_S = 10.0
LEAST_WINDOW_S = 1.0
"""Seconds of the shortest useful window: the kernel counts in hundredths of a second."""


@dataclass(frozen=True, slots=True)
class Process:
    parent: int
    cpu_s: float
    """CPU seconds of the process and of its ended children, if the process waited for them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The CPU time of a container's run since its start."""

    at: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class CpuUse:
    cores: float
    window_s: float
    at: float
    total_s: float


def processes() -> dict[int, Process]:
    """Return every process that we can see."""
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            # The command is in parentheses, and may itself contain spaces and parentheses.
            fields = text.rpartition(")")[2].split()
            found[int(entry)] = Process(int(fields[1]), sum(int(ticks) for ticks in fields[11:15]) / tick)
    return found


def trees(seen: Mapping[int, Process], roots: Iterable[int]) -> dict[int, list[int]]:
    """Return the process trees below these processes, including the roots."""
    children: dict[int, list[int]] = {}
    for pid, process in seen.items():
        children.setdefault(process.parent, []).append(pid)
    found = {}
    for root in roots:
        tree = [root] if root in seen else []
        for pid in tree:
            tree += children.get(pid, [])
        found[root] = tree
    return found


def cpu_use(before: Reading | None, now: Reading, *, started_at: float) -> CpuUse | None:
    """Return the rate since the last reading, or since the start of a run with one reading; None while too little time has passed.

    The total falls if a process ended that nobody waited for. The rate is then at least zero.
    """
    since = before or Reading(started_at, 0.0)
    window = now.at - since.at
    if window < LEAST_WINDOW_S:
        return None
    return CpuUse(max(0.0, now.cpu_s - since.cpu_s) / window, window, now.at, now.cpu_s)


@dataclass(slots=True)
class _Container:
    started_at: float
    tree: list[int]
    reading: Reading
    cpu: CpuUse | None
    memory: int | None = None
    """Bytes of memory since the last reading. They are kept, because counting the pages of a large process takes milliseconds."""


class Usage:
    """Follows all pods of a process's nodes."""

    def __init__(self, runners: Callable[[], Iterable[PodRunner]]) -> None:
        self._runners = runners
        self._containers: dict[str, _Container] = {}

    async def run(self) -> None:
        while True:
            await self._read()
            await asyncio.sleep(READ_EVERY_S)

    async def _read(self) -> None:
        running = {record.id: record for runner in self._runners() for _, record in runner.running()}
        if not running:
            self._containers = {}
            return
        seen, now = await asyncio.to_thread(processes), time.time()
        found = trees(seen, [record.pid for record in running.values()])
        self._containers = {id: self._next(self._containers.get(id), record.started_at, found[record.pid], seen, now)
                            for id, record in running.items() if found[record.pid]}  # fmt: skip

    @staticmethod
    def _next(old: _Container | None, started_at: float, tree: list[int], seen: Mapping[int, Process], now: float) -> _Container:
        reading = Reading(now, sum(seen[pid].cpu_s for pid in tree))
        cpu = cpu_use(old.reading if old else None, reading, started_at=started_at)
        if cpu is None and old is not None:
            return old
        return _Container(started_at, tree, reading, cpu)

    async def summary(self, node: str, runners: Iterable[PodRunner]) -> Object:
        """Return a node's answer to /stats/summary. Like a metrics server, leave out pods with a container without readings.

        Otherwise an autoscaler would take the other containers' use for the whole use of the pod.
        """
        pods = [pod for runner in runners if (pod := await self._pod(runner))["containers"]]
        containers = [container for pod in pods for container in pod["containers"]]
        total = {
            "nodeName": node,
            "cpu": _cpu(
                max((c["cpu"]["time"] for c in containers), default=_text(time.time())),
                sum(c["cpu"]["usageNanoCores"] for c in containers),
                sum(c["cpu"]["usageCoreNanoSeconds"] for c in containers),
            ),
            "memory": _memory(_text(time.time()), sum(c["memory"]["workingSetBytes"] for c in containers)),
        }
        return {"node": total, "pods": pods, "windowSeconds": READ_EVERY_S}

    async def _pod(self, runner: PodRunner) -> Object:
        metadata = runner.pod["metadata"]
        reference = {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]}
        containers: list[Object] = []
        for name, record in runner.running():
            known = self._containers.get(record.id)
            if known is None or known.cpu is None:
                return {"podRef": reference, "containers": []}
            if known.memory is None:
                known.memory = await asyncio.to_thread(memory.used, known.tree)
            at, cpu = _text(known.cpu.at), known.cpu
            containers.append(
                {
                    "name": name,
                    "startTime": _text(known.started_at),
                    "cpu": _cpu(at, round(cpu.cores * 1e9), round(cpu.total_s * 1e9)) | {"windowSeconds": round(cpu.window_s, 3)},
                    "memory": _memory(at, known.memory),
                }
            )
        return {"podRef": reference, "containers": containers}


def _cpu(at: str, nano_cores: int, nano_seconds: int) -> Object:
    return {"time": at, "usageNanoCores": nano_cores, "usageCoreNanoSeconds": nano_seconds}


def _memory(at: str, used: int) -> Object:
    return {"time": at, "workingSetBytes": used}


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
