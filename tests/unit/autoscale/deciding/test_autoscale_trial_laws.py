"""Laws of trials: whatever is measured, edited or refused, none may be broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from autoscale_jobs import NOON, measured, signals
from hypothesis import assume, given
from hypothesis import strategies as st

from elastic.api.scaling import ScalingPolicy
from elastic_training.autoscale.deciding.curve import Curve
from elastic_training.autoscale.deciding.decide import decide
from elastic_training.autoscale.deciding.measures import OLD_S, Measured, Sizes
from elastic_training.autoscale.deciding.signals import Bounds, Memory, Signals, SizeDecision, Trial
from elastic_training.autoscale.deciding.trials import FIRST_PAUSE_S, LONGEST_PAUSE_S, REFUSED_S

pytestmark = pytest.mark.timeout(600)  # many examples, which a busy machine makes slow

ages = st.floats(0, 2 * OLD_S)


class Standing(NamedTuple):
    """A job that all its workers train, and what is known of its sizes."""

    sizes: Sizes
    replicas: int
    memory: Memory
    percent: int
    rescale_s: float

    def decided(self) -> SizeDecision:
        memory = replace(self.memory, sizes=self.sizes)
        seen = Signals(
            policy=ScalingPolicy(min_gain_percent=self.percent),
            bounds=Bounds(1, 16),
            curve=Curve(self.sizes, least=1, now=NOON),
            memory=memory,
            working=self.replicas,
            reports=True,
            rescale_s=self.rescale_s,
        )
        return decide(seen, self.replicas, NOON)

    def goes(self) -> tuple[int, int]:
        """Return the direction that is wanted and the one that is taken: 1 up, -1 down."""
        decision = self.decided()
        return tuple((count > self.replicas) - (count < self.replicas) for count in (decision.wanted, decision.count))  # type: ignore[return-value]


@st.composite
def standing(draw: st.DrawFn) -> Standing:
    replicas = draw(st.integers(1, 8))
    others = draw(st.dictionaries(st.integers(2, 16), st.tuples(st.floats(0.1, 1.2), ages), max_size=5))
    found = {size: Measured(size, 100.0 * size * part, 0.0, 30, at=NOON - age) for size, (part, age) in others.items()}
    for size in (1, replicas):
        found[size] = Measured(size, 100.0 * size * draw(st.floats(0.3, 1.0)) if size > 1 else 100.0, 0.0, 30, at=NOON)
    memory = Memory(
        changed_at=NOON - draw(ages),
        grew=draw(st.booleans()),
        reversals=draw(st.integers(0, 8)),
        votes=draw(st.integers(0, 3)),
        vote_for=draw(st.sampled_from([-1, 1])),
        voted_at=NOON - 20,
        tried_at=draw(st.none() | st.builds(lambda age: NOON - age, ages)),
        trial_doublings=draw(st.integers(0, 6)),
    )
    sizes = tuple(found[size] for size in sorted(found))
    return Standing(sizes, replicas, memory, draw(st.integers(1, 100)), draw(st.floats(0, 300)))


@given(standing(), st.data())
def test_a_larger_number_that_is_faster_never_ends_growth_or_a_trial(job: Standing, data: st.DataObject) -> None:
    larger = [one for one in job.sizes if one.size > job.replicas]
    assume(larger)
    one, factor = data.draw(st.sampled_from(larger)), data.draw(st.floats(1, 3))
    faster = tuple(replace(known, rate=known.rate * factor) if known is one else known for known in job.sizes)
    before, after = job.goes(), job._replace(sizes=faster).goes()
    assert before[0] <= after[0]
    assert before[1] <= after[1]


@given(standing(), st.integers(1, 100))
def test_a_job_that_asks_for_less_never_ends_growth_or_a_trial(job: Standing, percent: int) -> None:
    more, less = sorted((job.percent, percent), reverse=True)
    before, after = job._replace(percent=more).goes(), job._replace(percent=less).goes()
    assert before[0] <= after[0]
    assert before[1] <= after[1]


@given(standing(), st.floats(0, 300))
def test_a_cheaper_rescale_never_ends_growth_or_a_trial(job: Standing, rescale_s: float) -> None:
    more, less = sorted((job.rescale_s, rescale_s), reverse=True)
    before, after = job._replace(rescale_s=more).goes(), job._replace(rescale_s=less).goes()
    assert before[0] <= after[0]
    assert before[1] <= after[1] or after[1] == -1


# --- the user edits the limits during a trial


def under_way(origin: int, target: int, *, rate: float | None, replicas: int, bounds: Bounds, has_failed: bool = False) -> Signals:
    sizes = {1: 100.0, origin: 100.0 * origin} | ({} if rate is None else {target: rate})
    memory = Memory(
        sizes=measured(sizes),
        trial=Trial(origin, target, NOON - 60, has_failed),
        changed_at=NOON - 60,
        tried_at=NOON - 60,
        votes=3,
        vote_for=-1,
    )
    return replace(signals(sizes, memory=memory, working=replicas), bounds=bounds)


@st.composite
def limits(draw: st.DrawFn) -> Bounds:
    least = draw(st.integers(1, 12))
    most = draw(st.integers(least, 16))
    allowed = tuple(sorted({least, *draw(st.sets(st.integers(least, most), max_size=4))})) if draw(st.booleans()) else ()
    return Bounds(least, most, allowed)


@given(limits(), st.integers(1, 8), st.integers(1, 8), st.none() | st.floats(100, 1600), st.booleans(), st.booleans())
def test_an_edit_of_the_limits_leads_to_the_size_before_the_trial_and_delays_no_other(
    bounds: Bounds, origin: int, more: int, rate: float | None, is_carried_out: bool, has_failed: bool
) -> None:
    """With maxReplicas lowered below what was tried the job went to a size between, and waited for eight hours."""
    target = origin + more
    replicas = target if is_carried_out else origin
    seen = under_way(origin, target, rate=rate, replicas=replicas, bounds=bounds, has_failed=has_failed)
    decision = decide(seen, replicas, NOON)
    assert decision.reason
    assert bounds.allows(decision.count) or decision.count == replicas
    if bounds.allows(target):
        assert decision.count in (origin, target) or not bounds.allows(origin)
        return
    assert decision.memory.trial_doublings == 0
    if not is_carried_out:
        assert decision.memory.trial is None
        return
    assert decision.count == bounds.largest(max(origin, bounds.least))
    again = decide(replace(seen, memory=decision.memory), replicas, NOON + 5)
    assert again.count == decision.count, "a write that met a conflict is repeated"


def test_after_an_edit_of_the_limits_the_next_trial_waits_an_hour() -> None:
    seen = under_way(2, 4, rate=None, replicas=4, bounds=Bounds(1, 3))
    decision = decide(seen, 4, NOON)
    assert (decision.count, decision.reason) == (2, "the trial of 4 workers has ended")
    back = decide(replace(seen, working=2, memory=decision.memory), 2, NOON + 5)
    assert (back.count, back.memory.trial) == (2, None)
    wider = replace(seen, working=2, memory=back.memory, bounds=Bounds(1, 8))
    slow = measured({1: 100.0, 2: 200.0, 3: 210.0})
    wider = replace(wider, curve=Curve(slow, least=1, now=NOON), memory=replace(back.memory, sizes=slow))
    assert decide(wider, 2, NOON + FIRST_PAUSE_S - 60).count == 2
    assert decide(wider, 2, NOON + FIRST_PAUSE_S + 60).count == 4


# --- the API server refuses pods, or nodes vanish, during a trial


class Trying:
    """A job of two workers to which a third brings little, and four the double, every five seconds.

    `lacks` has the cluster's signals about the workers beyond two.
    """

    def __init__(self) -> None:
        self.now, self.replicas, self.changes = NOON, 2, 0
        slow = measured({1: 100.0, 2: 200.0, 3: 210.0})
        self.memory = Memory(sizes=slow, changed_at=NOON - FIRST_PAUSE_S)

    def run(self, seconds: float, **lacks: Any) -> Trying:
        end = self.now + seconds
        while self.now < end:
            self.now += 5
            beyond = self.replicas - 2
            lacking = {name: beyond if name == "stuck" else value for name, value in lacks.items()} if beyond > 0 else {}
            working = 2 if lacking else self.replicas
            known = tuple(replace(one, at=self.now) if one.size == working else one for one in self.memory.sizes)
            if working == 4:
                known = (*(one for one in known if one.size != 4), *measured({4: 400.0}, at=self.now))
            self.memory = replace(self.memory, sizes=known)
            seen = replace(signals(most=4, working=working, memory=self.memory, **lacking), curve=Curve(known, least=1, now=self.now))
            decision = decide(seen, self.replicas, self.now)
            assert decision.reason
            self.memory, self.changes = decision.memory, self.changes + (decision.count != self.replicas)
            self.replicas = decision.count
        return self


REFUSED = {"refused": "exceeded quota: gpus"}


@given(st.integers(0, int(REFUSED_S) - 30))
def test_a_refusal_that_passes_ends_no_trial(seconds: int) -> None:
    job = Trying().run(5)
    assert job.replicas == 4
    job.run(seconds, **REFUSED).run(120)
    assert (job.replicas, job.memory.trial, job.memory.trial_doublings) == (4, None, 0)


@pytest.mark.parametrize("lacks", [REFUSED, {"stuck": 2}, {"give_back": 2, "give_back_to": "default/inference"}])
def test_a_disturbance_that_lasts_for_a_while_delays_the_next_trial_by_two_hours(lacks: dict[str, Any]) -> None:
    job = Trying().run(300, **lacks)
    assert job.replicas == 2
    assert job.run(2 * FIRST_PAUSE_S).replicas == 4


@pytest.mark.slow
@pytest.mark.parametrize("lacks", [REFUSED, {"stuck": 2}])
def test_a_disturbance_that_comes_back_with_each_trial_makes_no_oscillation(lacks: dict[str, Any]) -> None:
    job = Trying().run(LONGEST_PAUSE_S, **lacks)
    assert 4 <= job.changes <= 10
    changes = job.changes
    assert job.run(3 * LONGEST_PAUSE_S, **lacks).changes - changes <= 2 * 3
