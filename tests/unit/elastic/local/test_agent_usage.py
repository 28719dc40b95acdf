"""Check CPU rates from readings of /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

from elastic.local.agent.usage import CpuUse, Process, Reading, Usage, cpu_use, processes, trees


def test_a_rate_is_taken_between_two_readings() -> None:
    assert cpu_use(Reading(100.0, 7.0), Reading(110.0, 22.0), started_at=0.0) == CpuUse(1.5, 10.0, 110.0, 22.0)


def test_the_first_reading_of_a_run_counts_from_its_start() -> None:
    assert cpu_use(None, Reading(110.0, 2.0), started_at=106.0) == CpuUse(0.5, 4.0, 110.0, 2.0)


def test_a_window_too_short_gives_no_rate() -> None:
    assert cpu_use(None, Reading(100.5, 0.2), started_at=100.0) is None


def test_time_lost_with_processes_nobody_waited_for_makes_no_negative_rate() -> None:
    use = cpu_use(Reading(100.0, 30.0), Reading(110.0, 21.0), started_at=0.0)
    assert use is not None
    assert use.cores == 0.0


def test_a_tree_holds_its_root_and_all_below_it() -> None:
    seen = {pid: Process(parent, 0.0) for pid, parent in ((1, 0), (2, 1), (3, 2), (4, 2), (5, 1), (6, 4))}
    assert {root: sorted(tree) for root, tree in trees(seen, [2, 5, 9]).items()} == {2: [2, 3, 4, 6], 5: [5], 9: []}


def test_the_time_of_a_child_that_has_ended_stays_with_its_parent() -> None:
    before = processes()[os.getpid()].cpu_s
    spent = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", spent], check=True)
    time.sleep(0.02)
    assert processes()[os.getpid()].cpu_s - before >= 0.28


async def measured(**started_s_ago: float) -> list[str]:
    """Return the containers in a pod's summary. They started these numbers of seconds before the first reading."""
    now = time.time()
    running = [(name, SimpleNamespace(id=name, pid=os.getpid(), started_at=now - ago)) for name, ago in started_s_ago.items()]
    metadata = {"name": "pair", "namespace": "default", "uid": "u"}
    runner: Any = SimpleNamespace(pod={"metadata": metadata}, running=lambda: running)
    usage = Usage(lambda: [runner])
    await usage._read()
    return [container["name"] for pod in (await usage.summary("node-0", [runner]))["pods"] for container in pod["containers"]]


async def test_a_pod_is_told_of_once_each_of_its_containers_is_measured() -> None:
    """A reading between the starts of two containers measured only one. An autoscaler took its CPU time for the pod's."""
    assert await measured(first=5.0, second=5.0) == ["first", "second"]
    assert await measured(first=5.0, second=0.0) == []
