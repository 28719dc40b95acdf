"""The invariants of the engine find states that no step may lead to."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from rendezvous_group import Group, group_of

from elastic.membership.wire import Restart
from elastic_training.rendezvous.engine.invariants import broken
from elastic_training.rendezvous.engine.state.accounting import Loss
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.engine.state.membership import CurrentWorld, MemberPhase, Round

Change = Callable[[JobState], JobState]


def world(**changes: object) -> Change:
    """Return a change of the current world."""

    def change(job: JobState) -> JobState:
        assert job.membership.world is not None
        return replace(job, membership=replace(job.membership, world=replace(job.membership.world, **changes)))  # type: ignore[arg-type]

    return change


def group(**changes: object) -> Change:
    return lambda job: replace(job, membership=replace(job.membership, **changes))  # type: ignore[arg-type]


def accounting(**changes: object) -> Change:
    return lambda job: replace(job, accounting=replace(job.accounting, **changes))  # type: ignore[arg-type]


def timings(**changes: object) -> Change:
    return lambda job: replace(job, timings=replace(job.timings, **changes))  # type: ignore[arg-type]


def standing() -> Group:
    return group_of(2)


LOSS = Loss("w0", "pod", "disruption", "it is gone")
SEALED = CurrentWorld(id="9-s", generation=9, by_rank=("w0", "w1"), store="", reason="", cause="", ranks={"w0": 0, "w1": 1})
EARLIER = Round("why", "plan", 0.0, False, math.inf)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (world(by_rank=("w0", "w0")), "dense and unique"),
        (world(ranks={"w0": 0, "w1": 5}), "dense and unique"),
        (world(by_rank=("w0", None), ranks={"w0": 0}), "unknown members"),
        (world(generation=7), "the highest known number is 1"),
        (group(finished=frozenset({"x"})), "have started or finished there: ['x']"),
        (group(world=None, started=frozenset({"w0"})), "in no world: ['w0']"),
        (lambda job: replace(job, membership=job.membership.without("w1")), "neither here nor recorded as lost: ['w1']"),
        (lambda job: job.change("w0", incarnation="old"), "which a newer one replaced"),
        (lambda job: job.change("w0", phase=MemberPhase.READY), "w0 is ready, and in world 1-s1"),
        (lambda job: job.change("w0", world_id=""), "w0 works in no world"),
        (lambda job: job.with_round(EARLIER), "the round has no deadline"),
        (lambda job: job.with_round(replace(EARLIER, until=1.0, draining=True)), "the time of the call is unknown"),
        (lambda job: job.with_round(replace(EARLIER, until=1.0, began=math.inf)), "in the future"),
        (timings(doubt_since=1.0), "a doubt has no beginning"),
        (accounting(losses=(LOSS, LOSS)), "recorded as lost twice"),
        (accounting(known_restarts={"a": Restart(id="b", generation=1, cause="user")}), "the id of another one"),
        (accounting(restarts={"user": 1}), "restarts are counted no more"),
        (accounting(restarts={"user": -1}), "a number of restarts is negative"),
        (accounting(closed="another"), "closed again"),
        (group(expectation=None), "the expectation is forgotten"),
        (group(generation=0), "the generation falls from 1 to 0"),
        (group(arrivals=0), "the number of arrivals falls"),
        (lambda job: replace(job, now=0.0), "time goes back"),
        (lambda job: replace(job, progress=replace(job.progress, step=4)), "the highest step falls from 5 to 4"),
        (group(world=SEALED, generation=9), "is sealed without its members"),
        (group(world=replace(SEALED, generation=1)), "world 9-s is sealed, and number 1 is known"),
    ],
)
def test_a_broken_state_is_named(change: Change, words: str) -> None:
    job = replace(group_of(2).job, progress=replace(standing().job.progress, step=5))
    before = accounting(restarts={"user": 2}, closed="why")(group(retired=(("w0", "old"),))(job))
    assert broken(job, job) == []
    start = before if "closed" in words or "no more" in words else group(retired=(("w0", "old"),))(job)
    assert any(words in found for found in broken(start, change(start))), broken(start, change(start))


def test_no_world_is_sealed_in_a_doubt() -> None:
    job = timings(doubt_since=5.0, first_doubt_at=5.0)(group_of(2).job)
    assert broken(job, job) == []
    assert "world 9-s is sealed in a doubt" in broken(job, group(world=SEALED, generation=9)(job))
