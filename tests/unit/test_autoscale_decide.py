"""How many workers a job should have: each policy, and what holds for all of them."""

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from autoscale_jobs import NOON, ReportingJob, TrainingJob, measured, signals, turns
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscale.deciding.curve import Curve
from autoscale.deciding.decide import decide
from autoscale.deciding.jobs import Outcome
from autoscale.deciding.policies import deadline
from autoscale.deciding.policies.schedule import current
from autoscale.deciding.remembering import memory_of, record_of
from autoscale.deciding.signals import Bounds, Hand, Memory, Signals, Work
from autoscale.deciding.trials import LONGEST_PAUSE_S
from autoscale.figures import JobFigures, JobKey
from elastic.api.scaling import Day, PolicyName, ScalingPolicy, Window, as_text, from_text

LINEAR = {n: 100.0 * n for n in range(1, 9)}


def policy(name: str, **fields: object) -> ScalingPolicy:
    return ScalingPolicy(policy=PolicyName(name), **fields)  # type: ignore[arg-type]


def amdahl(serial: float, share: float = 100.0):
    return lambda n: share * n / (1 + serial * (n - 1))


# --- throughput


def test_a_job_that_scales_well_grows_to_its_most():
    job = TrainingJob(rate=amdahl(0.02), noise=0.03, most=4).run(1)
    assert job.sizes == [2, 3, 4]
    assert "is expected to bring" in next(d.reason for d in job.decisions if d.count == 2)


def test_a_job_stops_growing_where_the_next_worker_brings_too_little():
    rate = amdahl(0.15)
    job = TrainingJob(rate=rate, noise=0.02, most=16).run(3)
    gain = (rate(job.replicas) - rate(job.replicas - 1)) / rate(1)
    assert gain >= 0.35
    assert (rate(job.replicas + 2) - rate(job.replicas + 1)) / rate(1) < 0.55
    assert job.turns <= 2


def test_a_job_whose_further_workers_bring_nothing_goes_back():
    job = TrainingJob(rate=lambda n: 100.0 if n == 1 else 105.0, noise=0.02, most=8).run(3)
    assert job.replicas == 1
    assert job.sizes[0] == 2
    assert "bring" in job.decisions[-1].reason


def test_a_job_that_began_at_its_most_tries_a_smaller_number_once():
    well = TrainingJob(rate=amdahl(0.02), noise=0.02, most=4, replicas=4).run(3)
    assert well.sizes == [3, 4]
    badly = TrainingJob(rate=lambda n: 100.0 + n, noise=0.02, most=4, replicas=4).run(6)
    assert badly.replicas == 1


def test_a_job_that_reports_nothing_stays_and_says_what_to_do():
    seen = signals(working=2, reports=False)
    decision = decide(seen, 2, NOON)
    assert decision.count == 2
    assert "training reports no steps" in decision.reason


def test_nothing_is_measured_while_workers_are_missing():
    seen = signals(LINEAR, working=1)
    assert decide(seen, 2, NOON).count == 2
    assert "1 of 2 workers train together" in decide(seen, 2, NOON).reason


@settings(max_examples=8, deadline=None)
@given(st.floats(0, 0.6), st.floats(0, 0.15), st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 100))
def test_a_constant_noisy_signal_makes_no_oscillation(serial: float, noise: float, seed: int, start: int, percent: int):
    job = TrainingJob(
        rate=amdahl(serial), noise=noise, seed=seed, most=12, replicas=start, policy=ScalingPolicy(min_gain_percent=percent)
    ).run(6)
    assert all(1 <= size <= 12 for size in job.sizes)
    assert job.turns <= 4
    late = TrainingJob(
        rate=amdahl(serial), noise=noise, seed=seed + 1, most=12, replicas=job.replicas, policy=job.policy, memory=job.memory
    )
    assert late.run(3).turns <= 2
    assert all(decision.reason for decision in job.decisions)


@given(st.integers(1, 7), st.integers(1, 100), st.integers(1, 100), st.floats(0, 1))
def test_who_asks_for_more_gets_no_more_workers(replicas: int, one: int, other: int, serial: float):
    few, many = sorted((one, other))
    rates = {n: amdahl(serial)(n) for n in range(1, replicas + 1)}

    def wanted(percent: int) -> int:
        return decide(signals(rates, policy=ScalingPolicy(min_gain_percent=percent), working=replicas), replicas, NOON).wanted

    assert wanted(many) <= wanted(few)


@given(st.integers(1, 7), st.floats(0.0, 1.2), st.floats(0.0, 1.2))
def test_who_gains_more_by_the_next_worker_gets_no_fewer(replicas: int, one: float, other: float):
    less, more = sorted((one, other))
    below = {n: 100.0 * n for n in range(1, replicas + 1)}

    def wanted(gain: float) -> int:
        rates = {**below, replicas + 1: 100.0 * (replicas + gain)}
        return decide(signals(rates, working=replicas), replicas, NOON).wanted

    assert wanted(less) <= wanted(more)


# --- capacity


def test_the_sponge_takes_the_free_room_up_to_its_most():
    seen = signals(policy=policy("capacity"), working=2, room=3)
    assert decide(seen, 2, NOON).count == 5
    assert decide(replace(seen, room=100), 2, NOON).count == 8
    assert decide(replace(seen, room=0), 2, NOON).count == 2


def test_the_sponge_gives_back_at_once_and_never_below_its_least():
    just_grown = Memory(changed_at=NOON - 1, grew=True)
    seen = signals(policy=policy("capacity"), least=2, working=6, room=0, give_back=3, give_back_to="default/inference", memory=just_grown)
    decision = decide(seen, 6, NOON)
    assert decision.count == 3
    assert "default/inference" in decision.reason
    assert decide(replace(seen, give_back=50), 6, NOON).count == 2


@given(st.integers(1, 8), st.integers(0, 20), st.integers(0, 20))
def test_more_room_never_means_fewer_workers(replicas: int, one: int, other: int):
    less, more = sorted((one, other))

    def count(room: int) -> int:
        return decide(signals(policy=policy("capacity"), room=room), replicas, NOON).count

    assert count(less) <= count(more)


# --- deadline


def finishing(in_s: float, **fields: object) -> ScalingPolicy:
    return policy("deadline", finish_by=datetime.fromtimestamp(NOON + in_s, UTC), total_samples=10**6, **fields)


def test_a_deadline_takes_the_fewest_workers_that_are_fast_enough():
    seen = signals(LINEAR, policy=finishing(3600), working=1, work=Work(left=3600 * 250.0, done=0.0))
    assert decide(seen, 1, NOON).count == 3
    assert decide(replace(seen, work=Work(left=3600 * 10.0)), 1, NOON).count == 1


def test_a_deadline_that_cannot_be_met_takes_what_comes_nearest_and_says_so():
    seen = signals(LINEAR, policy=finishing(3600), working=1, work=Work(left=3600 * 5000.0))
    decision = decide(seen, 1, NOON)
    assert decision.count == 8
    assert "no allowed number of workers finishes in time" in decision.reason


@pytest.mark.parametrize("seed", range(4))
def test_a_deadline_that_cannot_be_met_makes_no_oscillation(seed: int):
    """Where workers add nothing, noise decided which number came nearest: a job changed its size again and again, for good."""
    hurry = TrainingJob(rate=amdahl(1.0), noise=0.1, seed=seed, most=3, policy=finishing(10.0**6, cooldown_seconds=10), left=1e12)
    assert hurry.run(6).sizes == [3]


@given(st.floats(0, 1e7), st.floats(0, 1e7), st.integers(1, 8))
def test_more_work_left_never_means_fewer_workers(one: float, other: float, replicas: int):
    less, more = sorted((one, other))

    def wanted(left: float) -> int:
        return decide(signals(LINEAR, policy=finishing(3600), work=Work(left=left)), replicas, NOON).wanted

    assert wanted(less) <= wanted(more)


def test_after_its_deadline_a_job_has_the_fastest_number_and_not_the_largest() -> None:
    """It went from 3 workers that did 220 a second to 8 that did 60."""
    late = decide(
        signals({n: 220.0 if n == 3 else 60.0 for n in range(1, 9)}, policy=finishing(-60.0), working=3, work=Work(left=1e6)), 3, NOON
    )
    assert (late.count, late.reason) == (3, "finishBy has passed; 3 workers are the fastest")


@pytest.mark.parametrize("name", ["throughput", "deadline", "cost"])
def test_why_no_progress_is_heard_is_said_by_all_policies_that_need_it(name: str) -> None:
    policies = {"deadline": finishing(3600.0), "cost": policy("cost", price_label="price")}
    trouble = "elasticPolicy.progress.prometheus: default/one-0 could not be read: /metrics on port 80 answered 500; correct port and path"
    found = decide(signals(policy=policies.get(name, policy(name)), trouble=trouble, paid=1.0, reports=False), 3, NOON)
    assert found.count == 3
    assert f"no progress is known: {trouble}" in found.reason
    assert found.trouble == f"no progress is known: {trouble}"


def test_a_deadline_that_counts_samples_says_so_where_only_steps_are_reported() -> None:
    """It said that training reports no steps."""
    decision = decide(signals(LINEAR, policy=finishing(3600.0), working=3), 3, NOON)
    assert decision.reason.startswith("scalingPolicy.totalSamples: training reports steps and no samples; report samples, too, or write")
    assert (decision.count, decision.trouble) == (3, decision.reason)


def test_a_job_that_reports_and_is_not_measured_yet_is_in_no_trouble() -> None:
    decision = decide(signals(policy=finishing(3600.0), working=3, work=Work(left=1e6)), 3, NOON)
    assert (decision.reason, decision.trouble) == ("how many workers finish in time is not known yet; its speed is being measured", "")


def test_a_source_that_is_silent_is_no_trouble_of_a_job_that_reports_otherwise() -> None:
    assert decide(signals(LINEAR, working=1, trouble="no line matches"), 1, NOON).trouble == ""


def test_a_deadline_looks_at_few_of_many_numbers_and_always_at_the_most() -> None:
    sizes = deadline._sizes(Bounds(1, 10_000))
    assert sizes[:33] == list(range(1, 34))
    assert len(sizes) < 300
    assert sizes[-1] == 10_000
    assert deadline._sizes(Bounds(2, 9, allowed=(2, 4, 8))) == [2, 4, 8]


# --- cost, schedule, hpa


def test_the_cheapest_work_wins_when_prices_differ():
    seen = signals(LINEAR, policy=policy("cost", price_label="price"), working=2, paid=4.0, prices=(0.5, 0.5))
    assert decide(seen, 2, NOON).count == 3
    assert decide(replace(seen, prices=(9.0,)), 2, NOON).count == 2
    assert "no number in the label price" in decide(replace(seen, paid=None), 2, NOON).reason


def test_a_size_that_has_no_price_is_named_with_the_label():
    """One node without a price stopped all growth, without a word."""
    seen = signals(LINEAR, policy=policy("cost", price_label="price"), working=2, paid=4.0, allowed=(2, 4))
    decision = decide(replace(seen, prices=(0.5,)), 2, NOON)
    assert decision.count == 2
    assert decision.reason.endswith("; no price is known for 4, by the label price of nodes with room")
    assert "no price" not in decide(replace(seen, prices=(9.0, 9.0)), 2, NOON).reason
    assert "no price" not in decide(replace(seen, bounds=Bounds(2, 2)), 2, NOON).reason


def test_a_worker_that_brings_little_is_not_worth_its_price():
    rates = {1: 100.0, 2: 110.0}
    seen = signals(rates, policy=policy("cost", price_label="price"), working=2, paid=2.0, prices=())
    decision, now = decide(seen, 2, NOON), NOON
    while decision.count == 2 and now < NOON + 100:
        now += 10
        decision = decide(replace(seen, memory=decision.memory), 2, now)
    assert decision.count == 1


def test_a_schedule_follows_its_windows_over_midnight():
    night = Window(start="22:00", end="06:00", replicas=6, days=(Day.FRIDAY,))
    friday = datetime(2027, 1, 15, 23, 0, tzinfo=UTC).timestamp()
    assert current((night,), friday) is night
    assert current((night,), friday + 6 * 3600) is night
    assert current((night,), friday + 8 * 3600) is None
    assert current((night,), friday + 24 * 3600) is None
    seen = signals(policy=policy("schedule", windows=(night,)), working=2)
    assert decide(seen, 2, friday).count == 6
    assert decide(seen, 6, friday + 8 * 3600).count == 1


def test_with_policy_hpa_only_the_users_metrics_decide():
    assert decide(signals(LINEAR, policy=policy("hpa"), working=3, room=5), 3, NOON).count == 3


# --- for all


def test_a_number_set_by_hand_stays_for_as_long_as_the_policy_says():
    hand = Memory(sizes=measured(LINEAR), hand=Hand(count=2, until=NOON + 600, who="kubectl"))
    seen = signals(LINEAR, working=2, memory=hand)
    held = decide(seen, 2, NOON)
    assert (held.count, held.wanted) == (2, 2)
    assert "2 was set by kubectl" in held.reason
    assert decide(seen, 2, NOON + 601).count == 3


@pytest.mark.parametrize("who", ["kube-controller-manager", "horizontal-pod-autoscaler"])
def test_a_users_autoscaler_beside_a_policy_is_named_with_what_to_do(who: str):
    hand = Memory(hand=Hand(count=4, until=NOON + 600, who=who))
    decision = decide(signals(LINEAR, working=4, memory=hand), 4, NOON)
    assert decision.count == 4
    assert decision.reason.startswith("4 was set by a HorizontalPodAutoscaler beside scalingPolicy: remove one of them, or write")


@given(st.floats(0, 1e12), st.booleans(), st.integers(1, 10_000))
def test_a_time_in_the_future_counts_as_now(ahead_s: float, grew: bool, hold_s: int):
    """A process whose clock was a year ahead had written when it changed the job, and the job stood still for a year."""
    seen = signals(LINEAR, working=2, memory=Memory(sizes=measured(LINEAR), changed_at=NOON + ahead_s, grew=grew))
    waits = decide(seen, 2, NOON)
    assert waits.memory.changed_at == NOON, "it is written down so, and does not stay ahead"
    assert decide(replace(seen, memory=replace(waits.memory, votes=3, vote_for=1)), 2, NOON + 61).count == 3
    hand = replace(seen.memory, hand=Hand(count=2, until=NOON + hold_s + ahead_s), changed_at=None)
    held = decide(replace(seen, memory=hand, policy=ScalingPolicy(hold_seconds=hold_s)), 2, NOON)
    assert held.memory.hand == Hand(count=2, until=NOON + hold_s)
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
    """A change costs 12 s, each measurement may be off by a third, and one in ten is a third of the true one: on such a machine the third
    worker came after four minutes and the fourth after eight.
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
    figures = JobFigures(key=JobKey("PyTorchJob", "team", "train"), uid="u", replicas=3, bounds=Bounds(1, 8), working=3, wanted=4)
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
