"""Answer a path of the two metrics APIs from jobs' figures: documents for discovery, and values.

Discovery needs no figures, because a group that cannot be discovered delays the deletion of every namespace. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autoscale.deciding.cluster import PodSeen
from autoscale.figures import Figures, JobFigures, JobName
from autoscale.serving.tolerated import ToleratedSize
from autoscale.serving.values import NAMES, OF_WORKERS, Value, as_time, value
from elastic.api.kinds import API_VERSION, GROUP, KINDS
from elastic.api.scaling import DESIRED
from elastic.kube.labels import Unreadable, predicate

Object = dict[str, Any]
PODS = "pods"
CUSTOM, EXTERNAL = "custom.metrics.k8s.io", "external.metrics.k8s.io"
VERSIONS: Mapping[str, tuple[str, ...]] = {CUSTOM: ("v1beta2", "v1beta1"), EXTERNAL: ("v1beta1",)}
KIND, JOB, WHY = "kind", "job", "reason"
"""Labels of an external value: a metric's selector chooses the job by the first two."""
LONGEST_WHY = 256
Desired = Callable[[JobFigures], ToleratedSize]
Workers = Callable[[str], Iterable[PodSeen]]
"""Returns the workers of the job with this uid."""
Chosen = Callable[[Mapping[str, str]], bool]
"""Chooses by labels."""
OBJECTS, METRICS = "labelSelector", "metricLabelSelector"
"""Parts of a query. For custom metrics, the first chooses objects by their labels, for `*` only, and the second chooses by the labels of
the metric, of which ours have none. For external metrics, the first chooses by the labels of the metric.
"""
"""What `desired_workers` answers for a job that wants a number."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for values."""

    group: str
    version: str
    namespace: str
    resource: str
    """Resource of the value: a plural with its group; empty for external metrics."""
    name: str
    metric: str


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: Object


@dataclass(frozen=True, slots=True)
class Known:
    """The sources of values."""

    figures: Figures
    desired: Desired
    workers: Workers


@dataclass(frozen=True, slots=True)
class _Described:
    """An object, and its value of the metric that is asked for."""

    kind: str
    api_version: str
    name: str
    labels: Mapping[str, str]
    value: Value


def document(path: str) -> Reply | None:
    """Return an answer for discovery; None for a path that asks for values."""
    match path.strip("/").split("/"):
        case ["apis"]:
            groups = [_group(group) for group in VERSIONS]
            return Reply(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        case ["apis", group] if group in VERSIONS:
            return Reply(200, {"kind": "APIGroup", "apiVersion": "v1", **_group(group)})
        case ["apis", group, version] if version in VERSIONS.get(group, ()):
            made = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{group}/{version}"}
            return Reply(200, made | {"resources": _resources(group)})
    return None


def _group(group: str) -> Object:
    versions = [{"groupVersion": f"{group}/{version}", "version": version} for version in VERSIONS[group]]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str) -> list[Object]:
    def entry(name: str, kind: str) -> Object:
        return {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}

    if group == EXTERNAL:
        return [entry(name, "ExternalMetricValueList") for name in NAMES]
    of_jobs = [entry(f"{kind.plural}.{GROUP}/{name}", "MetricValueList") for kind in KINDS.values() for name in NAMES]
    return [*of_jobs, *(entry(f"{PODS}/{name}", "MetricValueList") for name in OF_WORKERS)]


def parsed(path: str) -> Asked | None:
    match path.strip("/").split("/"):
        case ["apis", group, version, "namespaces", namespace, metric] if group == EXTERNAL and version in VERSIONS[EXTERNAL]:
            return Asked(group, version, namespace, "", "", metric)
        case ["apis", group, version, "namespaces", namespace, resource, name, metric] if group == CUSTOM and version in VERSIONS[CUSTOM]:
            return Asked(group, version, namespace, resource, name, metric)
    return None


def values(asked: Asked, query: Mapping[str, str], known: Known, *, now: float) -> Reply:
    if asked.metric not in NAMES:
        return _not_found(f"there is no metric {asked.metric}; the metrics are {', '.join(NAMES)}")
    if not known.figures.is_known:
        return failed(503, "ServiceUnavailable", "the jobs have not been seen yet; ask again in a moment")
    try:
        chosen, of_metrics = _selector(query, OBJECTS), _selector(query, METRICS)
    except Unreadable as error:
        return failed(400, "BadRequest", str(error))
    if asked.group == EXTERNAL:
        items = _external(asked, known.figures.jobs(asked.namespace), chosen, known.desired, now)
        return Reply(200, {"kind": "ExternalMetricValueList", "apiVersion": f"{EXTERNAL}/v1beta1", "metadata": {}, "items": items})
    found = _of_workers(asked, known) if asked.resource == PODS else _of_jobs(asked, known)
    if isinstance(found, Reply):
        return found
    if asked.name == "*":
        found = [one for one in found if chosen(one.labels)] if of_metrics({}) else []
    elif not of_metrics({}):
        return _not_found(f"{asked.metric} has no labels, which {METRICS} {query[METRICS]!r} asks for; leave it out")
    elif found[0].value.text is None:
        return _not_found(f"{asked.metric} of {found[0].kind} {asked.namespace}/{asked.name} {found[0].value.words}")
    items = [_custom(asked, one, now) for one in found if one.value.text is not None]
    return Reply(200, {"kind": "MetricValueList", "apiVersion": f"{CUSTOM}/{asked.version}", "metadata": {}, "items": items})


def _of_jobs(asked: Asked, known: Known) -> list[_Described] | Reply:
    """Return the named job, or all."""
    kind = next((kind.name for kind in KINDS.values() if asked.resource == f"{kind.plural}.{GROUP}"), "")
    if not kind:
        return _not_found(f"there are no metrics of {asked.resource}; they are of jobs, such as pytorchjobs.{GROUP}, and of their {PODS}")
    if asked.name == "*":
        jobs = [job for job in known.figures.jobs(asked.namespace) if job.key.kind == kind]
    else:
        job = known.figures.of(JobName(kind, asked.namespace, asked.name))
        if job is None:
            words = f"{kind} {asked.namespace}/{asked.name} is no job with a scalingPolicy, or nothing is known of it yet"
            return _not_found(words)
        jobs = [job]
    return [_Described(kind, API_VERSION, job.key.name, job.labels, _value(asked.metric, job, known.desired)) for job in jobs]


def _of_workers(asked: Asked, known: Known) -> list[_Described] | Reply:
    """Return the running workers of all jobs, or the named one. The work of a single one is unknown: each has its part."""
    if (name := OF_WORKERS.get(asked.metric)) is None:
        words = f"{asked.metric} is of a job and not of its {PODS}; use a metric of type Object or External, or {', '.join(OF_WORKERS)}"
        return _not_found(words)
    found = [
        _Described("Pod", "v1", pod.key[1], pod.labels, value(name, job))
        for job in known.figures.jobs(asked.namespace)
        for pod in known.workers(job.uid)
        if pod.key[0] == asked.namespace and asked.name in ("*", pod.key[1]) and pod.is_running and not pod.is_leaving
    ]
    if asked.name != "*" and not found:
        return _not_found(f"pod {asked.namespace}/{asked.name} is no running worker of a job with a scalingPolicy")
    return found


def _selector(query: Mapping[str, str], name: str) -> Chosen:
    try:
        return predicate(query.get(name, ""))
    except Unreadable as error:
        raise Unreadable(f"{name}: {error}") from error


def _value(metric: str, job: JobFigures, desired: Desired) -> Value:
    if metric == DESIRED and job.wanted is not None:
        answer = desired(job)
        return Value(str(answer.workers), answer.words)
    return value(metric, job)


def _external(asked: Asked, jobs: Iterable[JobFigures], chosen: Chosen, desired: Desired, now: float) -> list[Object]:
    items = []
    for job in jobs:
        labels = {KIND: job.key.kind, JOB: job.key.name}
        if chosen(labels) and (found := _value(asked.metric, job, desired)).text is not None:
            told = labels | ({WHY: found.words[:LONGEST_WHY]} if found.words else {})
            items.append({"metricName": asked.metric, "metricLabels": told, **_told(found, now)})
    return items


def _custom(asked: Asked, one: _Described, now: float) -> Object:
    described = {"kind": one.kind, "namespace": asked.namespace, "name": one.name, "apiVersion": one.api_version}
    item: Object = {"describedObject": described, **_told(one.value, now)}
    return item | ({"metric": {"name": asked.metric}} if asked.version == "v1beta2" else {"metricName": asked.metric})


def _told(found: Value, now: float) -> Object:
    """Return a value as the API shows it. A clock may have been ahead of ours."""
    return {"timestamp": as_time(min(found.measured_at or now, now)), "value": found.text}


def _not_found(message: str) -> Reply:
    return failed(404, "NotFound", message)


def failed(code: int, reason: str, message: str) -> Reply:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code}
    return Reply(code, body)
