"""Play a recording through our own decision, which looks when the real controller looked and gets the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import metrics_apis
from scenarios import Scenario

from elastic.kube.errors import KubeError
from elastic.kube.resources import SERVICES, Resource
from elastic.local.apiserver.errors import StatusError
from elastic.local.apiserver.selectors import label_selector
from elastic.local.controllers.autoscaling.asking import Asking
from elastic.local.controllers.autoscaling.decision import Scale, Seen, decide, needs_metrics, refused, rivals, without_scale
from elastic.local.controllers.autoscaling.limits import History
from elastic.local.controllers.discovery import Kinds

Object = dict[str, Any]
LOOK_S, TOGETHER_S = 2.0, 0.5
KINDS = Kinds(
    (),
    {},
    every={("example.com", "Trainer"): Resource("example.com", "v1", "trainers", kind="Trainer"), ("", "Service"): SERVICES},
    versions={group: (version,) for group, version in metrics_apis.VERSIONS.items()},
)


class Served:
    """A client of the metrics APIs at one moment."""

    def __init__(self, metrics: Object, now: float) -> None:
        self._metrics, self._now = metrics, now

    async def request(self, method: str, path: str, *, params: Mapping[str, str] | None = None) -> Object:
        status, body = metrics_apis.answer(path, self._metrics, now=self._now)
        if status != 200:
            raise KubeError(code=status, reason=body["reason"], message=body["message"])
        return body


@dataclass
class Played:
    statuses: list[Object] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    events: set[tuple[str, str, str]] = field(default_factory=set)


def play(recording: Object, scenario: Scenario) -> Played:
    replicas, selector = scenario.replicas, scenario.selector
    missing, problem = _said(recording, "FailedGetScale"), _said(recording, "FailedUpdateScale")
    hpa = {**recording["hpa"], "status": {"desiredReplicas": 0, "currentMetrics": None}}
    made, history = Played(sizes=[replicas]), History()
    size = replicas
    for now, step in _looks(recording, scenario.silent):
        if step.get("replicas") is not None:
            size = step.pop("replicas")
            made.sizes.append(size)
        scale = Scale(size, size, selector)
        decision = without_scale(hpa, missing, history, now=now) if missing else decide(
            hpa, _seen(recording, hpa, scale, step["metrics"], now, scenario.rivals), history, now=now
        )  # fmt: skip
        if decision.replicas is not None and problem:
            decision = refused(hpa, decision, size, problem, history, now=now)
        history, hpa["status"] = decision.history, decision.status
        if decision.replicas is not None:
            size = decision.replicas
            made.sizes.append(size)
        made.events |= {("Warning" if n.is_warning else "Normal", n.reason, n.message) for n in decision.notes}
        told = without_times(decision.status)
        if not made.statuses or made.statuses[-1] != told:
            made.statuses.append(told)
    return made


def _said(recording: Object, reason: str) -> str:
    """Return the API server's message that a condition with this reason quotes."""
    conditions = (condition for each in recording["statuses"] for condition in each["status"]["conditions"])
    message = next((str(condition["message"]) for condition in conditions if condition["reason"] == reason), "")
    return message.partition(": ")[2]


def _looks(recording: Object, silent: int) -> Iterator[tuple[float, Object]]:
    """Yield the times of the real controller's looks, each with its step."""
    times = [recording["began"] + LOOK_S * (n + 1) for n in range(silent)]
    for asked in recording["asked"]:
        if not times or asked - times[-1] > TOGETHER_S:
            times.append(asked)
    for at in times:
        yield at, next((s for s in reversed(recording["steps"]) if s["at"] <= at), recording["steps"][0])


def _seen(recording: Object, hpa: Object, scale: Scale, metrics: Object, now: float, others: tuple[str, ...]) -> Seen:
    if not needs_metrics(hpa, scale):
        return Seen(scale)
    try:
        matches = label_selector(scale.selector)
    except StatusError as error:
        return Seen(scale, selector_problem=error.message)
    if matches is None:
        return Seen(scale)
    pods = [pod for pod in recording["pods"] if matches(pod["metadata"]["labels"])]
    namespace = hpa["metadata"]["namespace"]
    if found := rivals({(namespace, name): matches for name in ("h", *others)}, namespace, pods):
        return Seen(scale, pods, rivals=found)
    asking = Asking(Served(metrics, now))  # type: ignore[arg-type]
    answers = [
        asyncio.run(asking.answer(metric, namespace=namespace, selector=scale.selector, kinds=KINDS)) for metric in hpa["spec"]["metrics"]
    ]
    return Seen(scale, pods, answers)


def without_times(status: Object) -> Object:
    conditions = [{k: v for k, v in c.items() if k != "lastTransitionTime"} for c in status.get("conditions") or ()]
    return {k: v for k, v in status.items() if k != "lastScaleTime"} | {"conditions": conditions}
