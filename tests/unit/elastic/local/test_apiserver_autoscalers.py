"""A HorizontalPodAutoscaler that makes no sense is refused, as by a real API server; one that is stored all the same ends no loop."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from elastic.local.apiserver.policies import Autoscalers
from elastic.local.controllers.autoscaling import loop
from elastic.local.controllers.autoscaling.limits import History, scaled

Object = dict[str, Any]


def hpa(*metrics: Object, **behavior: Object) -> Object:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec: Object = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3, "metrics": list(metrics)}
    obj = {"metadata": {"name": "web", "namespace": "default"}, "spec": spec | ({"behavior": behavior} if behavior else {})}
    Autoscalers().default(obj)
    return obj


def cpu(**target: Any) -> Object:
    return {"type": "Resource", "resource": {"name": "cpu", "target": target}}


def causes(obj: Object) -> list[str]:
    return [f"{cause.field}: {cause.message}" for cause in Autoscalers().validate(obj)]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({"type": "AverageValue", "averageValue": "0"}, 'averageValue: Invalid value: "0": must be positive'),
        ({"type": "AverageValue", "averageValue": "-1"}, "must be positive"),
        ({"type": "Utilization", "averageUtilization": -5}, "averageUtilization: Invalid value: -5: must be greater than 0"),
        ({"type": "Foo", "averageValue": "1"}, "must be either Utilization, Value, or AverageValue"),
    ],
)
def test_a_target_of_nothing_is_refused(target: Object, words: str) -> None:
    """It ended scheduler, controllers and node agents of the laptop in a division by zero, and again at each start."""
    (found,) = causes(hpa(cpu(**target)))
    assert found.startswith("spec.metrics[0].resource.target.")
    assert words in found


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"selectPolicy": "Foo"}, "spec.behavior.scaleUp.selectPolicy: Unsupported value"),
        ({"policies": []}, "spec.behavior.scaleUp.policies: Required value: must specify at least one Policy"),
        ({"policies": [{"type": "Foo", "value": 1, "periodSeconds": 15}]}, "policies[0].type: Unsupported value"),
        (
            {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 15}]},
            "policies[0].value: Invalid value: 0: must be greater than zero",
        ),
        ({"policies": [{"type": "Pods", "value": 1, "periodSeconds": 0}]}, "policies[0].periodSeconds: Invalid value: 0"),
        ({"policies": [{"type": "Pods", "value": 1, "periodSeconds": 1801}]}, "policies[0].periodSeconds: Invalid value: 1801"),
        ({"stabilizationWindowSeconds": -1}, "stabilizationWindowSeconds: Invalid value: -1"),
        ({"stabilizationWindowSeconds": 99999}, "stabilizationWindowSeconds: Invalid value: 99999"),
        ({"tolerance": "-1"}, "tolerance: Invalid value"),
    ],
)
def test_invalid_rules_are_refused(rules: Object, words: str) -> None:
    (found,) = causes(hpa(cpu(type="Utilization", averageUtilization=80), scaleUp=rules))
    assert words in found


def test_valid_rules_are_taken() -> None:
    rules = {"stabilizationWindowSeconds": 0, "selectPolicy": "Disabled", "tolerance": "0.05"}
    assert causes(hpa(cpu(type="AverageValue", averageValue="100m"), scaleUp=rules, scaleDown={"tolerance": "0"})) == []


async def test_an_autoscaler_that_cannot_be_looked_at_is_logged_and_looked_at_again(caplog: pytest.LogCaptureFixture) -> None:
    looks: list[int] = []

    class Loop:
        _look_every_s = 0.0
        _turns = asyncio.Semaphore(1)

        class _pods:
            @staticmethod
            async def wait_synced() -> None: ...

        async def _look(self, key: tuple[str, str], history: object) -> object:
            looks.append(1)
            if len(looks) > 2:
                raise asyncio.CancelledError
            raise ZeroDivisionError

    keep: Any = next(found for found in vars(loop).values() if hasattr(found, "_keep"))._keep
    with caplog.at_level(logging.ERROR), pytest.raises(asyncio.CancelledError):
        await keep(Loop(), ("default", "web"))
    assert caplog.text.count("autoscaler default/web cannot be looked at") == 2


def test_added_replicas_count_for_the_longer_period_of_the_way_down() -> None:
    """The real controller replaces one event that is too old, and keeps the others."""
    obj = hpa(
        cpu(type="Utilization", averageUtilization=80),
        scaleUp={"policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]},
        scaleDown={"policies": [{"type": "Pods", "value": 2, "periodSeconds": 600}]},
    )
    history = History()
    for now, before, after in ((0.0, 10, 12), (10.0, 12, 14), (100.0, 14, 16)):
        history = scaled(history, obj["spec"]["behavior"], before, after, now=now)
    assert [(event.at, event.replicas) for event in history.added] == [(0.0, 2), (100.0, 2)]
