"""The HorizontalPodAutoscaler of a user's own metrics: it changes the size seldom and in bounded steps, since each change costs a pause.

Changes that the user has made to it stay.
"""

import copy
import itertools
from dataclasses import replace
from typing import Any

import pytest
from job_builders import PLAIN, Cluster, elastic_job, with_status

from elastic.kube.resources import HORIZONTAL_POD_AUTOSCALERS
from elastic.local.controllers.autoscaling.limits import History, begun, limited, scaled
from elastic_training.controller.deciding.actions import Update
from elastic_training.controller.facts.settings import Settings

CPU = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]
KEY = ("HorizontalPodAutoscaler", "train")
THROUGH: dict[str, Any] = {"scalingPolicy": {"through": "hpa"}}


def made(elastic: dict[str, Any], *, settings: Settings = PLAIN) -> Cluster:
    cluster = Cluster(elastic_job(2, most=100, elastic=elastic), settings=settings)
    cluster.settle()
    return cluster


def spec(cluster: Cluster) -> dict[str, Any]:
    return dict(cluster.owned[KEY].raw["spec"])


def becomes(cluster: Cluster, elastic: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the changes of the autoscaler once the job has this policy."""
    cluster.job = with_status(elastic_job(2, most=100, elastic=elastic), cluster.job.status)
    return [
        action.change for action in cluster.round().actions if isinstance(action, Update) and action.resource == HORIZONTAL_POD_AUTOSCALERS
    ]


def with_behavior(cluster: Cluster, behavior: dict[str, Any] | None) -> None:
    owned = cluster.owned[KEY]
    rest = {key: value for key, value in owned.raw["spec"].items() if key != "behavior"}
    changed = rest | ({"behavior": behavior} if behavior is not None else {})
    cluster.owned[KEY] = replace(owned, raw={**owned.raw, "spec": changed})


def test_it_goes_down_by_one_worker_or_a_tenth_and_up_by_four_or_twice_each_cooldown() -> None:
    behavior = spec(made({"metrics": CPU}))["behavior"]
    up, down = behavior["scaleUp"], behavior["scaleDown"]
    assert (up["stabilizationWindowSeconds"], down["stabilizationWindowSeconds"]) == (60, 300)
    assert [(p["type"], p["value"], p["periodSeconds"]) for p in up["policies"]] == [("Pods", 4, 60), ("Percent", 100, 60)]
    assert [(p["type"], p["value"], p["periodSeconds"]) for p in down["policies"]] == [("Pods", 1, 60), ("Percent", 10, 60)]
    assert {up["selectPolicy"], down["selectPolicy"]} == {"Max"}


@pytest.mark.parametrize(("cooldown", "period", "window"), [(0, 1, 300), (600, 600, 600), (7200, 1800, 1800)])
def test_the_jobs_cooldown_is_its_pace_within_what_kubernetes_allows(cooldown: int, period: int, window: int) -> None:
    policy = {"policy": "hpa", "cooldownSeconds": cooldown}
    behavior = spec(made({"metrics": CPU, "scalingPolicy": policy}))["behavior"]
    assert {policy["periodSeconds"] for way in behavior.values() for policy in way["policies"]} == {period}
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == window


def test_one_that_was_made_before_gets_it_and_what_the_user_changes_stays() -> None:
    cluster = made({"metrics": CPU})
    ours = copy.deepcopy(spec(cluster)["behavior"])
    with_behavior(cluster, None)
    (change,) = becomes(cluster, {"metrics": CPU})
    assert change["spec"]["behavior"] == ours
    with_behavior(cluster, {"scaleDown": {"selectPolicy": "Disabled"}})
    assert becomes(cluster, {"metrics": CPU}) == []


def test_a_decisions_behavior_gives_way_to_the_pace_of_metrics_and_takes_it_back() -> None:
    """A merge patch leaves what it does not name: the tolerance of 0 must be taken away."""
    cluster = made(THROUGH)
    at_once = copy.deepcopy(spec(cluster)["behavior"])
    (change,) = becomes(cluster, {"metrics": CPU})
    assert [rules["tolerance"] for rules in change["spec"]["behavior"].values()] == [None, None]
    back = made({"metrics": CPU})
    (change,) = becomes(back, THROUGH)
    assert change["spec"]["behavior"] == at_once


def test_a_size_that_is_wanted_only_for_a_moment_changes_nothing() -> None:
    hpa, history = spec(made({"metrics": CPU})), History()
    for now in range(0, 600, 15):
        history, size = step(hpa, 4, 16 if now % 60 == 0 else 4, history, now=float(now))
        assert size == 4


def test_as_the_real_controller_reckons_a_job_loses_one_worker_a_minute() -> None:
    """With the rules that the laptop's controller has, which are held to recordings of a real one."""
    hpa, size, sizes, history = spec(made({"metrics": CPU})), 8, list[int](), History()
    for now in range(0, 600, 15):
        history, wanted = step(hpa, size, 2, history, now=float(now))
        sizes.append(wanted)
        size = wanted
    assert sizes[:20] == [8] * 20, "for five minutes nothing"
    assert all(before - after in (0, 1) for before, after in itertools.pairwise(sizes))
    assert sizes[-1] == 3


def step(hpa: dict[str, Any], current: int, wanted: int, history: History, *, now: float) -> tuple[History, int]:
    allowed = limited(hpa, current, wanted, begun(history, current, now=now), now=now)
    return scaled(allowed.history, hpa["behavior"], current, allowed.replicas, now=now), allowed.replicas
