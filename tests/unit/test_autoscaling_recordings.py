"""Our decision about HorizontalPodAutoscalers does what a real kube-controller-manager was seen to do (tests/autoscaling)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent.parent / "autoscaling"
sys.path.insert(0, str(HERE))

from replaying import play  # noqa: E402
from scenarios import SCENARIOS, Scenario  # noqa: E402

Object = dict[str, Any]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_a_recorded_autoscaler_is_decided_the_same(scenario: Scenario) -> None:
    recording = json.loads((HERE / "recordings" / f"{scenario.name}.json").read_text())
    messages = {
        m for s in recording["statuses"] for c in s["status"]["conditions"] for m in [c["message"]] if c["reason"] == "FailedGetScale"
    }
    missing = next(iter(messages), "").removeprefix("the HPA controller was unable to get the target's current scale: ")
    played = play(recording, replicas=scenario.replicas, selector=scenario.selector, silent=scenario.silent, missing=missing)
    assert played.statuses == _distinct([s["status"] for s in recording["statuses"]])
    assert played.sizes == [s["replicas"] for s in recording["sizes"]]
    assert played.events == {tuple(event) for event in recording["events"]}


def _distinct(statuses: list[Object]) -> list[Object]:
    """Without those that differ in their times only."""
    found: list[Object] = []
    for status in statuses:
        if not found or found[-1] != status:
            found.append(status)
    return found
