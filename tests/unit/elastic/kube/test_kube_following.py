"""Check that the output of a job's containers is reported once, whichever run of a container the kubelet answers with."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from elastic.api import KINDS
from elastic.kube import following
from elastic.kube.following import FollowedJob, Happening, Line

JOB = FollowedJob(KINDS["PyTorchJob"], "default", "train", "job-uid")


def pod(run: int, **state: Any) -> dict[str, Any]:
    status = {"name": "pytorch", "restartCount": run, "state": state}
    spec = {"containers": [{"name": "pytorch"}]}
    return {"metadata": {"name": "train-worker-0", "uid": "u"}, "spec": spec, "status": {"containerStatuses": [status]}}


class Kubelet:
    """Answers like a kubelet, with the newest run of the container or the run before it."""

    def __init__(self) -> None:
        self.runs: list[list[str]] = [[]]
        self.breaks = asyncio.Event()
        self.asked: list[bool] = []

    async def logs(
        self, name: str, *, namespace: str, container: str, follow: bool = False, previous: bool = False
    ) -> AsyncIterator[bytes]:
        self.asked.append(previous)
        for line in self.runs[-2 if previous else -1]:
            yield line.encode() + b"\n"
        if follow and not previous:
            await self.breaks.wait()


async def told_after(kubelet: Kubelet, *, is_seen: bool) -> list[Happening]:
    """Return what is reported of a container that restarted, if the reader asks again before or after it sees the restart."""
    told: list[Happening] = []
    async with asyncio.TaskGroup() as tasks:
        logs = following._Logs(kubelet, JOB, tell=told.append, tasks=tasks)  # type: ignore[arg-type]
        logs.see(pod(0, running={}), is_there=True)
        await asyncio.sleep(0.01)
        kubelet.runs.append(["second 1", "second 2", "second 3"])
        if is_seen:
            logs.see(pod(1, running={}), is_there=True)
        kubelet.breaks.set()
        kubelet.breaks = asyncio.Event()
        await asyncio.sleep(2 * following.SETTLE_S)
        logs.see(pod(1, running={}), is_there=True)
        await asyncio.sleep(0.01)
        logs.stop()
    return told


async def test_the_lines_of_a_run_that_ended_quietly_are_not_those_of_the_next_run() -> None:
    """A container that died before it printed anything was started again at once.

    Its reader asked for the log again and got the next run's log. From then on, all output of the job was reported twice.
    """
    kubelet = Kubelet()
    assert await told_after(kubelet, is_seen=True) == [Line("train-worker-0", f"second {number}") for number in (1, 2, 3)]
    assert True in kubelet.asked


async def test_a_reader_that_is_answered_with_the_next_run_before_it_sees_the_restart_stops() -> None:
    kubelet = Kubelet()
    kubelet.runs[0] = ["first 1", "first 2"]
    lines = await told_after(kubelet, is_seen=False)
    wanted = ["first 1", "first 2", "second 1", "second 2", "second 3"]
    assert lines == [Line("train-worker-0", text) for text in wanted]


async def test_a_log_that_broke_off_is_read_on_without_what_was_reported() -> None:
    kubelet = Kubelet()
    kubelet.runs[0] = ["first 1", "first 2"]
    told: list[Happening] = []
    async with asyncio.TaskGroup() as tasks:
        logs = following._Logs(kubelet, JOB, tell=told.append, tasks=tasks)  # type: ignore[arg-type]
        logs.see(pod(0, running={}), is_there=True)
        await asyncio.sleep(0.01)
        kubelet.runs[0].append("first 3")
        kubelet.breaks.set()
        await asyncio.sleep(2 * following.SETTLE_S)
        logs.stop()
    assert told == [Line("train-worker-0", f"first {number}") for number in (1, 2, 3)]


@pytest.mark.parametrize(("tail", "first"), [(0, 5), (2, 3), (4, 1), (9, 1)])
async def test_only_the_last_lines_of_the_earlier_output_are_told_and_then_all(tail: int, first: int) -> None:
    kubelet = Kubelet()
    kubelet.runs[0] = [f"first {number}" for number in (1, 2, 3, 4)]
    told: list[Happening] = []
    async with asyncio.TaskGroup() as tasks:
        logs = following._Logs(kubelet, JOB, tell=told.append, tasks=tasks, tail=tail)  # type: ignore[arg-type]
        logs.see(pod(0, running={}), is_there=True, is_new=False)
        await asyncio.sleep(0.01)
        kubelet.runs[0].append("first 5")
        kubelet.breaks.set()
        await asyncio.sleep(2 * following.SETTLE_S)
        logs.stop()
    assert told == [Line("train-worker-0", f"first {number}") for number in range(first, 6)]


async def test_a_pod_that_comes_later_is_told_from_its_beginning() -> None:
    kubelet = Kubelet()
    kubelet.runs[0] = ["one", "two"]
    told: list[Happening] = []
    async with asyncio.TaskGroup() as tasks:
        logs = following._Logs(kubelet, JOB, tell=told.append, tasks=tasks, tail=1)  # type: ignore[arg-type]
        logs.see(pod(0, running={}), is_there=True, is_new=True)
        await asyncio.sleep(0.01)
        logs.stop()
    assert told == [Line("train-worker-0", "one"), Line("train-worker-0", "two")]
