"""A size that was measured slow stops growth no more for good: measures fade, and larger sizes are tried at a bounded price."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from autoscale_cluster import node, running, state
from autoscale_jobs import NOON, TrainingJob, measured, signals
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from elastic.api.scaling import LONGEST_RECORD, PolicyName, ScalingPolicy, as_text, from_text
from elastic_training.autoscale.deciding.curve import Curve
from elastic_training.autoscale.deciding.decide import decide
from elastic_training.autoscale.deciding.jobs import JobState, Outcome
from elastic_training.autoscale.deciding.measures import OLD_CHANGES, OLD_S, Measured, Sizes, with_rate
from elastic_training.autoscale.deciding.remembering import memory_of, record_of
from elastic_training.autoscale.deciding.round import Setting, decide_all
from elastic_training.autoscale.deciding.signals import ExternalSize, Memory, Signals, SizeDecision, Step, Trial
from elastic_training.autoscale.deciding.trials import DOUBLINGS, DOUBT_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_S, REFUSED_S

HOUR_S = 3600.0
DIPS = {**{n: 100.0 * n for n in range(1, 9)}, 7: 605.0}
"""Seven workers lie badly on the nodes, eight fill two of them."""
SLOW_LONG_AGO = Memory(sizes=measured({1: 100.0, 2: 200.0, 3: 210.0}), changed_at=NOON - 2 * HOUR_S)


def amdahl(serial: float) -> Callable[[int], float]:
    return lambda n: 100.0 * n / (1 + serial * (n - 1))


def trials(job: TrainingJob) -> list[tuple[int, int]]:
    """Return the trials in order: the number of workers before and in each."""
    found = [decision.memory.trial for decision in job.decisions if decision.memory.trial is not None]
    return [(one.origin, one.target) for one, _ in itertools.groupby(found)]


# --- what was measured fades


def test_a_measure_fades_with_time_and_with_the_changes_since() -> None:
    one = Measured(3, 210.0, at=NOON)
    assert one.age(NOON) == 0
    assert one.age(NOON + OLD_S / 2) == pytest.approx(0.5)
    assert one.age(NOON + 9 * OLD_S) == 1
    assert replace(one, changes=1).age(NOON) == 0, "the workers that stayed are where they were"
    assert replace(one, changes=1 + OLD_CHANGES).age(NOON) == 1


@given(st.floats(0, 2 * OLD_S), st.floats(0, 2 * OLD_S), st.floats(50, 400))
def test_the_upper_bound_of_a_size_widens_with_its_age_and_the_lower_one_stands(one: float, other: float, rate: float) -> None:
    known = measured({1: 100.0, 2: 200.0, 3: rate})
    sooner, later = (Curve(known, least=1, now=NOON + age).rate(3) for age in sorted((one, other)))
    assert later.high >= sooner.high
    assert (later.low, later.mid) == (sooner.low, sooner.mid)


def test_a_faded_measure_weighs_less_in_the_fit() -> None:
    fresh, slow = measured({1: 100.0, 2: 190.0, 4: 340.0}, at=NOON + OLD_S), measured({3: 150.0}, at=NOON)
    known: Sizes = tuple(sorted((*fresh, *slow), key=lambda one: one.size))
    young, old = (Curve(tuple(replace(one, at=at) for one in known), least=1, now=NOON + OLD_S).rate(8).mid for at in (NOON + OLD_S, NOON))
    mixed = Curve(known, least=1, now=NOON + OLD_S).rate(8).mid
    assert mixed > young
    assert old == pytest.approx(young, rel=0.02), "of sizes that are all as old, none counts for less than another"


def test_a_size_that_the_job_comes_back_to_is_measured_again_and_the_others_stay() -> None:
    known = measured({2: 200.0, 3: 210.0})
    known = with_rate(known, size=2, rate=200.0, now=NOON + 10)
    for turn in range(2):
        known = with_rate(known, size=3, rate=300.0, now=NOON + 20 + turn)
        assert Curve(known, least=2, now=NOON).rate(3).mid == 210, "until it is measured, the former measure stands in"
        assert not Curve(known, least=2, now=NOON).measured_since(3, NOON + 15)
    known = with_rate(known, size=3, rate=300.0, now=NOON + 22)
    curve = Curve(known, least=2, now=NOON + 22)
    assert curve.measured_since(3, NOON + 15)
    assert curve.rate(3).mid == 300
    assert curve.rate(2).mid == 200, "the job did not change, its place did"
    assert {one.size: one.changes for one in known} == {2: 1, 3: 0}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_clock_that_was_ahead_does_not_keep_sizes_from_being_measured(size: int) -> None:
    """Every measurement looked like a first one after a change, until the clock had caught up with what an autoscaler had written."""
    known = with_rate(measured({1: 100.0, 2: 200.0}, at=NOON + OLD_S), size=2, rate=200.0, now=NOON + OLD_S + 10)
    for turn in range(10):
        known = with_rate(known, size=size, rate=150.0, now=NOON + 10 * turn)
    curve = Curve(known, least=1, now=NOON + 100)
    assert curve.measured_since(size, NOON)
    assert max(one.changes for one in known) <= 2


# --- a larger size is tried


def test_growth_looks_past_a_size_at_which_workers_lie_badly() -> None:
    job = TrainingJob(rate=DIPS.__getitem__, most=8).run(3)
    assert job.replicas == 8
    assert trials(job) == [(6, 8)]
    reason = next(decision.reason for decision in job.decisions if decision.memory.trial is not None)
    assert reason == "8 workers are tried: each further worker may bring up to 100 % (minGainPercent is 50)"


def test_a_size_that_was_slow_while_a_node_was_busy_is_tried_again_once_its_measure_has_faded() -> None:
    job = TrainingJob(rate=lambda n: 100.0 * min(n, 2), noise=0.02, most=3).run(4)
    assert job.replicas == 2
    job.rate = lambda n: 100.0 * n
    assert job.run(20, every_s=120).replicas == 3
    assert job.turns <= 4


def test_a_trial_that_fails_goes_back_in_one_step_and_says_why() -> None:
    job = TrainingJob(rate=amdahl(0.3), noise=0.02, most=16, replicas=2).run(2, every_s=30)
    origin, target = trials(job)[0]
    path = [2, *job.sizes]
    assert origin == path[path.index(target) + 1] == job.replicas
    ended = next(d.reason for d, after in itertools.pairwise(job.decisions) if d.count == target and after.count == origin)
    back = next(d.reason for d in job.decisions if d.count == origin and "were tried" in d.reason)
    assert "(minGainPercent is 50); the next number is tried in 8 h at the earliest" in back, ended


@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(st.floats(0.4, 1.0), min_size=12, max_size=12), st.floats(0, 0.1), st.integers(0, 1000), st.integers(1, 12))
def test_with_any_dips_a_constant_signal_makes_no_oscillation(dips: list[float], noise: float, seed: int, start: int) -> None:
    job = TrainingJob(rate=lambda n: 100.0 * n * dips[n - 1], noise=noise, seed=seed, most=12, replicas=start).run(3, every_s=60)
    assert all(1 <= size <= 12 for size in job.sizes)
    assert all(decision.reason for decision in job.decisions)
    count = len(job.sizes)
    job.run(8, every_s=60)
    assert len(job.sizes) - count <= 6, "no oscillation on a constant signal"


def test_failed_trials_wait_ever_longer() -> None:
    job = TrainingJob(rate=amdahl(0.3), most=16, replicas=2).run(24 * 4, every_s=300)
    times = sorted({decision.memory.trial.at for decision in job.decisions if decision.memory.trial is not None})
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[0] >= FIRST_PAUSE_S * 2 ** DOUBLINGS[Step.FAILED]
    assert all(gap >= LONGEST_PAUSE_S for gap in gaps[1:])
    tried = sum(1 for decision in job.decisions if decision.memory.trial is not None)
    assert tried < len(job.decisions) / 20, "what trials cost is a small part of the time"


# --- what a trial may cost


def settled(memory: Memory = SLOW_LONG_AGO, **more: Any) -> Signals:
    return signals({1: 100.0, 2: 200.0, 3: 210.0}, working=2, memory=memory, **more)


def test_a_trial_begins_once_the_job_has_stood_still() -> None:
    assert decide(settled(), 2, NOON).count == 4
    recent = replace(SLOW_LONG_AGO, changed_at=NOON - 600)
    assert decide(settled(memory=recent), 2, NOON).count == 2
    failed = replace(SLOW_LONG_AGO, trial_doublings=3)
    assert decide(settled(memory=failed), 2, NOON).count == 2
    new = replace(SLOW_LONG_AGO, changed_at=None)
    first = decide(settled(memory=new), 2, NOON)
    assert first.count == 2
    assert decide(settled(memory=first.memory), 2, NOON + FIRST_PAUSE_S).count == 4


def test_a_trial_that_costs_more_than_it_may_bring_in_an_hour_is_not_made() -> None:
    long_ago = replace(SLOW_LONG_AGO, changed_at=NOON - 90 * OLD_S)
    assert decide(settled(memory=long_ago, rescale_s=1000.0), 2, NOON).count == 4
    assert decide(settled(memory=long_ago, rescale_s=2000.0), 2, NOON).count == 2
    assert decide(settled(rescale_s=200.0), 2, NOON).count == 2, "trials take a twentieth of the time at most"


@given(st.floats(50, 500), st.sampled_from([4, 6, 8]))
def test_the_nearest_of_sizes_that_promise_the_same_is_tried(rate: float, workers: int) -> None:
    sizes = measured({1: rate, workers: workers * rate, workers + 1: 1.001 * workers * rate})
    memory = replace(SLOW_LONG_AGO, sizes=sizes)
    seen = replace(signals(working=workers, memory=memory, most=16), curve=Curve(sizes, least=1, now=NOON))
    assert decide(seen, workers, NOON).count == workers + 2


@pytest.mark.parametrize("room", [0, 1])
def test_a_trial_takes_all_its_room_or_none(room: int) -> None:
    decision = decide(settled(room=room), 2, NOON)
    assert (decision.count, decision.memory.trial) == (2, None)
    assert "there is no room for all of them" in decision.reason


def test_a_trial_stays_within_the_sizes_that_the_job_may_have() -> None:
    assert decide(settled(most=3), 2, NOON).count == 2, "3 is known to be slow"
    assert decide(settled(allowed=(1, 2, 3, 8)), 2, NOON).count == 2, "8 is more than twice as many"
    assert decide(settled(allowed=(1, 2, 4)), 2, NOON).count == 4


# --- a trial under way

TRIAL = Trial(2, 4, NOON - 60)
TRIED = Memory(trial=TRIAL, changed_at=NOON - 60)
BEFORE = measured({1: 100.0, 2: 200.0}, at=NOON - 70)


def trying(rate: float | None, *, now: float = NOON, spread: float = 0.0, replicas: int = 4, **more: Any) -> tuple[int, Memory, str]:
    sizes = (*BEFORE, *(measured({4: rate}, at=now - 5, spread=spread) if rate is not None else ()))
    memory = replace(TRIED, sizes=sizes, votes=3, vote_for=-1)
    seen = replace(signals(memory=memory, **{"working": replicas} | more), curve=Curve(sizes, least=1, now=now))
    decision = decide(seen, replicas, now)
    return decision.count, decision.memory, decision.reason


def test_a_trial_is_kept_or_taken_back_by_its_result() -> None:
    assert trying(None)[0] == 4
    count, memory, reason = trying(380.0)
    assert (count, memory.trial, memory.trial_doublings) == (4, None, 0)
    assert reason == "4 workers were tried: each worker beyond 2 brings 90 % (minGainPercent is 50)"
    count, memory, _ = trying(240.0)
    assert (count, memory.trial, memory.trial_doublings, memory.reversals) == (2, replace(TRIAL, has_failed=True), 3, 0)
    assert memory.tried_at == NOON


def test_in_doubt_the_mean_decides_in_the_end_and_without_reports_the_job_goes_back() -> None:
    count, memory, reason = trying(302.0, spread=0.3)
    assert (count, memory.trial) == (4, TRIED.trial)
    assert "as far as is known" in reason
    assert trying(302.0, spread=0.3, now=NOON + DOUBT_S)[:1] == (4,)
    assert trying(298.0, spread=0.3, now=NOON + DOUBT_S)[:1] == (2,)
    assert trying(None, now=NOON + DOUBT_S)[0] == 4
    assert trying(None, now=NOON + 2 * HOUR_S)[0] == 2


def test_a_trial_that_is_not_measured_says_what_hinders_it() -> None:
    assert trying(None, working=4)[2] == "4 workers are tried: the throughput of 4 workers is being measured"
    assert "2 of 4 workers train together" in trying(None, working=2)[2]
    late = trying(None, working=4, now=NOON + HOUR_S)[2]
    assert "4 workers were tried, and not measured within 30 min: the throughput of 4 workers is being measured" in late, "after an outage"
    assert "no progress is known: the log says nothing" in trying(None, reports=False, trouble="the log says nothing")[2]


def test_a_trial_waits_two_minutes_for_pods_that_are_refused_and_is_then_broken_off() -> None:
    """A webhook that was away for a moment delayed the next trial by eight hours."""
    count, memory, reason = trying(None, working=3, refused="exceeded quota: gpus")
    assert (count, memory.trial, memory.trial_doublings) == (4, TRIAL, 0)
    assert reason == "4 workers are tried: no pods are made: exceeded quota: gpus"
    count, memory, reason = trying(None, working=3, refused="exceeded quota: gpus", now=TRIAL.at + REFUSED_S)
    assert (count, memory.trial_doublings) == (2, DOUBLINGS[Step.BROKEN_OFF])
    assert reason.endswith("the next number is tried in 2 h at the earliest")
    assert "4 workers were tried, and no pods are made: exceeded quota: gpus" in reason
    assert trying(None, working=4, refused="exceeded quota: gpus")[0] == 4, "the job has all its workers"
    assert trying(380.0, working=3, refused="exceeded quota: gpus")[:1] == (4,), "what was measured counts"


@given(st.floats(150, 450), st.floats(150, 450), st.integers(1, 100), st.integers(1, 100))
def test_a_faster_trial_is_kept_sooner_and_a_job_that_asks_for_more_keeps_less(one: float, other: float, few: int, many: int) -> None:
    def kept(rate: float, percent: int) -> int:
        return trying(rate, now=NOON + DOUBT_S, policy=ScalingPolicy(min_gain_percent=percent))[0]

    (slow, fast), (few, many) = sorted((one, other)), sorted((few, many))
    assert kept(slow, few) <= kept(fast, few)
    assert kept(slow, many) <= kept(slow, few)


@given(st.integers(11, 100), st.integers(11, 100))
def test_a_job_that_asks_for_more_tries_no_larger_number(one: int, other: int) -> None:
    few, many = (decide(settled(policy=ScalingPolicy(min_gain_percent=percent)), 2, NOON).wanted for percent in sorted((one, other)))
    assert many <= few


def test_a_trial_that_something_else_ends_has_failed() -> None:
    count, memory, _ = trying(None, give_back=3, give_back_to="default/inference")
    assert (count, memory.trial, memory.trial_doublings) == (1, replace(TRIAL, has_failed=True), 1)
    assert decide(signals(working=1, memory=memory), 1, NOON + 5).memory.trial is None
    count, memory, _ = trying(380.0, replicas=3)
    assert (memory.trial, memory.trial_doublings) == (None, 1)
    other = trying(380.0, policy=ScalingPolicy(policy=PolicyName.CAPACITY), room=0)
    assert other[1].trial is None


@pytest.mark.parametrize("count", [2, 4])
def test_a_number_that_someone_sets_ends_a_trial_and_the_next_one_waits(count: int) -> None:
    hand = ExternalSize(count=count, until=NOON + 600)
    memory = replace(TRIED, sizes=BEFORE, hand=hand)
    during = decide(signals(working=count, memory=memory), count, NOON)
    assert (during.count, during.memory.trial, during.memory.trial_doublings, during.memory.tried_at) == (count, None, 1, NOON)
    settled_by_hand = replace(SLOW_LONG_AGO, hand=replace(hand, until=NOON - 60))
    assert decide(settled(memory=settled_by_hand), 2, NOON).count == 2, "a number set by hand is a change, too"
    assert decide(settled(memory=settled_by_hand), 2, NOON - 60 + FIRST_PAUSE_S).count == 4


@pytest.mark.parametrize("lacks", [{"stuck": 1}, {"give_back": 1, "give_back_to": "default/inference"}])
def test_a_trial_whose_room_is_gone_goes_back_in_one_step(lacks: dict[str, Any]) -> None:
    """It went to the number between, which is known to be slow."""
    count, memory, reason = trying(None, **lacks)
    assert (count, memory.trial, memory.trial_doublings, memory.reversals) == (2, replace(TRIAL, has_failed=True), 1, 0)
    assert "find no room" in reason or "gives room to default/inference" in reason
    again = decide(signals(working=4, memory=memory, **lacks), 4, NOON + 5)
    assert (again.count, again.memory.trial_doublings) == (2, 1), "until a HorizontalPodAutoscaler has looked"


def test_a_trial_that_was_decided_and_not_yet_carried_out_is_wanted_for_some_minutes() -> None:
    """A HorizontalPodAutoscaler looks each 15 s, and a write may meet a conflict."""
    memory = replace(TRIED, sizes=BEFORE, trial=Trial(2, 4, NOON), asked=4, changed_at=NOON)
    seen = replace(signals(working=2, memory=memory), curve=Curve(BEFORE, least=1, now=NOON))
    soon = decide(seen, 2, NOON + 15)
    assert (soon.wanted, soon.memory.trial) == (4, memory.trial)
    again = decide(seen, 2, NOON + 70)
    assert (again.count, again.memory.trial, again.memory.changed_at) == (4, memory.trial, NOON)
    assert decide(seen, 2, NOON + DOUBT_S).memory.trial_doublings == 1


@pytest.mark.parametrize("rate", [298.0, None])
def test_the_way_back_from_a_trial_is_wanted_until_the_job_has_gone_it(rate: float | None) -> None:
    """A HorizontalPodAutoscaler looked seconds after the decision, when the trial was forgotten: the job kept its workers."""
    then = NOON + 2 * HOUR_S
    _, memory, _ = trying(rate, now=then, spread=0.3)
    memory = memory_of(from_text(as_text(record_of(outcome_with(SizeDecision(count=2, wanted=2, reason="r", memory=memory)), then))))
    for after_s in range(5, 300, 5):
        curve = Curve(memory.sizes, least=1, now=then)
        decision = decide(replace(signals(working=4, memory=memory), curve=curve), 4, then + after_s)
        assert decision.wanted == 2
        assert decision.count == 2 or after_s < 90, "a write that met a conflict is repeated"
        memory = decision.memory
    assert memory.trial_doublings == DOUBLINGS[Step.FAILED], "it failed once"
    given_up = decide(replace(signals(working=4, memory=memory), curve=Curve(memory.sizes, least=1, now=then)), 4, then + LONGEST_S)
    assert (given_up.memory.trial, given_up.memory.trial_doublings) == (None, 3), "a HorizontalPodAutoscaler may tolerate the difference"
    back = decide(replace(signals(working=2, memory=memory), curve=Curve(memory.sizes, least=1, now=then)), 2, then + 300)
    assert (back.count, back.memory.trial, back.memory.trial_doublings, back.memory.tried_at) == (2, None, 3, then)


# --- among other jobs, and over restarts


def stuck(replicas: int = 2, **more: Any) -> JobState:
    one = state("stuck", replicas, **more)
    return replace(one, memory=replace(SLOW_LONG_AGO, sizes=measured({1: 100.0, 2: 200.0, 3: 210.0})))


def outcomes(states: list[JobState], gpus: int, *, grows: bool = False) -> dict[str, Outcome]:
    found = decide_all(states, [node("n", gpus)], running(*states), setting=Setting(grows=grows), now=NOON, monotonic=1.0)
    return {key.name: outcome for key, outcome in found.items()}


def test_a_worker_that_only_makes_good_a_dip_gives_its_job_no_rank() -> None:
    """A job that reports its next size slow and the one after it fast would keep its workers before all others."""
    curve = Curve(measured({1: 100.0, 2: 200.0, 3: 110.0, 4: 210.0}), least=1, now=NOON)
    assert curve.gain(3, 4).mid == pytest.approx(1.0)
    assert curve.marginal(4) == pytest.approx(0.05)


@pytest.mark.parametrize("minutes", [10, 40, 72, 100])
def test_an_autoscaler_that_restarts_takes_the_same_way(minutes: int) -> None:
    whole = TrainingJob(rate=DIPS.__getitem__, most=8).run(2.5, every_s=15)
    first = TrainingJob(rate=DIPS.__getitem__, most=8).run(minutes / 60, every_s=15)
    written = as_text(record_of(outcome_with(first.decisions[-1]), first.now))
    second = TrainingJob(rate=DIPS.__getitem__, most=8, replicas=first.replicas, now=first.now, memory=memory_of(from_text(written)))
    second.run(2.6 - minutes / 60, every_s=15)
    assert [*first.sizes, *second.sizes] == whole.sizes
    assert second.replicas == 8


def outcome_with(decision: SizeDecision) -> Outcome:
    return Outcome(decision, outcomes([stuck()], 4)["stuck"].figures)


def test_the_fit_and_a_trial_find_room_in_the_annotation() -> None:
    sizes = tuple(Measured(size, 123456.789 * size, 1e9, 64, at=NOON, changes=64) for size in range(8000, 8008))
    memory = Memory(
        sizes=sizes, changed_at=NOON + 0.1, reversals=16, trial=Trial(8007, 9999, NOON), tried_at=NOON + 0.1, trial_doublings=16
    )
    decision = SizeDecision(count=9999, wanted=9999, reason="r" * 250, memory=memory)
    text = as_text(record_of(outcome_with(decision), NOON, was_ours=True))
    assert len(text.encode()) <= LONGEST_RECORD
    read = memory_of(from_text(text))
    assert [(one.size, one.at, one.changes) for one in read.sizes] == [(one.size, NOON, 64) for one in sizes]
    assert (read.trial, read.tried_at, read.trial_doublings) == (memory.trial, memory.tried_at, 16)


def test_an_annotation_of_a_former_release_is_read_and_its_measures_are_as_old_as_itself() -> None:
    old = '{"decision":{"workers":2,"at":"2027-01-15T08:00:00Z"},"sizes":[[1,100.0,0.01,30],[2,200.0,0.01,30]],"changed_at":1799999000.0}'
    memory = memory_of(from_text(old))
    assert [(one.size, one.rate, one.at, one.changes) for one in memory.sizes] == [(1, 100.0, NOON, 0), (2, 200.0, NOON, 0)]
    assert (memory.trial, memory.tried_at, memory.trial_doublings) == (None, None, 0)
