"""Check trials among other jobs, and the use of old sizes' measures for jobs that try no size."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from autoscale_cluster import node, running, state
from autoscale_jobs import NOON, measured
from test_autoscale_trials import outcome_with, outcomes, stuck

from elastic.api.scaling import PolicyName
from elastic_training.autoscale.deciding.measures import OLD_S, with_rate
from elastic_training.autoscale.deciding.remembering import is_news, record_of
from elastic_training.autoscale.deciding.round import Setting, decide_all
from elastic_training.autoscale.deciding.signals import Memory, SizeDecision


@pytest.mark.parametrize("grows", [False, True])
def test_a_trial_waits_for_room_that_no_other_job_grows_into(grows: bool) -> None:
    other = state("other", 1, rates={1: 100.0})
    assert outcomes([stuck()], 4, grows=grows)["stuck"].decision.count == 4
    both = outcomes([stuck(), other], 5, grows=grows)
    assert {name: outcome.decision.count for name, outcome in both.items()} == {"stuck": 2, "other": 2}
    assert "there is no room for all of them" in both["stuck"].decision.reason


def test_no_node_is_made_for_a_trial() -> None:
    assert outcomes([stuck()], 2, grows=True)["stuck"].decision.count == 2
    assert outcomes([stuck()], 4, grows=True)["stuck"].decision.count == 4


FINISH = {"policy": PolicyName.DEADLINE, "finish_by": datetime.fromtimestamp(NOON + 3600, UTC), "total_samples": 750_000}
CHEAP = {"policy": PolicyName.COST, "price_label": "price"}


@pytest.mark.parametrize("days", [0, 0.1, 1, 10])
@pytest.mark.parametrize(("policy", "wanted"), [(FINISH, 8), (CHEAP, 2)])
def test_policies_without_trials_count_on_no_size_because_its_neighbours_were_measured_long_ago(
    policy: dict[str, Any], wanted: int, days: float
) -> None:
    """The bounds of sizes in between widened with age, and so did the estimates. With 3 workers a deadline would have been missed."""
    sizes = (*measured({1: 100.0, 2: 195.0}), *measured({4: 200.0, 8: 420.0}, at=NOON - days * OLD_S))
    one = state("one", 2, **policy)
    one = replace(one, memory=replace(one.memory, sizes=sizes))
    nodes = [node("n", 2, price="1.0"), node("cheap", 6, price="0.4")]
    (outcome,) = decide_all([one], nodes, running(one), setting=Setting(), now=NOON, monotonic=1.0).values()
    assert outcome.decision.wanted == wanted


def test_the_size_measured_last_is_written_once_a_return() -> None:
    """After a failed trial, the record named the larger size as the last one. A new process then believed that the job had come back."""
    sizes = measured({1: 100.0, 2: 200.0, 4: 210.0}, at=NOON - 600)
    sizes = with_rate(with_rate(sizes, size=4, rate=210.0, now=NOON - 90), size=4, rate=210.0, now=NOON - 80)
    old, news = None, []
    for turn in range(12):
        decision = SizeDecision(count=2, wanted=2, reason="r", memory=Memory(sizes=sizes))
        new = record_of(outcome_with(decision), NOON + 10 * turn)
        if is_news(new, old):
            old = new
            news.append(turn)
        sizes = with_rate(sizes, size=2, rate=200.0, now=NOON + 10 * turn)
    assert news == [0, 3]
