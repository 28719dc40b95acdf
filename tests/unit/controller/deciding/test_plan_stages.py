"""The stages of a round run in an order that their rules need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from job_builders import OURS, PLAIN, Cluster, elastic_job, job, replica, tainted

from elastic.api.job import Job, JobStatus
from elastic_training.controller.deciding import active
from elastic_training.controller.deciding.actions import Plan
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Container, PodPhase, WorldSeen

SPOT = "aws-node-termination-handler/spot-itn"
STAGES = active.STAGES
CONSTRAINTS = [(stage.name, before) for stage in STAGES for before in stage.after]


class Story(Cluster):
    """A cluster that keeps the status after each round."""

    def __init__(self, one: Job, *, settings: Settings = PLAIN) -> None:
        super().__init__(one, settings=settings)
        self.statuses: list[JobStatus] = []

    def round(self) -> Plan:
        planned = super().round()
        self.statuses.append(self.job.status)
        return planned


def started(cluster: Story) -> Story:
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def fails(cluster: Story, name: str) -> None:
    ended = Container(name=cluster.job.kind.container, exit_code=137, ended_at=cluster.now)
    cluster.pods[name] = replace(cluster.pods[name], phase=PodPhase.FAILED, is_ready=False, containers=(ended,))


def evicted() -> Story:
    """Let a node give notice to a worker of our rendezvous."""
    cluster = started(Story(elastic_job(3), settings=OURS))
    cluster.world = WorldSeen(1, frozenset(cluster.pods), phase="running", size=3)
    cluster.pods = {name: replace(one, node=f"node-{one.index}") for name, one in cluster.pods.items()}
    cluster.nodes["node-2"] = tainted("node-2", SPOT)
    cluster.settle()
    return cluster


def crashing() -> Story:
    """Let a static worker fail soon after each start."""
    cluster = started(Story(job(Worker=replica(2, restart="ExitCode"))))
    for _ in range(3):
        fails(cluster, "train-worker-1")
        cluster.settle()
        cluster.now += timedelta(seconds=1)
        cluster.run_all()
        cluster.settle()
    return cluster


def restarted() -> Story:
    """Let a group restart as a whole."""
    cluster = started(Story(job("JAXJob", Worker=replica(2, restart="OnFailure", kind="JAXJob"), policy={"restartScope": "Group"})))
    fails(cluster, "train-worker-1")
    cluster.settle()
    return cluster


def store_lost() -> Story:
    """Let the store pod of a c10d job be lost again and again."""
    cluster = started(Story(elastic_job(2, elastic={"rdzvBackend": "c10d"}), settings=OURS))
    for _ in range(3):
        for name in [name for name in cluster.owned if name[0] == "Pod"]:
            del cluster.owned[name]
        cluster.now += timedelta(seconds=1)
        cluster.settle()
    return cluster


STORIES = (evicted, crashing, restarted, store_lost)


def told(story: Callable[[], Story], monkeypatch: pytest.MonkeyPatch, stages: tuple[active.PlanStage, ...]) -> object:
    """Return the status after each round of a story, or the error that a wrong order causes."""
    monkeypatch.setattr(active, "STAGES", stages)
    try:
        return story().statuses
    except Exception as error:
        return type(error)


def moved(name: str, before: str) -> tuple[active.PlanStage, ...]:
    """Return the stages with this one moved in front of another."""
    (stage,) = (one for one in STAGES if one.name == name)
    others = [one for one in STAGES if one.name != name]
    place = [one.name for one in others].index(before)
    return (*others[:place], stage, *others[place:])


def test_each_stage_comes_after_the_stages_that_it_reads() -> None:
    names = [stage.name for stage in STAGES]
    assert len(set(names)) == len(names)
    assert all(names.index(before) < names.index(name) for name, before in CONSTRAINTS)


@pytest.mark.parametrize(("name", "before"), CONSTRAINTS)
def test_each_constraint_is_needed(name: str, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constraint that no story needs would only be a habit."""
    expected = [told(story, monkeypatch, STAGES) for story in STORIES]
    assert [told(story, monkeypatch, moved(name, before)) for story in STORIES] != expected
