"""What the two metrics APIs answer to a path, from jobs' figures: documents for discovery, and values. Discovery needs no figures, for
a group that cannot be discovered holds up the deletion of every namespace. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from autoscale.figures import Figures, JobFigures, JobKey
from autoscale.serving.tolerated import Answer
from autoscale.serving.values import NAMES, value
from elastic.api.kinds import API_VERSION, GROUP, KINDS
from elastic.api.scaling import DESIRED
from elastic.kube.labels import Unreadable, predicate

Object = dict[str, Any]
CUSTOM, EXTERNAL = "custom.metrics.k8s.io", "external.metrics.k8s.io"
VERSIONS: Mapping[str, tuple[str, ...]] = {CUSTOM: ("v1beta2", "v1beta1"), EXTERNAL: ("v1beta1",)}
KIND, JOB, WHY = "kind", "job", "reason"
"""Labels of an external value: a metric's selector chooses the job by the first two."""
LONGEST_WHY = 256
Desired = Callable[[JobFigures], Answer]
Chosen = Callable[[Mapping[str, str]], bool]
"""By labels."""
OBJECTS, METRICS = "labelSelector", "metricLabelSelector"
"""Parts of a query. Of custom metrics the first chooses objects by their labels, of `*` only, and the second is by the labels of the
metric, of which ours have none. Of external metrics the first is by the labels of the metric.
"""
"""What `desired_workers` answers for a job that wants a number."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for values."""

    group: str
    version: str
    namespace: str
    resource: str
    """For what: a plural with its group; empty for external metrics."""
    name: str
    metric: str


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: Object


def document(path: str) -> Reply | None:
    """An answer for discovery; None for what asks for values."""
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
    return [entry(f"{kind.plural}.{GROUP}/{name}", "MetricValueList") for kind in KINDS.values() for name in NAMES]


def parsed(path: str) -> Asked | None:
    match path.strip("/").split("/"):
        case ["apis", group, version, "namespaces", namespace, metric] if group == EXTERNAL and version in VERSIONS[EXTERNAL]:
            return Asked(group, version, namespace, "", "", metric)
        case ["apis", group, version, "namespaces", namespace, resource, name, metric] if group == CUSTOM and version in VERSIONS[CUSTOM]:
            return Asked(group, version, namespace, resource, name, metric)
    return None


def values(asked: Asked, query: Mapping[str, str], figures: Figures, desired: Desired, *, now: float) -> Reply:
    if asked.metric not in NAMES:
        return failed(404, "NotFound", f"there is no metric {asked.metric}; the metrics are {', '.join(NAMES)}")
    if not figures.is_known:
        return failed(503, "ServiceUnavailable", "the jobs have not been seen yet; ask again in a moment")
    at = datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        chosen, of_metrics = _selector(query, OBJECTS), _selector(query, METRICS)
    except Unreadable as error:
        return failed(400, "BadRequest", str(error))
    if asked.group == EXTERNAL:
        items = _external(asked, figures.jobs(asked.namespace), chosen, desired, at)
        return Reply(200, {"kind": "ExternalMetricValueList", "apiVersion": f"{EXTERNAL}/v1beta1", "metadata": {}, "items": items})
    kind = next((kind.name for kind in KINDS.values() if asked.resource == f"{kind.plural}.{GROUP}"), "")
    if not kind:
        return failed(404, "NotFound", f"there are no metrics of {asked.resource}; they are of jobs, such as pytorchjobs.{GROUP}")
    if asked.name == "*":
        found = [job for job in figures.jobs(asked.namespace) if job.key.kind == kind and chosen(job.labels)] if of_metrics({}) else []
        return _customs(asked, found, desired, at)
    job = figures.of(JobKey(kind, asked.namespace, asked.name))
    if job is None:
        words = f"{kind} {asked.namespace}/{asked.name} is no job with a scalingPolicy, or nothing is known of it yet"
        return failed(404, "NotFound", words)
    if not of_metrics({}):
        words = f"{asked.metric} has no labels, which {METRICS} {query[METRICS]!r} asks for; leave it out"
        return failed(404, "NotFound", words)
    reply = _customs(asked, [job], desired, at)
    if not reply.body["items"]:
        return failed(404, "NotFound", f"{asked.metric} of {kind} {asked.namespace}/{asked.name} is not known yet")
    return reply


def _selector(query: Mapping[str, str], name: str) -> Chosen:
    try:
        return predicate(query.get(name, ""))
    except Unreadable as error:
        raise Unreadable(f"{name}: {error}") from error


def _text(metric: str, job: JobFigures, desired: Desired) -> tuple[str | None, str]:
    """The value, and why it is not the plain one."""
    if metric == DESIRED and job.wanted is not None:
        answer = desired(job)
        return str(answer.workers), answer.words
    return value(metric, job), ""


def _external(asked: Asked, jobs: Iterable[JobFigures], chosen: Chosen, desired: Desired, at: str) -> list[Object]:
    items = []
    for job in jobs:
        labels = {KIND: job.key.kind, JOB: job.key.name}
        text, words = _text(asked.metric, job, desired) if chosen(labels) else (None, "")
        if text is not None:
            told = labels | ({WHY: words[:LONGEST_WHY]} if words else {})
            items.append({"metricName": asked.metric, "metricLabels": told, "timestamp": at, "value": text})
    return items


def _customs(asked: Asked, jobs: Iterable[JobFigures], desired: Desired, at: str) -> Reply:
    items = [_custom(asked, job, text, at) for job in jobs if (text := _text(asked.metric, job, desired)[0]) is not None]
    return Reply(200, {"kind": "MetricValueList", "apiVersion": f"{CUSTOM}/{asked.version}", "metadata": {}, "items": items})


def _custom(asked: Asked, job: JobFigures, text: str, at: str) -> Object:
    described = {"kind": job.key.kind, "namespace": job.key.namespace, "name": job.key.name, "apiVersion": API_VERSION}
    item: Object = {"describedObject": described, "timestamp": at, "value": text}
    return item | ({"metric": {"name": asked.metric}} if asked.version == "v1beta2" else {"metricName": asked.metric})


def failed(code: int, reason: str, message: str) -> Reply:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code}
    return Reply(code, body)
