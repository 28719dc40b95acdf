"""The writes that the controller asks the API server for in the whole life of a static job, Events included."""

import asyncio
from collections import Counter

import pytest
import sim_time
from sim_api import Write
from sim_jobs import NAME, job_of
from test_sim_rest import KIND, Scene

from elastic.api.job import Object
from elastic.api.kinds import KINDS
from elastic.kube.resources import PODS
from elastic_training.controller.acting.status_debounce import PATIENCE_S
from elastic_training.controller.facts.keys import JOBS

PODS_OF_JOB = 5
WORK_S = 60.0
MASTER_LAST = [f"{NAME}-worker-{n}" for n in range(PODS_OF_JOB - 1)] + [f"{NAME}-master-0"]
MASTER_FIRST = MASTER_LAST[::-1]
PARTS = {"Pod": 5, "Service": 5, "Secret": 1}
EVENTS = {"SuccessfulCreatePod": 1, "SuccessfulCreateService": 1, "ExitedWithCode": 1, f"{KIND}Succeeded": 1}


class Life(Scene):
    """The whole life of one job, whose pods start so many seconds after they were made, and end in an order, so many seconds apart."""

    def __init__(self, *, apart_s: float) -> None:
        super().__init__()
        self._apart_s = apart_s
        self.api.observers.append(self._start)

    async def _tick(self) -> None:
        """Do nothing. The story moves the pods, not the nodes."""

    def _start(self, write: Write) -> None:
        if write.resource == PODS and write.before is None:
            delay_s = 0.2 + self._apart_s * MASTER_FIRST.index(write.name)
            asyncio.get_running_loop().call_later(delay_s, self._show, write.name, "Running", {"running": {}})

    def _show(self, name: str, phase: str, state: Object) -> None:
        container = {"name": KINDS[KIND].container, "restartCount": 0, "state": state}
        self.api.change(PODS, name, lambda pod: pod["status"].update({"phase": phase, "containerStatuses": [container]}))

    async def play(self, ends: list[str]) -> None:
        job = job_of(KINDS[KIND], {"Master": 1, "Worker": PODS_OF_JOB - 1}, run_policy={})
        self.api.create(JOBS[KIND], job, actor="user")
        await asyncio.sleep(WORK_S)
        assert self.conditions(NAME) == [f"{KIND}Created", f"{KIND}Running"]
        for name in ends:
            self._show(name, "Succeeded", {"terminated": {"exitCode": 0}})
            await asyncio.sleep(self._apart_s)
        await self.until_quiet()
        assert self.conditions(NAME) == [f"{KIND}Created", f"{KIND}Running", f"{KIND}Succeeded"]

    def cost(self) -> Counter[str]:
        """Count the writes by the kind of an object or the reason of an Event."""
        made = Counter(write.after["reason"] if write.after and "reason" in write.after else write.resource.kind for write in self.writes)
        assert made.total() == self.controller.kube.calls, "every request was one that changed something"
        return made


@pytest.mark.parametrize("ends", [MASTER_LAST, MASTER_FIRST])
def test_a_static_job_of_5_pods_with_services_costs_17_writes_in_its_whole_life(ends: list[str]) -> None:
    """Its pods start within a second of being made, and end within a second. The Training Operator asks for 30 writes.

    The Secret holds the token by which the program reports its progress.
    """

    async def story() -> None:
        life = Life(apart_s=0.1)
        await life.play(ends)
        assert life.cost() == {**PARTS, **EVENTS, KIND: 2}
        assert life.cost().total() == 17

    sim_time.run(story())


def test_pods_that_start_and_end_one_by_one_cost_a_patch_each_and_each_end_an_event() -> None:
    async def story() -> None:
        life = Life(apart_s=3.0)
        await life.play(MASTER_LAST)
        # The master's start comes within the second in which the job is said to be accepted.
        assert life.cost() == {**PARTS, **EVENTS, "ExitedWithCode": PODS_OF_JOB, KIND: 2 * PODS_OF_JOB}

    sim_time.run(story())


def test_a_job_is_said_to_be_accepted_a_second_after_it_came_for_any_state_of_its_pods() -> None:
    async def story() -> None:
        life = Life(apart_s=100.0)
        job = job_of(KINDS[KIND], {"Worker": 2}, run_policy={})
        life.api.create(JOBS[KIND], job, actor="user")
        await asyncio.sleep(PATIENCE_S + 0.5)
        assert life.conditions(NAME) == [f"{KIND}Created"]

    sim_time.run(story())
