"""What carrying out a plan and working off the queue hold to when requests fail: plain stories of what the simulation found."""

import asyncio
from datetime import UTC, datetime

from controller.actions import Plan, normal
from controller.apply import Applier
from controller.keys import Key
from controller.tell import Teller
from controller.workqueue import LONGEST_BACK_OFF_S, WorkQueue
from elastic.api.job import Condition, JobStatus
from elastic.kube.errors import KubeError
from elastic.kube.resources import EVENTS, Object, Resource

KEY = Key("PyTorchJob", "team", "train")
JOB: Object = {"kind": "PyTorchJob", "metadata": {"name": "train", "namespace": "team", "uid": "u", "resourceVersion": "1"}}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DONE = JobStatus(conditions=(Condition(type="Succeeded", status="True"),))


class Kube:
    """Takes Events; refuses status patches as long as it is told to."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.refuses = True

    async def create(self, resource: Resource, body: Object, *, namespace: str) -> Object:
        assert resource == EVENTS
        self.events.append(body["reason"])
        return body

    async def patch(self, resource: Resource, name: str, body: Object, *, namespace: str, subresource: str) -> Object:
        if self.refuses:
            raise KubeError(code=409, reason="Conflict", message="the object has been modified")
        return {**JOB, **body}


async def test_an_event_waits_until_the_status_says_the_same() -> None:
    kube = Kube()
    applier = Applier(kube, Teller(kube), None)  # type: ignore[arg-type]
    plan = Plan(status=DONE, news=(normal("PyTorchJobSucceeded", "done"),))
    await applier.carry_out(KEY, JOB, plan, old=JobStatus(), now=NOW)
    assert kube.events == []
    kube.refuses = False
    await applier.carry_out(KEY, JOB, plan, old=JobStatus(), now=NOW)
    assert kube.events == ["PyTorchJobSucceeded"]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def failed_round(queue: WorkQueue[str], *, meanwhile: bool = False) -> None:
    await queue.take()
    if meanwhile:
        queue.add("job")
    queue.done("job", failed=True)


async def test_a_job_that_fails_for_days_comes_back_again_and_again() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add("job")
    for _ in range(1100):
        await failed_round(queue)
        clock.now += LONGEST_BACK_OFF_S
    assert (await queue.take())[0] == "job"


async def test_a_failing_job_to_which_something_happened_is_looked_at_within_a_second() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add("job")
    for _ in range(20):
        await failed_round(queue)
        clock.now += LONGEST_BACK_OFF_S
    await failed_round(queue, meanwhile=True)
    clock.now += 1.0
    async with asyncio.timeout(5.0):
        assert (await queue.take())[0] == "job"
