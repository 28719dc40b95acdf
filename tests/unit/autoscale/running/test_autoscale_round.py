"""A round of decisions about all jobs, and what of it is remembered."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from autoscale_cluster import LINEAR, SPONGE, node, pod, running, state
from autoscale_jobs import NOON, measured

from elastic.api.scaling import (
    LONGEST_RECORD,
    Decision,
    DecisionRecord,
    PolicyName,
    SizeRecord,
    TrialRecord,
    as_text,
    from_text,
)
from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.deciding.cluster import NodeSeen, PodSeen, Room
from elastic_training.autoscale.deciding.curve import Curve
from elastic_training.autoscale.deciding.jobs import JobState, Unscaled
from elastic_training.autoscale.deciding.remembering import is_news, memory_of, record_of
from elastic_training.autoscale.deciding.round import Setting, decide_all
from elastic_training.autoscale.deciding.signals import Bounds, ExternalSize, Memory
from elastic_training.autoscale.deciding.training import Spent, Training
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.running.book import Book


def counts(
    states: list[JobState], nodes: list[NodeSeen], pods: list[PodSeen], *, grows: bool = False, unscaled: tuple[Unscaled, ...] = ()
) -> dict[str, int]:
    found = decide_all(states, nodes, pods, unscaled=unscaled, setting=Setting(grows=grows), now=NOON, monotonic=1.0)
    assert all(outcome.decision.reason and outcome.figures.wanted is not None for outcome in found.values())
    return {key.name: outcome.decision.count for key, outcome in found.items()}


def test_a_job_grows_only_if_there_is_room() -> None:
    one = state("one", 1, rates={1: 100.0})
    assert counts([one], [node("n", 4)], running(one)) == {"one": 2}
    assert counts([one], [node("n", 1)], running(one)) == {"one": 1}
    assert counts([one], [node("n", 1)], running(one), grows=True) == {"one": 2}, "the cluster makes room"


def test_two_jobs_do_not_take_the_same_room() -> None:
    one, other = state("one", 1, rates={1: 100.0}), state("other", 1, rates={1: 100.0})
    assert sorted(counts([one, other], [node("n", 3)], running(one, other)).values()) == [1, 2]


def test_room_goes_to_the_job_that_it_speeds_up_most() -> None:
    """A ninth worker that adds an eighth came before a second one that adds six sevenths: each was taken by what one of its job's does."""
    wide, narrow = state("wide", 8, rates={8: 800.0, 9: 895.0}, least=8, most=16), state("narrow", 1, rates={1: 100.0, 2: 185.0})
    assert counts([wide, narrow], [node("n", 10)], running(wide, narrow)) == {"wide": 8, "narrow": 2}


def test_a_job_that_reports_nonsense_gets_no_room_before_an_honest_one() -> None:
    liar, honest = state("liar", 1, rates={1: 1e-3, 2: 1e9, 3: 1e14}), state("honest", 1, rates={1: 100.0, 2: 199.0})
    assert counts([liar, honest], [node("n", 3)], running(liar, honest)) == {"liar": 1, "honest": 2}


def test_workers_that_are_wanted_and_not_seen_yet_have_their_room() -> None:
    grown, other = state("grown", 3), state("other", 1, rates={1: 100.0})
    pods = [*running(other), pod("grown-0", on="n", owner=grown.seen.uid, index=0)]
    assert counts([grown, other], [node("n", 4)], pods)["other"] == 1


def test_a_sponge_fills_the_cluster_and_gives_way() -> None:
    sponge = state("sponge", 1, **SPONGE)
    assert counts([sponge], [node("n", 6)], running(sponge)) == {"sponge": 6}
    full = state("sponge", 6, **SPONGE)
    waiting = pod("inference", priority=100, since=NOON - 10)
    assert counts([full], [node("n", 6)], [*running(full), waiting]) == {"sponge": 5}


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_sponge_gives_back_no_more_while_the_worker_that_goes_is_still_there(is_deleted: bool) -> None:
    """A worker takes seconds to leave its world and to end. In the meantime the job was scaled in again, for the same pod."""
    full, sponge = state("sponge", 6, **SPONGE), state("sponge", 5, **SPONGE)
    pods = running(full)
    pods[-1] = replace(pods[-1], is_leaving=is_deleted)
    waiting = pod("inference", priority=100, since=NOON - 10)
    assert counts([sponge], [node("n", 6)], [*pods, waiting]) == {"sponge": 5}
    two = pod("second", priority=100, since=NOON - 5)
    assert counts([sponge], [node("n", 6)], [*pods, waiting, two]) == {"sponge": 4}, "another pod needs another worker's room"


def test_the_room_of_anybody_that_leaves_serves_a_waiting_pod() -> None:
    sponge, waiting = state("sponge", 5, **SPONGE), pod("inference", priority=100, since=NOON - 10)
    ends = replace(pod("other", on="n"), is_leaving=True)
    assert counts([sponge], [node("n", 6)], [*running(sponge), ends, waiting]) == {"sponge": 5}
    grows = state("grows", 1, rates=LINEAR)
    pods = [*running(sponge, grows), ends, pod("inference", priority=100, since=NOON - 10)]
    assert counts([sponge, grows], [node("n", 7)], pods)["grows"] == 1, "room that is not free yet is not given away"
    assert counts([sponge, grows], [node("n", 8)], pods)["grows"] == 1, "nor is it given twice: the waiting pod takes what is free"


@pytest.mark.parametrize(
    ("policy", "free", "words"),
    [
        ("capacity", 0, "there is no room for more"),
        ("capacity", 2, "wants 5: there is room for 2 more; the last change is too recent"),
        ("throughput", 0, "; there is no room"),
        ("throughput", 2, "; the last change is too recent"),
    ],
)
def test_a_job_that_the_cooldown_holds_tells_of_no_room_that_others_have(policy: str, free: int, words: str) -> None:
    """With all nodes in use, its status said for 30 s that there was room for 9 more."""
    job = state("job", 3, rates={n: 100.0 * n for n in (1, 2, 3)}, most=12, policy=PolicyName(policy))
    job = replace(job, memory=replace(job.memory, changed_at=NOON - 5, grew=True))
    other = state("other", 9, most=9)
    nodes, pods = [node("n", 12 + free)], running(job, other)
    decision = decide_all([job, other], nodes, pods, setting=Setting(), now=NOON, monotonic=1.0)[job.seen.key].decision
    assert decision.count == 3
    assert decision.reason.endswith(words), decision.reason


def test_a_job_that_the_cooldown_holds_may_tell_of_nodes_that_the_cluster_makes() -> None:
    job = state("job", 3, rates={n: 100.0 * n for n in (1, 2, 3)}, most=12)
    job = replace(job, memory=replace(job.memory, changed_at=NOON - 5, grew=True))
    found = decide_all([job], [node("n", 3)], running(job), setting=Setting(grows=True), now=NOON, monotonic=1.0)
    assert found[job.seen.key].decision.reason.endswith("; the last change is too recent")


def test_a_job_that_waits_for_its_minimum_gets_it_from_one_that_has_more() -> None:
    rich, poor = state("rich", 4, rates=LINEAR), state("poor", 2, least=2)
    pods = [*running(rich), *(pod(f"poor-{i}", owner=poor.seen.uid, index=i, since=NOON - 10) for i in range(2))]
    assert counts([rich, poor], [node("n", 4)], pods)["rich"] == 2


def test_a_job_below_its_minimum_takes_no_more_than_that() -> None:
    """Each of nine waiting workers took one from a job of the same class, although one would have been enough."""
    sponge, new = state("sponge", 10, most=10, **SPONGE), state("new", 9, most=9)
    waiting = [pod(f"new-{i}", owner=new.seen.uid, index=i, since=NOON - 10) for i in range(9)]
    assert counts([sponge, new], [node("n", 10)], [*running(sponge), *waiting])["sponge"] == 9
    new = state("new", 9, least=3, most=9)
    placed = replace(waiting[4], node="n", unschedulable_since=None)
    assert counts([sponge, new], [node("n", 11)], [*running(sponge), *waiting[:4], placed, *waiting[5:]])["sponge"] == 8


QUEUED = {"fixed": "the job is in a queue"}
HELD = {"memory": Memory(hand=ExternalSize(count=5, until=NOON + 3600, who="kubectl"))}


@pytest.mark.parametrize(("seen", "more"), [(QUEUED, {}), ({}, HELD)])
def test_a_job_that_keeps_its_number_is_not_asked_for_room(seen: dict[str, Any], more: dict[str, Any]) -> None:
    """It was asked, gave nothing, and the other sponge was not asked: the important pod waited for as long as the number was held."""
    keeps, gives = state("keeps", 5, **SPONGE), state("gives", 3, **SPONGE)
    keeps = replace(keeps, seen=replace(keeps.seen, **seen), **more)
    waiting = pod("inference", priority=100, since=NOON - 10)
    assert counts([keeps, gives], [node("n", 8)], [*running(keeps, gives), waiting]) == {"keeps": 5, "gives": 2}


def test_a_job_with_workers_that_have_no_room_gives_those_up_with_the_one_that_has() -> None:
    """The workers with the highest indexes go: with two of five waiting, one fewer would have made no room."""
    sponge = state("sponge", 5, **SPONGE)
    pods = [*running(state("sponge", 3)), *(pod(f"sponge-{i}", owner=sponge.seen.uid, index=i, since=NOON - 5) for i in (3, 4))]
    assert counts([sponge], [node("n", 3)], [*pods, pod("inference", priority=100, since=NOON - 10)]) == {"sponge": 2}


@pytest.mark.parametrize(("least", "left"), [(4, 6), (1, 9), (0, 10)])
def test_a_job_without_a_policy_gets_its_minimum_too(least: int, left: int) -> None:
    """A plain job of the same class waited for ever next to a sponge."""
    sponge, plain = state("sponge", 10, most=10, **SPONGE), Unscaled("plain", least)
    waiting = [pod(f"plain-{i}", owner="plain", index=i, since=NOON - 10) for i in range(4)]
    assert counts([sponge], [node("n", 10)], [*running(sponge), *waiting], unscaled=(plain,)) == {"sponge": left}
    assert counts([sponge], [node("n", 10)], [*running(sponge), *waiting]) == {"sponge": 10}, "pods that no job owns have no such claim"
    higher = [replace(one, priority=9) for one in waiting]
    assert counts([sponge], [node("n", 10)], [*running(sponge), *higher], unscaled=(plain,)) == {"sponge": 6}


@pytest.mark.parametrize("unscaled", [(), (Unscaled("one", 1),)])
def test_a_job_needs_its_launcher_to_begin(unscaled: tuple[Unscaled, ...]) -> None:
    sponge, new = state("sponge", 4, most=4, **SPONGE), state("new", 1)
    owner = unscaled[0].uid if unscaled else new.seen.uid
    launcher = replace(pod("launcher", owner=owner, since=NOON - 10), is_worker=False)
    assert counts([sponge, new], [node("n", 4)], [*running(sponge), launcher], unscaled=unscaled)["sponge"] == 3


def test_workers_that_have_found_no_room_for_long_are_given_up() -> None:
    one = state("one", 3, rates=LINEAR)
    pods = [*running(state("one", 1)), *(pod(f"one-{i}", owner=one.seen.uid, index=i, since=NOON - 40) for i in (1, 2))]
    assert counts([one], [node("n", 1)], pods) == {"one": 1}


def test_a_pod_that_only_looks_like_a_jobs_worker_gives_it_no_other_class() -> None:
    """One pod with the job's labels and a high class kept the whole job from giving room to anybody."""
    full, waiting = state("sponge", 3, **SPONGE), pod("inference", priority=100, since=NOON - 10)
    labelled = replace(pod("looks-so", on="n", owner="another", index=99), priority=1000)
    assert counts([full], [node("n", 4)], [*running(full), labelled, waiting]) == {"sponge": 2}
    *others, last = running(full)
    assert counts([full], [node("n", 3)], [*others, replace(last, priority=1000), waiting]) == {"sponge": 2}


def test_prices_are_those_of_the_nodes() -> None:
    cheap = state("one", 2, rates=LINEAR, policy=PolicyName.COST, price_label="price")
    nodes = [node("n", 2, price="1.0"), node("m", 2, price="0.5")]
    assert counts([cheap], nodes, running(cheap)) == {"one": 3}
    assert counts([cheap], [node("n", 2, price="1.0"), node("m", 2, price="5")], running(cheap)) == {"one": 2}
    assert counts([cheap], [node("n", 2, price="nan"), node("m", 2)], running(cheap)) == {"one": 2}


@pytest.mark.parametrize(("bounds", "count"), [(Bounds(1, 4, (1, 4)), 4), (Bounds(2, 8, (), 3), 3), (Bounds(2, 8, (2, 7)), 7)])
def test_all_workers_of_the_next_allowed_size_are_priced(bounds: Bounds, count: int) -> None:
    """A job with allowedSizes [1, 4] never left 1, because only as many workers were priced as it had."""
    one = state("one", bounds.least, rates={bounds.least: LINEAR[bounds.least]}, policy=PolicyName.COST, price_label="price")
    one = replace(one, seen=replace(one.seen, bounds=bounds))
    assert counts([one], [node("n", bounds.least, price="1"), node("m", 5, price="0.1")], running(one)) == {"one": count}
    assert counts([one], [node("n", bounds.least, price="1"), node("m", 3, price="9")], running(one)) == {"one": bounds.least}


@pytest.mark.parametrize("grows", [False, True])
def test_an_autoscaler_of_one_namespace_says_that_it_sees_no_nodes(grows: bool) -> None:
    """It told to label nodes that it would not have seen, and that there was no room in a cluster of which it knew nothing."""
    words = "needs to see nodes, and an autoscaler of one namespace sees none; run it for all namespaces, or choose another policy"
    cost, sponge = state("cost", 1, rates=LINEAR, policy=PolicyName.COST, price_label="price"), state("sponge", 1, **SPONGE)
    grown = state("grown", 1, rates={1: 100.0})
    tries = replace(grown, memory=Memory(sizes=measured({1: 100.0, 2: 101.0}), tried_at=0.0, changed_at=0.0, grew=True))
    tries = replace(tries, seen=replace(tries.seen, key=JobName("PyTorchJob", "default", "tries"), uid="uid-tries"))
    states = [cost, sponge, grown, tries]
    setting = Setting(grows=grows, sees_nodes=False)
    found = decide_all(states, (), running(*states), setting=setting, now=NOON, monotonic=1.0)
    decisions = {key.name: outcome.decision for key, outcome in found.items()}
    for name, policy in (("cost", "cost"), ("sponge", "capacity")):
        assert decisions[name].trouble == f"scalingPolicy.policy: {policy} {words}"
        assert (decisions[name].count, decisions[name].reason) == (1, decisions[name].trouble)
    assert (decisions["grown"].count, decisions["grown"].trouble) == (2, ""), "room limits nobody where it is not known"
    assert decisions["tries"].count == 1
    assert "no nodes are seen" in decisions["tries"].reason


def test_free_room_is_known_by_group_and_by_whether_it_may_be_taken_back() -> None:
    spot = {"karpenter.sh/nodepool": "gpus", "karpenter.sh/capacity-type": "spot"}
    one = state("one", 3)
    free = Room([node("n", 4), node("m", 8, **spot)], running(one, on="m")).by_group()
    assert free[("", "on-demand", "cpu")] == 4
    assert free[("gpus", "spot", "cpu")] == 5


# --- what is written down


@pytest.mark.parametrize(
    ("rates", "size", "efficiency", "marginal"),
    [
        ({4: 200.0}, 4, None, None),
        ({1: 100.0}, 4, None, None),
        ({1: 100.0}, 1, 1.0, None),
        ({1: 100.0, 4: 200.0}, 1, 1.0, None),
        ({1: 100.0, 3: 180.0, 4: 200.0}, 4, 0.5, 0.2),
        ({3: 180.0, 4: 200.0}, 4, 0.5, 0.2),
    ],
)
def test_the_gain_of_workers_is_a_figure_once_two_sizes_were_measured(
    rates: dict[int, float], size: int, efficiency: float | None, marginal: float | None
) -> None:
    """With one, efficiency was that of the default curve: the same number for each job, as if it had been measured."""
    figures = outcome_of(state("one", size, rates=rates)).figures
    assert figures.efficiency == (efficiency if efficiency is None else pytest.approx(efficiency, abs=0.01))
    assert figures.marginal_efficiency == (marginal if marginal is None else pytest.approx(marginal, abs=0.01))


def outcome_of(one: JobState) -> Any:
    return decide_all([one], [node("n", 8)], running(one), setting=Setting(), now=NOON, monotonic=1.0)[one.seen.key]


def test_a_written_record_is_read_again_and_noise_is_no_news() -> None:
    one = state("one", 2, rates=LINEAR)
    record = record_of(outcome_of(one), NOON, was_ours=True)
    text = as_text(record)
    assert from_text(text) == record
    memory = memory_of(from_text(text))
    assert Curve(memory.sizes, least=1, now=NOON).rate(2).mid == pytest.approx(200, rel=0.01)
    noisy = state("one", 2, rates={n: rate * 1.05 for n, rate in LINEAR.items()})
    assert not is_news(record_of(outcome_of(noisy), NOON + 3600, was_ours=True), record)
    assert is_news(record, None)
    fast = state("one", 2, rates={n: rate * 2 for n, rate in LINEAR.items()})
    assert is_news(record_of(outcome_of(fast), NOON + 3600), record)
    assert not is_news(record_of(outcome_of(fast), NOON + 10), record), "figures are rarely written"


def test_the_status_has_few_figures_rounded_and_none_of_them_is_news() -> None:
    deadline = {"policy": PolicyName.DEADLINE, "total_samples": 100_000, "finish_by": datetime.fromtimestamp(NOON + 3600, UTC)}
    one = state("one", 4, rates={1: 100.0, 3: 180.0, 4: 201.0}, **deadline)
    one = replace(one, training=replace(one.training, seconds={Spent.TRAINING: 90.0, Spent.RESTART: 9.7}))
    record = record_of(outcome_of(one), NOON)
    written = record.decision
    assert (written.efficiency_percent, written.marginal_efficiency_percent, written.goodput_percent) == (50, 21, 89)
    assert written.target_at == datetime.fromtimestamp(NOON + 540, UTC), "of 99,995 samples at 201 a second, to the minute"
    moved = msgspec.structs.replace(
        written, at=written.at + timedelta(hours=1), marginal_efficiency_percent=9, goodput_percent=1, target_at=None
    )
    assert not is_news(msgspec.structs.replace(record, decision=moved), record)


@pytest.mark.parametrize(("left_s", "is_known"), [(0.0, True), (1e8, True), (1e9, False), (float("inf"), False)])
def test_a_target_out_of_sight_is_not_recorded(left_s: float, is_known: bool) -> None:
    outcome = outcome_of(state("one", 2))
    figures = replace(outcome.figures, left_s=left_s, goodput=1.0, marginal_efficiency=float("-inf"))
    record = record_of(replace(outcome, figures=figures), NOON)
    assert (record.decision.target_at is not None) == is_known
    assert from_text(as_text(record)) == record


def test_a_new_process_knows_what_a_change_cost_and_mixes_in_what_it_measures() -> None:
    """It was taken for nothing, and the pause before the next change fell to cooldownSeconds."""
    one = state("one", 2)
    record = record_of(outcome_of(replace(one, training=replace(one.training, rescale_s=40.04))), NOON)
    seen, book = replace(one.seen, record=from_text(as_text(record))), Book(is_ready=lambda: True)
    (known,) = book.states([seen], now=NOON)
    assert known.training.rescale_s == 40.0
    for at, phase, size, step in ((0.0, "re-forming", 0, None), (5.0, "running", 2, None), (10.0, "running", 2, 6)):
        progress = TrainingProgress(job=seen.uid, generation=2, phase=phase, size=size, step=step, highest=5)
        book.heard(progress, seen=seen, now=NOON, monotonic=at)
    (known,) = book.states([seen], now=NOON)
    assert known.training.rescale_s == pytest.approx(0.7 * 40 + 0.3 * 10)


@pytest.mark.parametrize(
    ("old", "new", "is_told"), [(None, 4.0, True), (4.0, None, False), (4.0, 4.5, False), (4.0, 6.0, True), (0.0, 0.0, False)]
)
def test_another_cost_of_a_change_is_news(old: float | None, new: float | None, is_told: bool) -> None:
    one = state("one", 2)

    def record(rescale_s: float | None, now: float) -> DecisionRecord:
        return record_of(outcome_of(replace(one, training=replace(one.training, rescale_s=rescale_s))), now)

    assert is_news(record(new, NOON + 3600), record(old, NOON)) == is_told
    assert not is_news(record(new, NOON + 10), record(old, NOON))


def test_that_progress_is_heard_is_written_before_the_next_figures() -> None:
    """The first record came before the first report, so the status said for a minute that no progress was known."""
    deaf = state("one", 2, policy=PolicyName.THROUGHPUT)
    heard = replace(deaf, training=replace(deaf.training, heard_at=NOON))
    deaf = replace(deaf, training=Training())

    def record(one: JobState, now: float) -> DecisionRecord:
        return record_of(outcome_of(one), now)

    assert "no progress is known" in record(deaf, NOON).decision.reason
    assert is_news(record(heard, NOON + 10), record(deaf, NOON))
    assert not is_news(record(heard, NOON + 9), record(deaf, NOON))
    assert not is_news(record(deaf, NOON + 59), record(deaf, NOON))


def test_a_record_never_takes_more_than_its_room() -> None:
    sizes = tuple(SizeRecord(size, 123456.789 * size, 0.123456, 64) for size in range(8000, 8008))
    longest = DecisionRecord(
        decision=Decision(
            workers=9999,
            reason="\u00e9\u0001" * 120,
            at=datetime.fromtimestamp(NOON, UTC),
            throughput="9" * 32,
            efficiency_percent=1000,
            marginal_efficiency_percent=-1000,
            goodput_percent=100,
            target_at=datetime.fromtimestamp(NOON, UTC),
        ),
        sizes=sizes,
        changed_at=1e10 + 0.1,
        grew=True,
        reversals=64,
        was_ours=True,
        hand=9999,
        hand_until=1e10 + 0.1,
        trial=TrialRecord(9998, 9999, 2**40, True),
        tried_at=1e10 + 0.1,
        trial_doublings=16,
        rescale_s=2**31 - 1.1,
    )
    assert len(as_text(longest).encode()) <= LONGEST_RECORD
    assert from_text(as_text(longest)) is not None


HOSTILE = '{"decision": {"workers": 2}, "sizes": [[5, 1e-320, 0, 64], [6, 1e9, 0, 64]]}'
"""Rates so far apart that their ratio is no number."""


TOO_MANY = '{"decision": {"workers": 2}, "hand": 2147483647, "hand_until": 1e15}'
"""Annotation from which followed one that could be written but not read again."""
TWICE = '{"decision": {"workers": 2}, "sizes": [[1, 1e15, 0, 3], [8, 2, 0, 3], [1, 2, 1e3, 3], [8, 9, 0, 64]]}'


def test_a_size_that_was_written_twice_counts_once() -> None:
    """Two measures of one size were a line without a slope: the round failed for all jobs, and was made again job by job, each time."""
    memory = memory_of(from_text(TWICE))
    assert [(one.size, one.rate) for one in memory.sizes] == [(1, 2.0), (8, 9.0)]
    one = state("one", 2)
    assert outcome_of(replace(one, memory=memory)).decision.reason


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", '{"decision": 4}', '{"decision": {"workers": -1}}', "x" * 10_000, "[" * 4000, HOSTILE, TOO_MANY]
)
def test_an_annotation_that_someone_else_wrote_is_no_memory(text: str | None) -> None:
    assert from_text(text) is None
    assert memory_of(None) == Memory()
