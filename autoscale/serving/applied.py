"""The HorizontalPodAutoscalers that carry `desired_workers` out: their bounds, and whether the API server kept their tolerance of 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elastic.api.scaling import DESIRED
from elastic.kube.cache import Cache
from elastic.kube.client import Kube
from elastic.kube.resources import HORIZONTAL_POD_AUTOSCALERS
from elastic_training.autoscale.figures import JobFigures
from elastic_training.autoscale.serving.tolerated import ToleratedSize, answered

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Applied:
    kind: str
    name: str
    least: int
    most: int
    is_exact: bool


def applied(hpa: Object) -> Applied | None:
    """Return how the autoscaler applies our metric, or None if it does not use it."""
    spec = hpa["spec"]
    names = [
        ((metric.get("external") or metric.get("object") or {}).get("metric") or {}).get("name") for metric in spec.get("metrics") or ()
    ]
    if DESIRED not in names:
        return None
    behavior = spec.get("behavior") or {}
    given = [(behavior.get(way) or {}).get("tolerance") for way in ("scaleUp", "scaleDown")]
    target = spec["scaleTargetRef"]
    is_exact = all(text is not None and str(text).strip("0.m") == "" for text in given)
    return Applied(target["kind"], target["name"], spec.get("minReplicas") or 1, spec["maxReplicas"], is_exact)


def _key(kind: str, namespace: str, name: str) -> str:
    return f"{kind}/{namespace}/{name}"


class Autoscalers:
    def __init__(self, kube: Kube, *, namespace: str | None) -> None:
        self._seen: dict[str, dict[str, Applied]] = {}
        self._cache: Cache[Applied | None] = Cache(kube, HORIZONTAL_POD_AUTOSCALERS, project=applied, namespace=namespace)

    async def run(self) -> None:
        self._cache.subscribe(lambda change: self._take(change.key, change.old, change.new))
        await self._cache.run()

    def _take(self, key: tuple[str, str], old: Applied | None, new: Applied | None) -> None:
        namespace, name = key
        if old is not None:
            self._seen.get(_key(old.kind, namespace, old.name), {}).pop(name, None)
        if new is not None:
            self._seen.setdefault(_key(new.kind, namespace, new.name), {})[name] = new

    def desired(self, job: JobFigures) -> ToleratedSize:
        """Return the number that the autoscaler acts on; the plain number if no autoscaler is known yet."""
        wanted = job.wanted if job.wanted is not None else job.replicas
        found = next(iter(self._seen.get(_key(*job.key), {}).values()), None)
        if found is None:
            return ToleratedSize(wanted)
        return answered(wanted, job.replicas, bounds=job.bounds, least=found.least, most=found.most, is_exact=found.is_exact)
