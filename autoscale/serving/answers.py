"""Answer requests to the two metrics APIs: discovery documents, and values of metrics from the jobs' figures. Pure.

Discovery works without figures, because a group that cannot be discovered delays the deletion of every namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic.api.kinds import API_VERSION, GROUP, KINDS
from elastic.api.scaling import DESIRED
from elastic.kube.labels import Unreadable, predicate
from elastic_training.autoscale.deciding.cluster import PodSeen
from elastic_training.autoscale.figures import Figures, JobFigures, JobName
from elastic_training.autoscale.serving.tolerated import ToleratedSize
from elastic_training.autoscale.serving.values import NAMES, OF_WORKERS, Value, as_time, value

Object = dict[str, Any]
PODS = "pods"
CUSTOM, EXTERNAL = "custom.metrics.k8s.io", "external.metrics.k8s.io"
VERSIONS: Mapping[str, tuple[str, ...]] = {CUSTOM: ("v1beta2", "v1beta1"), EXTERNAL: ("v1beta1",)}
KIND, JOB, WHY = "kind", "job", "reason"
"""Labels of an external value. The selector of a metric chooses the job by `kind` and `job`."""
LONGEST_WHY = 256
Desired = Callable[[JobFigures], ToleratedSize]
"""Returns the value of `desired_workers` for a job whose wanted number of workers is known."""
Workers = Callable[[str], Iterable[PodSeen]]
"""Returns the workers of the job with this uid."""
Chosen = Callable[[Mapping[str, str]], bool]
"""Returns whether a selector matches these labels."""
OBJECTS, METRICS = "labelSelector", "metricLabelSelector"
"""Parameters of a query.

For custom metrics, `labelSelector` chooses objects by their labels if the request is for all objects (`*`). `metricLabelSelector`
chooses by the labels of the metric, but our metrics have no labels. For external metrics, `labelSelector` chooses by the metric's labels.
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for values."""

    group: str
    version: str
    namespace: str
    resource: str
    """Resource that the metric describes: pods, or a kind's plural with its group. Empty for external metrics."""
    name: str
    metric: str


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: Object


@dataclass(frozen=True, slots=True)
class Known:
    """The sources from which values are computed."""

    figures: Figures
    desired: Desired
    workers: Workers


@dataclass(frozen=True, slots=True)
class _Described:
    """An object with its value of the requested metric."""

    kind: str
    api_version: str
    name: str
    labels: Mapping[str, str]
    value: Value


def document(path: str) -> Reply | None:
    """Return the discovery document of this path. Return None if the path is not one of discovery."""
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
        return failed(503, "ServiceUnavailable", "the jobs have not been read yet; try again in a few seconds")
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
        return _not_found(f"{asked.metric} has no labels, but {METRICS} is {query[METRICS]!r}; leave {METRICS} out")
    elif found[0].value.text is None:
        return _not_found(f"{asked.metric} of {found[0].kind} {asked.namespace}/{asked.name} {found[0].value.words}")
    items = [_custom(asked, one, now) for one in found if one.value.text is not None]
    return Reply(200, {"kind": "MetricValueList", "apiVersion": f"{CUSTOM}/{asked.version}", "metadata": {}, "items": items})


def _of_jobs(asked: Asked, known: Known) -> list[_Described] | Reply:
    """Return the value of the named job, or of all jobs if the name is `*`."""
    kind = next((kind.name for kind in KINDS.values() if asked.resource == f"{kind.plural}.{GROUP}"), "")
    if not kind:
        return _not_found(
            f"there are no metrics for {asked.resource}; only jobs (such as pytorchjobs.{GROUP}) and their {PODS} have metrics"
        )
    if asked.name == "*":
        jobs = [job for job in known.figures.jobs(asked.namespace) if job.key.kind == kind]
    else:
        job = known.figures.of(JobName(kind, asked.namespace, asked.name))
        if job is None:
            words = f"{kind} {asked.namespace}/{asked.name} does not exist, has no scalingPolicy, or has no figures yet"
            return _not_found(words)
        jobs = [job]
    return [_Described(kind, API_VERSION, job.key.name, job.labels, _value(asked.metric, job, known.desired)) for job in jobs]


def _of_workers(asked: Asked, known: Known) -> list[_Described] | Reply:
    """Return the values of the named worker, or of all running workers if the name is `*`.

    The throughput of a single worker is unknown, so each worker gets an equal part of its job's throughput.
    """
    if (name := OF_WORKERS.get(asked.metric)) is None:
        words = f"{asked.metric} is a metric of jobs, not of {PODS}; use a metric of type Object or External, or {', '.join(OF_WORKERS)}"
        return _not_found(words)
    found = [
        _Described("Pod", "v1", pod.key[1], pod.labels, value(name, job))
        for job in known.figures.jobs(asked.namespace)
        for pod in known.workers(job.uid)
        if pod.key[0] == asked.namespace and asked.name in ("*", pod.key[1]) and pod.is_running and not pod.is_leaving
    ]
    if asked.name != "*" and not found:
        return _not_found(f"pod {asked.namespace}/{asked.name} is not a running worker of a job with a scalingPolicy")
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
    """Return a value as the API shows it. Limit its time to `now`, because the clock that measured it may be ahead of ours."""
    return {"timestamp": as_time(min(found.measured_at or now, now)), "value": found.text}


def _not_found(message: str) -> Reply:
    return failed(404, "NotFound", message)


def failed(code: int, reason: str, message: str) -> Reply:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code}
    return Reply(code, body)
