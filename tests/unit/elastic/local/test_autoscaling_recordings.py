"""Compare our decisions about HorizontalPodAutoscalers with recordings of a real kube-controller-manager (tests/autoscaling)."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[3] / "autoscaling"
sys.path.insert(0, str(HERE))

from replaying import play  # noqa: E402
from scenarios import SCENARIOS, Scenario  # noqa: E402

from elastic.local.apiserver.policies import Autoscalers  # noqa: E402

Object = dict[str, Any]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_a_recorded_autoscaler_is_decided_the_same(scenario: Scenario) -> None:
    recording = in_order(json.loads((HERE / "recordings" / f"{scenario.name}.json").read_text()))
    played = play(recording, scenario)
    assert played.statuses == _distinct([s["status"] for s in recording["statuses"]])
    assert played.sizes == [s["replicas"] for s in recording["sizes"]]
    assert played.events == {tuple(event) for event in recording["events"]}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_the_defaults_of_a_recorded_autoscaler_are_the_same(scenario: Scenario) -> None:
    recording = json.loads((HERE / "recordings" / f"{scenario.name}.json").read_text())
    obj = {"spec": copy.deepcopy({**scenario.spec, "scaleTargetRef": scenario.target})}
    Autoscalers().default(obj)
    assert obj["spec"] == recording["hpa"]["spec"]


def in_order(value: Any) -> Any:
    """Sort the autoscalers in messages, because the real controller names the autoscalers of the same pods in any order."""
    if isinstance(value, str):
        return re.sub(r"(?<=controlled by multiple HPAs: \[)[^]]*", lambda named: " ".join(sorted(named[0].split())), value)
    if isinstance(value, dict):
        return {key: in_order(each) for key, each in value.items()}
    return [in_order(each) for each in value] if isinstance(value, list) else value


def _distinct(statuses: list[Object]) -> list[Object]:
    """Return the statuses without those that equal the one before."""
    found: list[Object] = []
    for status in statuses:
        if not found or found[-1] != status:
            found.append(status)
    return found
