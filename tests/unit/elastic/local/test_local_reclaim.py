"""A played loss waits for its time, and does not come where the signal is taken back before."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from elastic.cli import main
from elastic.kube.resources import NODES, Object, Resource
from elastic.local import reclaim
from elastic.local.reclaim import NOT_PLAYED, PLAYABLE, as_seen, is_taken_back
from elastic.signals.signal import DisruptionSignal, Meaning
from elastic.signals.table import BUILT_IN

SIGNALS = [PLAYABLE[name] for name in ("aws-spot", "karpenter-termination-time", "aks-preempt")]
"""A taint, an annotation, a condition."""


class Api:
    """Answers with one node after the other, then with the last for ever."""

    def __init__(self, *nodes: Object | None) -> None:
        self._nodes = list(nodes)

    async def find(self, resource: Resource, name: str) -> Object | None:
        assert (resource, name) == (NODES, "node-1")
        return self._nodes.pop(0) if len(self._nodes) > 1 else self._nodes[0]


def node(signal: DisruptionSignal | None = None) -> Object:
    found: dict[str, Any] = {"metadata": {"name": "node-1"}, "spec": {}, "status": {"conditions": []}}
    if signal is None:
        return found
    played = as_seen(signal, now=datetime.now(UTC), left_s=60.0)
    found["metadata"] |= {"labels": dict(played.labels), "annotations": dict(played.annotations)}
    found["status"]["conditions"] = [played.condition] if played.condition else []
    if played.taint is not None:
        found["spec"]["taints"] = [{"key": played.taint.key, "value": played.taint.value, "effect": played.taint.effect.value}]
    return found


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda row: row.name)
async def test_a_signal_that_is_taken_back_ends_the_wait_at_once(signal: DisruptionSignal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that had played it went on to end the node, minutes after it was taken back."""
    monkeypatch.setattr(reclaim, "LOOK_EVERY_S", 0.001)
    assert await is_taken_back(Api(node(signal), node(signal), node()), "node-1", signal, within_s=600.0)


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda row: row.name)
async def test_a_signal_that_stays_is_waited_for(signal: DisruptionSignal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim, "LOOK_EVERY_S", 0.001)
    assert not await is_taken_back(Api(node(signal)), "node-1", signal, within_s=0.02)


async def test_the_time_that_is_left_is_told_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command stood still for two minutes at a cloud that gives so much notice."""
    monkeypatch.setattr(reclaim, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(reclaim, "SAY_EVERY_S", 0.005)
    told: list[float] = []
    await is_taken_back(Api(node(SIGNALS[0])), "node-1", SIGNALS[0], within_s=0.1, say=told.append)
    assert len(told) > 1
    assert told == sorted(told, reverse=True)
    assert 0.0 <= told[-1] < told[0] <= 0.1


async def test_a_node_that_went_meanwhile_took_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim, "LOOK_EVERY_S", 0.001)
    assert not await is_taken_back(Api(None), "node-1", SIGNALS[0], within_s=0.02)


def test_every_row_is_played_or_says_why_not() -> None:
    assert {*PLAYABLE, *NOT_PLAYED} == {row.name for row in BUILT_IN}
    assert not PLAYABLE.keys() & NOT_PLAYED.keys()
    assert all(NOT_PLAYED.values())


def test_a_signal_that_only_informs_is_not_played_if_it_would_end_pods() -> None:
    """`--like karpenter-unregistered` ended all pods of the node, by a taint that clouds give to nodes without pods."""
    assert not [name for name, row in PLAYABLE.items() if row.meaning is Meaning.INFORM and row.effect == "NoExecute"]
    done = CliRunner().invoke(main, ["node", "reclaim", "node-1", "--like", "karpenter-unregistered"])
    assert done.exit_code == 2
    assert (
        "karpenter-unregistered is not played: a cloud gives its taint to nodes without pods; on another node it would end them"
        in done.output
    )
