"""How many workers a job should have by each policy."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from autoscale_jobs import NOON, TrainingJob, signals
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.api.scaling import Day, PolicyName, ScalingPolicy, Window
from elastic_training.autoscale.deciding.decide import decide
from elastic_training.autoscale.deciding.policies import deadline
from elastic_training.autoscale.deciding.policies.schedule import current
from elastic_training.autoscale.deciding.signals import Bounds, Memory, Work

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


def test_a_job_stops_growing_if_the_next_worker_brings_too_little():
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


@pytest.mark.slow
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
def test_a_job_that_asks_for_more_gets_no_more_workers(replicas: int, one: int, other: int, serial: float):
    few, many = sorted((one, other))
    rates = {n: amdahl(serial)(n) for n in range(1, replicas + 1)}

    def wanted(percent: int) -> int:
        return decide(signals(rates, policy=ScalingPolicy(min_gain_percent=percent), working=replicas), replicas, NOON).wanted

    assert wanted(many) <= wanted(few)


@given(st.integers(1, 7), st.floats(0.0, 1.2), st.floats(0.0, 1.2))
def test_a_job_that_gains_more_by_the_next_worker_gets_no_fewer(replicas: int, one: float, other: float):
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
    """If workers added nothing, noise decided which number came nearest: a job changed its size again and again, for good."""
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


def test_a_deadline_that_counts_samples_says_so_if_only_steps_are_reported() -> None:
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
