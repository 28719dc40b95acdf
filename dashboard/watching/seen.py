"""Reduce jobs, pods, nodes and Events to what the dashboard shows.

Pure. An object that a user wrote may lack any field or have any value, so texts are cut and lists are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.api.book import Disruption
from elastic.api.counting import continued
from elastic.api.kinds import KINDS, WORKER, Kind, as_owned
from elastic.api.names import JOB_NAME, OPERATOR_NAME, REPLICA_INDEX, REPLICA_TYPE
from elastic.api.owners import owners_of
from elastic.api.words import GPU
from elastic.client.summary import Summary, budget_used, conditions_of, is_number, pod_restarts, pod_state, ranks, summary
from elastic.kube.placement import requests
from elastic.kube.resources import Object
from elastic.signals.seen import Sight, on_node, on_pod
from elastic.signals.signal import DisruptionSignal, Meaning
from elastic_training.autoscale.figures import JobName
from elastic_training.autoscale.watching.projections import GROUPS, SPOT

KIND_OF_OPERATOR = {kind.operator_name: kind.name for kind in KINDS.values()}
LONGEST_TEXT = 1024
LONGEST_END = 300
MOST_CONDITIONS, MOST_PHASES, MOST_CAUSES, MOST_NOTICES = 16, 16, 16, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleSeen:
    """One change of a job's group."""

    id: str
    at: str
    cause: str
    reason: str
    from_size: int
    to_size: int
    phases: Mapping[str, int]
    """Milliseconds."""
    steps: str = ""
    """At which step training went on, in words."""
    began_unseen: bool = False
    """Training stood still for longer than the phases say."""
    rung: str = ""
    """How the processes came into the group."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The cluster announced that a node or a pod goes."""

    signal: str
    meaning: str
    words: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class ConditionSeen:
    type: str
    status: str
    message: str
    since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    key: JobName
    uid: str
    summary: Summary
    generation: int | None
    rank_of_index: Mapping[int, int]
    rescale: RescaleSeen | None
    conditions: tuple[ConditionSeen, ...]
    disruptions: tuple[Disruption, ...]
    leaving: Mapping[str, str]
    """The reason why each member was asked to leave."""
    is_suspended: bool
    restarts_charged: tuple[int, int] | None
    """How many, and how many are allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    key: tuple[str, str]
    uid: str
    owners: tuple[str, ...]
    job: JobName | None
    type: str
    index: int
    fixed_rank: int | None
    node: str
    state: str
    restarts: int
    created: str
    container: str
    notices: tuple[Notice, ...]
    is_over: bool = False
    """The pod has ended, and its node has room for others."""
    ended: str = ""
    """How its container ended, if it failed."""
    cpus: float = 0.0
    memory: int = 0
    """Bytes."""
    gpus: int = 0
    """CPUs, memory and GPUs that the pod reserves on its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    name: str
    uid: str
    is_ready: bool
    is_cordoned: bool
    is_spot: bool
    group: str
    capacity: Mapping[str, str]
    created: str
    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSeen:
    about: tuple[str, str, str]
    """Kind, namespace and name of the object."""
    uid: str
    """The uid of the object."""
    type: str
    reason: str
    message: str
    count: int
    at: str


def job_seen(kind: Kind, raw: Object) -> JobSeen:
    metadata = raw["metadata"]
    told = summary(as_owned(kind, metadata), raw)
    elastic = _dict(_dict(raw.get("status")).get("elastic"))
    policy = _dict(_dict(raw.get("spec")).get("runPolicy"))
    return JobSeen(
        key=JobName(kind.name, told.namespace, told.name),
        uid=str(metadata.get("uid", "")),
        summary=told,
        generation=_number(elastic.get("generation")),
        rank_of_index={index: rank for rank, index in ranks(raw).items()},
        rescale=_rescale(told.rescale),
        conditions=tuple(_condition(found) for found in conditions_of(raw)[-MOST_CONDITIONS:]),
        disruptions=tuple(told.disruptions),
        leaving={_text(found.get("member")): _text(found.get("cause")) for found in _list(elastic.get("leaving"))},
        is_suspended=policy.get("suspend") is True,
        restarts_charged=budget_used(told.restarts, _dict(raw.get("spec")).get("elasticPolicy")),
    )


def _rescale(raw: Mapping[str, Any]) -> RescaleSeen | None:
    if not raw:
        return None
    phases = {_text(name, 64): ms for name, ms in list(_dict(raw.get("phases")).items())[:MOST_PHASES] if _number(ms) is not None}
    return RescaleSeen(
        id=_text(raw.get("id")) or _text(raw.get("at")),
        at=_text(raw.get("at"), 64),
        cause=_text(raw.get("cause"), 64),
        reason=_text(raw.get("reason")),
        from_size=_number(raw.get("fromSize")) or 0,
        to_size=_number(raw.get("toSize")) or 0,
        phases=phases,
        steps=continued(_number(raw.get("stepBefore")), _number(raw.get("stepAfter")), state_lost=raw.get("stateLost") is True),
        began_unseen=raw.get("beganUnseen") is True,
        rung=_text(raw.get("rung"), 64),
    )


def _condition(raw: Mapping[str, Any]) -> ConditionSeen:
    return ConditionSeen(
        _text(raw.get("type"), 64), _text(raw.get("status"), 16), _text(raw.get("message")), _text(raw.get("lastTransitionTime"), 64)
    )


def pod_seen(table: Sequence[DisruptionSignal], raw: Object) -> PodSeen:
    metadata, spec = raw["metadata"], _dict(raw.get("spec"))
    labels = _dict(metadata.get("labels"))
    kind, job, index = KIND_OF_OPERATOR.get(str(labels.get(OPERATOR_NAME, ""))), labels.get(JOB_NAME), str(labels.get(REPLICA_INDEX, ""))
    namespace, asked = str(metadata.get("namespace", "")), requests(raw)
    return PodSeen(
        key=(namespace, str(metadata["name"])),
        uid=str(metadata.get("uid", "")),
        owners=tuple(owner.uid for owner in owners_of(metadata)[:4]),
        job=JobName(kind, namespace, str(job)) if kind and job else None,
        type=_text(labels.get(REPLICA_TYPE), 64),
        index=int(index) if is_number(index) else -1,
        fixed_rank=_fixed_rank(spec),
        node=_text(spec.get("nodeName"), 253),
        state=_text(pod_state(raw), 64),
        restarts=pod_restarts(raw),
        created=_text(metadata.get("creationTimestamp"), 64),
        container=_container(spec, KINDS[kind] if kind else None),
        notices=_notices(sight for sight in on_pod(table, raw) if sight.signal.meaning is not Meaning.INFORM),
        is_over=_dict(raw.get("status")).get("phase") in ("Succeeded", "Failed"),
        ended=_ended(_dict(raw.get("status"))),
        cpus=float(asked.get("cpu", 0)),
        memory=int(asked.get("memory", 0)),
        gpus=int(asked.get(GPU, 0)),
    )


def _ended(status: Mapping[str, Any]) -> str:
    """Return the exit code of a container that failed, and the first line of its message."""
    for container in _list(status.get("containerStatuses")):
        ended = _dict(_dict(container.get("state")).get("terminated")) or _dict(_dict(container.get("lastState")).get("terminated"))
        code = _number(ended.get("exitCode"))
        if code:
            first = next(iter(_text(ended.get("message")).splitlines()), "")
            return _text(f"exit code {code}{': ' * bool(first)}{first}", LONGEST_END)
    return ""


def _fixed_rank(spec: Mapping[str, Any]) -> int | None:
    for container in _list(spec.get("containers"))[:8]:
        for entry in _list(container.get("env"))[:256]:
            value = str(entry.get("value", ""))
            if entry.get("name") == "RANK" and is_number(value):
                return int(value)
    return None


def _container(spec: Mapping[str, Any], kind: Kind | None) -> str:
    """Return the container that trains, as `default_container` has it."""
    names = [_text(found.get("name"), 253) for found in _list(spec.get("containers"))]
    return kind.container if kind is not None and kind.container in names else next(iter(names), "")


def node_seen(table: Sequence[DisruptionSignal], raw: Object) -> NodeSeen:
    metadata, spec, status = raw["metadata"], _dict(raw.get("spec")), _dict(raw.get("status"))
    labels, offers = _dict(metadata.get("labels")), _dict(status.get("allocatable"))
    conditions = {str(found.get("type")): found.get("status") for found in _list(status.get("conditions"))}
    return NodeSeen(
        name=str(metadata["name"]),
        uid=str(metadata.get("uid", "")),
        is_ready=conditions.get("Ready") == "True",
        is_cordoned=spec.get("unschedulable") is True,
        is_spot=any(labels.get(name) == value for name, value in SPOT.items()),
        group=_text(next((labels[name] for name in GROUPS if labels.get(name)), ""), 64),
        capacity={name: _text(offers[name], 32) for name in ("cpu", "memory", GPU) if name in offers},
        created=_text(metadata.get("creationTimestamp"), 64),
        notices=_notices(on_node(table, raw)),
    )


def event_seen(raw: Object) -> EventSeen:
    about = _dict(raw.get("involvedObject"))
    series = _dict(raw.get("series"))
    at = raw.get("lastTimestamp") or series.get("lastObservedTime") or raw.get("eventTime") or raw["metadata"].get("creationTimestamp")
    return EventSeen(
        about=(_text(about.get("kind"), 64), _text(about.get("namespace"), 253), _text(about.get("name"), 253)),
        uid=_text(about.get("uid"), 253),
        type=_text(raw.get("type"), 64),
        reason=_text(raw.get("reason"), 128),
        message=_text(raw.get("message")),
        count=_number(raw.get("count")) or _number(series.get("count")) or 1,
        at=_text(at, 64),
    )


def is_worker(pod: PodSeen) -> bool:
    return pod.type == WORKER.lower()


def _notices(sights: Iterable[Sight]) -> tuple[Notice, ...]:
    found = [
        Notice(sight.signal.name, sight.signal.meaning.value, _text(sight.words), sight.by.isoformat() if sight.by is not None else "")
        for sight in sights
    ]
    return tuple(found[:MOST_NOTICES])


def _text(value: object, longest: int = LONGEST_TEXT) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
