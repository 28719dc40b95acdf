"""How many workers a job should have: what holds for every policy."""

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from autoscale_jobs import NOON, ReportingJob, measured, signals, turns
from hypothesis import given
from hypothesis import strategies as st
from test_autoscale_policies import LINEAR

from elastic.api.scaling import PolicyName, ScalingPolicy, Window, as_text, from_text
from elastic_training.autoscale.deciding.curve import Curve
from elastic_training.autoscale.deciding.decide import decide
from elastic_training.autoscale.deciding.jobs import Outcome
from elastic_training.autoscale.deciding.remembering import memory_of, record_of
from elastic_training.autoscale.deciding.signals import Bounds, ExternalSize, Memory, Signals, SizeDecision, Work
from elastic_training.autoscale.deciding.trials import LONGEST_PAUSE_S
from elastic_training.autoscale.figures import JobFigures, JobName


def test_a_number_set_by_hand_stays_for_as_long_as_the_policy_says():
    hand = Memory(sizes=measured(LINEAR), hand=ExternalSize(count=2, until=NOON + 600, who="kubectl"))
    seen = signals(LINEAR, working=2, memory=hand)
    held = decide(seen, 2, NOON)
    assert (held.count, held.wanted) == (2, 2)
    assert "2 was set by kubectl" in held.reason
    assert decide(seen, 2, NOON + 601).count == 3


@pytest.mark.parametrize("who", ["kube-controller-manager", "horizontal-pod-autoscaler"])
def test_a_users_autoscaler_next_to_a_policy_is_named_with_what_to_do(who: str):
    hand = Memory(hand=ExternalSize(count=4, until=NOON + 600, who=who))
    decision = decide(signals(LINEAR, working=4, memory=hand), 4, NOON)
    assert decision.count == 4
    assert decision.reason.startswith("4 was set by a HorizontalPodAutoscaler next to scalingPolicy: remove one of them, or write")


@pytest.mark.parametrize("who", ["kubectl", "kube-controller-manager"])
def test_a_number_that_is_held_ends_with_a_lower_hold_seconds(who: str):
    """Nothing tells that the HorizontalPodAutoscaler which set it is gone: the user can say so."""

    def decided(hold_s: int) -> SizeDecision:
        memory = Memory(sizes=measured(LINEAR), hand=ExternalSize(count=2, until=NOON + 3000, who=who))
        return decide(signals(LINEAR, memory=memory, working=2, policy=ScalingPolicy(hold_seconds=hold_s)), 2, NOON)

    assert "50 min more" in decided(3600).reason
    assert "1 min more" in decided(60).reason
    ended = decided(0)
    assert (ended.count > 2, ended.trouble) == (True, "")


@given(st.floats(0, 1e12), st.booleans(), st.integers(1, 10_000))
def test_a_time_in_the_future_counts_as_now(ahead_s: float, grew: bool, hold_s: int):
    """A process whose clock was a year ahead had written when it changed the job, and the job stood still for a year."""
    seen = signals(LINEAR, working=2, memory=Memory(sizes=measured(LINEAR), changed_at=NOON + ahead_s, grew=grew))
    waits = decide(seen, 2, NOON)
    assert waits.memory.changed_at == NOON, "it is written down so, and does not stay ahead"
    assert decide(replace(seen, memory=replace(waits.memory, votes=3, vote_for=1)), 2, NOON + 61).count == 3
    hand = replace(seen.memory, hand=ExternalSize(count=2, until=NOON + hold_s + ahead_s), changed_at=None)
    held = decide(replace(seen, memory=hand, policy=ScalingPolicy(hold_seconds=hold_s)), 2, NOON)
    assert held.memory.hand == ExternalSize(count=2, until=NOON + hold_s)
    tried = replace(seen.memory, changed_at=None, tried_at=NOON + ahead_s)
    assert decide(replace(seen, memory=tried), 2, NOON).memory.tried_at == NOON


def test_a_change_waits_longer_the_more_it_costs():
    grown = Memory(sizes=measured({1: 100.0, 2: 200.0}), changed_at=NOON, grew=True)
    seen = signals({1: 100.0, 2: 200.0}, working=2, memory=grown)
    assert decide(replace(seen, rescale_s=1.0), 2, NOON + 61).count == 3
    assert decide(replace(seen, rescale_s=100.0), 2, NOON + 150).count == 2
    assert decide(replace(seen, rescale_s=100.0), 2, NOON + 240).count == 3, "half of the throughput more pays for a change in 200 s"


def test_the_way_back_waits_until_a_change_is_a_twentieth_of_the_time():
    rates = {1: 100.0, 2: 104.0}
    grown = Memory(sizes=measured(rates), changed_at=NOON, grew=True, votes=3, vote_for=-1)
    seen = replace(signals(rates, working=2, memory=grown), rescale_s=100.0)
    assert decide(seen, 2, NOON + 1990).count == 2
    assert decide(seen, 2, NOON + 2010).count == 1


def test_a_job_on_a_loaded_machine_grows_as_soon_as_a_change_pays_for_itself():
    """A change costs 12 s, each measurement may be off by a third, and one in ten is a third of the true one.

    On such a machine the third worker came after four minutes and the fourth after eight.
    """
    jobs = [ReportingJob(seed=seed).run(700) for seed in range(15)]
    assert all([size for _, size in job.changes[:3]] == [2, 3, 4] for job in jobs)
    reached = sorted(job.changes[2][0] for job in jobs)
    assert reached[len(reached) // 2] <= 180
    assert reached[-1] <= 600
    assert sum(len(job.changes) - 3 for job in jobs) == 0, "and no job goes back"


@pytest.mark.parametrize("contention", [0.1, 0.5, 1.5])
def test_a_job_on_a_loaded_machine_does_not_go_up_and_down(contention: float):
    policy = ScalingPolicy(cooldown_seconds=5, min_gain_percent=50)
    for seed in range(4):
        job = ReportingJob(seed=seed, contention=contention, most=6, policy=policy).run(3600)
        assert turns([1, *(size for _, size in job.changes)]) <= 2


def test_a_horizontal_pod_autoscaler_is_told_of_a_change_once_the_guard_has_let_it_pass():
    """It was told what the policy wanted whatever the guard waited for, and took back at once the room that had just been given away."""
    gave = decide(signals(LINEAR, working=4, give_back=1), 4, NOON)
    assert (gave.count, gave.wanted) == (3, 3)
    seen = signals(LINEAR, working=3, memory=gave.memory)
    for after_s in (5, 30, 59):
        waits = decide(seen, 3, NOON + after_s)
        assert (waits.count, waits.wanted) == (3, 3)
        assert waits.reason.startswith("wants 4: ")


def test_a_change_that_was_decided_stands_until_the_job_has_it():
    """A HorizontalPodAutoscaler looks each 15 s, and the write of a number may fail."""
    first = decide(signals(LINEAR, working=3), 3, NOON)
    assert (first.count, first.wanted) == (4, 4)
    seen = signals(LINEAR, working=3, memory=first.memory)
    again = decide(seen, 3, NOON + 15)
    assert (again.count, again.wanted, again.memory) == (4, 4, first.memory)
    full = decide(replace(seen, room=0), 3, NOON + 20)
    assert (full.count, full.wanted) == (3, 3), "but not without room"
    there = decide(signals(LINEAR, working=4, memory=again.memory), 4, NOON + 30)
    assert (there.count, there.memory.asked) == (4, None)
    figures = JobFigures(key=JobName("PyTorchJob", "team", "train"), uid="u", replicas=3, bounds=Bounds(1, 8), working=3, wanted=4)
    restarted = memory_of(from_text(as_text(record_of(Outcome(first, figures), NOON))))
    assert decide(replace(seen, memory=restarted), 3, NOON + 15).wanted == 4


def test_workers_that_find_no_room_are_given_up():
    decision = decide(signals(LINEAR, working=3, stuck=2), 5, NOON)
    assert decision.count == 3
    assert "2 of its workers find no room" in decision.reason


def test_a_refusal_of_the_quota_counts_as_no_room():
    decision = decide(signals(LINEAR, working=2, refused="exceeded quota: gpus"), 2, NOON)
    assert decision.count == 2
    assert "exceeded quota: gpus" in decision.reason


rates = st.dictionaries(st.integers(1, 40), st.floats(0.001, 1e9), max_size=6)
policies = st.sampled_from(list(PolicyName))
numbers = st.integers(0, 50)


@st.composite
def any_signals(draw: st.DrawFn) -> Signals:
    least = draw(st.integers(1, 20))
    most = draw(st.integers(least, 40))
    name = draw(policies)
    chosen = ScalingPolicy(
        policy=name,
        min_gain_percent=draw(st.integers(1, 100)),
        finish_by=datetime.fromtimestamp(NOON + draw(st.integers(-100, 10_000)), UTC),
        total_samples=10,
        price_label="price",
        windows=(Window(start="00:00", end="23:00", replicas=draw(st.integers(1, 10_000))),),
    )
    allowed = tuple(sorted(draw(st.sets(st.integers(least, most), max_size=4)) | {least})) if draw(st.booleans()) else ()
    step = 1 if allowed else draw(st.integers(1, least))
    least -= least % step
    return signals(
        draw(rates),
        policy=chosen,
        least=least,
        most=most,
        allowed=allowed,
        step=step,
        spread=draw(st.floats(0, 2)),
        working=draw(numbers),
        room=draw(st.none() | numbers),
        give_back=draw(numbers),
        stuck=draw(numbers),
        rescale_s=draw(st.none() | st.floats(0, 1e6)),
        work=Work(left=draw(st.none() | st.floats(0, 1e12))),
        paid=draw(st.none() | st.floats(0, 1e3)),
        prices=tuple(draw(st.lists(st.floats(0, 1e3), max_size=4))),
        memory=Memory(changed_at=draw(st.none() | st.floats(0, 2 * NOON)), grew=draw(st.booleans()), reversals=draw(st.integers(0, 16))),
    )


@given(any_signals(), numbers)
def test_a_decision_is_never_outside_of_the_limits_and_always_explained(seen: Signals, replicas: int):
    decision = decide(seen, replicas, NOON)
    assert decision.reason
    assert seen.bounds.least <= decision.count <= seen.bounds.most
    assert not seen.bounds.allowed or decision.count in seen.bounds.allowed
    assert decision.count % seen.bounds.step == 0
    if not seen.bounds.allows(replicas):
        assert decision.count == seen.bounds.largest(replicas), "from outside, the next number inside is taken at once, whatever else holds"
    assert math.isfinite(decision.memory.changed_at or 0.0)
    assert decision.wanted in (replicas, decision.count), "a HorizontalPodAutoscaler waits for what the guard waits for"


@given(any_signals(), st.integers(1, 40))
def test_the_same_signals_again_change_nothing_more_at_once(seen: Signals, replicas: int):
    first = decide(seen, replicas, NOON)
    moved = replace(seen, memory=first.memory, give_back=0, stuck=0)
    if first.count != replicas and seen.policy.policy in (PolicyName.THROUGHPUT, PolicyName.COST, PolicyName.DEADLINE):
        assert decide(replace(moved, working=first.count), first.count, NOON + 1).count == first.count


def test_a_turn_waits_longer_each_time_and_never_longer_than_a_day():
    seen = signals(LINEAR, working=2, memory=Memory(sizes=measured(LINEAR), changed_at=NOON, grew=False, reversals=16, votes=3, vote_for=1))
    assert decide(seen, 2, NOON + 3500).count == 2
    grown = decide(seen, 2, NOON + 3600)
    assert (grown.count, grown.memory.trial is not None) == (3, True), "where a trial could begin, more certain growth is one"
    tried = replace(seen, memory=replace(seen.memory, trial_doublings=16))
    assert decide(tried, 2, NOON + 3600).count == 2
    assert decide(tried, 2, NOON + LONGEST_PAUSE_S + 1).count == 3


def test_a_curve_of_another_least_size_is_measured_by_that():
    assert Curve(measured({2: 100.0}), least=2, now=NOON).share == 50
