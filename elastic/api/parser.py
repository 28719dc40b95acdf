"""Parse an object from JSON or YAML into a Job: check types, apply defaults, then check the rules of elastic.api.rules.

Every mistake is collected with its path, and all are raised as one SpecError. No other exception is raised, whatever the object is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from elastic.api.errors import Path, Problem, SpecError, Warning, shown
from elastic.api.extent import crowds_out_its_status, excess
from elastic.api.job import ElasticPolicy, Job, JobStatus, KindOptions, Metadata, ReplicaSpec, RunPolicy
from elastic.api.kinds import API_VERSION, KINDS, Kind, as_owned
from elastic.api.names import COMPAT
from elastic.api.places import places_of
from elastic.api.pod_reader import check_schema
from elastic.api.pod_rules import check_pod
from elastic.api.pod_schema import METRIC, POD_TEMPLATE
from elastic.api.reader import MOST_PROBLEMS, Findings, TooMany, did_you_mean, key_in_path, one_of, read, shown_key
from elastic.api.rules import Draft, check
from elastic.api.words import CleanPodPolicy

T = TypeVar("T", bound=msgspec.Struct)
SPEC: Path = ("spec",)
_TOP = ("apiVersion", "kind", "metadata", "spec", "status")


def parse(obj: object, *, stored: bool = False) -> tuple[Job, list[Warning]]:
    """Return the job, and warnings for its author.

    A job that is not stored yet is refused if its replicas are outside minReplicas and maxReplicas. The replicas of a stored job are
    clamped instead, with a warning, so that a running job never turns invalid.
    """
    if (problem := excess(obj)) is not None:
        raise SpecError([problem])
    findings = Findings()
    try:
        draft = _read_job(obj, findings)
        job = check(draft, stored=stored, findings=findings) if draft is not None else None
        if not stored and isinstance(obj, dict) and (problem := crowds_out_its_status(obj)) is not None:
            findings.problem(problem.at, problem.message)
    except TooMany:
        more = Problem((), f"there are more than {MOST_PROBLEMS} problems, and the rest was not looked at; mend these first")
        raise SpecError([*findings.problems, more], findings.all_warnings(), is_whole=False) from None
    if findings.problems or job is None:
        raise SpecError(findings.problems, findings.all_warnings())
    return job, findings.all_warnings()


def kind_of(obj: object) -> Kind | None:
    """Return the kind of job that the object says it is, if it is one of ours."""
    if not isinstance(obj, dict) or obj.get("apiVersion") != API_VERSION or not isinstance(obj.get("kind"), str):
        return None
    kind = KINDS.get(obj["kind"])
    return None if kind is None else as_owned(kind, obj.get("metadata"))


def status_of(obj: Mapping[str, Any]) -> JobStatus:
    """Return the readable part of a job's status, whatever else is wrong with the job."""
    status = obj.get("status")
    return JobStatus() if excess(status) is not None else _read_status(status, Findings())


def _read_job(obj: object, findings: Findings) -> Draft | None:
    """Return the readable part of a job, with defaults for the rest, so that the rules can still check it."""
    if not isinstance(obj, dict):
        findings.problem((), f"this is {shown(obj)}; a job is an object with apiVersion, kind, metadata and spec")
        return None
    kind = _read_kind(obj, findings)
    if kind is None:
        return None
    findings.elsewhere = places_of(kind)
    for key in obj:
        if key not in _TOP:
            findings.unknown((), key, _TOP)
    metadata = _read_metadata(obj.get("metadata"), findings)
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        found = "spec is missing" if spec is None else f"spec is {shown(spec)}"
        findings.problem(SPEC, f"{found}; an object with {kind.replica_key} is needed")
        return None
    known = _known_fields(kind)
    for key in spec:
        if key not in known:
            findings.unknown(SPEC, key, known)
    run_policy = _read_run_policy(spec, kind, findings)
    elastic = _read_elastic(spec.get("elasticPolicy"), findings)
    options = _read_options(spec, kind, elastic, findings)
    replicas = _read_replicas(spec.get(kind.replica_key), kind, findings)
    job = Job(
        kind=kind,
        metadata=metadata,
        run_policy=run_policy,
        replicas={name: replicas[name].spec for name in kind.types if name in replicas},
        elastic=elastic,
        options=options,
        status=_read_status(obj.get("status"), findings),
    )
    return Draft(job=job, spelled={name: replica.word for name, replica in replicas.items()})


def _read_kind(obj: dict[Any, Any], findings: Findings) -> Kind | None:
    version, name = obj.get("apiVersion"), obj.get("kind")
    if version != API_VERSION:
        findings.problem(("apiVersion",), f"apiVersion is {shown(version)}; write {API_VERSION}")
    if not isinstance(name, str) or name not in KINDS:
        findings.problem(("kind",), f"kind is {shown(name)}; use {one_of(KINDS)}{did_you_mean(name, KINDS)}")
        return None
    return None if findings.problems else as_owned(KINDS[name], obj.get("metadata"))


def _read_metadata(value: object, findings: Findings) -> Metadata:
    """Read the fields of the metadata that a job needs. The other fields are the API server's."""
    if not isinstance(value, dict):
        findings.problem(("metadata",), f"metadata is {shown(value)}; an object with a name is needed")
        return Metadata()
    for key in value:
        if key not in _METADATA_FIELDS and key not in _SERVERS_METADATA:
            findings.unknown(("metadata",), key, _METADATA_FIELDS)
    known = {key: value[key] for key in _METADATA_FIELDS if value.get(key) is not None}
    metadata = read(known, Metadata, at=("metadata",), findings=findings) or Metadata()
    if COMPAT in metadata.annotations:
        findings.warning(("metadata", "annotations", COMPAT), "this annotation has no effect any more; remove it (docs/compat.md)")
    return metadata


_METADATA_FIELDS = tuple(field.encode_name for field in msgspec.structs.fields(Metadata))
_SERVERS_METADATA = ("deletionGracePeriodSeconds", "managedFields", "ownerReferences", "selfLink")
_OPTION_FIELDS = {field.name: field.encode_name for field in msgspec.structs.fields(KindOptions)}


def _known_fields(kind: Kind) -> tuple[str, ...]:
    return ("runPolicy", "elasticPolicy", kind.replica_key, *(_OPTION_FIELDS[name] for name in kind.options))


def _read_run_policy(spec: dict[Any, Any], kind: Kind, findings: Findings) -> RunPolicy:
    value = spec.get("runPolicy")
    if value is None:
        value = {}
    above = spec.get("cleanPodPolicy")
    if (
        "clean_pod_policy" in kind.options
        and above in _CLEAN_POD_POLICIES
        and isinstance(value, dict)
        and value.get("cleanPodPolicy") is None
    ):
        value = {**value, "cleanPodPolicy": above}
    policy = read(value, RunPolicy, at=(*SPEC, "runPolicy"), findings=findings) or RunPolicy()
    scheduling = policy.scheduling_policy
    if scheduling is not None and scheduling.min_resources:
        at = (*SPEC, "runPolicy", "schedulingPolicy", "minResources")
        check_schema({"limits": scheduling.min_resources}, "ResourceRequirements", at=at, findings=findings)
    return policy


_CLEAN_POD_POLICIES = tuple(policy.value for policy in CleanPodPolicy)


def _read_elastic(value: object, findings: Findings) -> ElasticPolicy | None:
    if value is None:
        return None
    at = (*SPEC, "elasticPolicy")
    elastic = read(value, ElasticPolicy, at=at, findings=findings) or ElasticPolicy()
    for i, metric in enumerate(elastic.metrics or ()):
        check_schema(metric, METRIC, at=(*at, "metrics", i), findings=findings)
    return elastic


def _read_options(spec: dict[Any, Any], kind: Kind, elastic: ElasticPolicy | None, findings: Findings) -> KindOptions:
    written = {key: spec[key] for name in kind.options if spec.get(key := _OPTION_FIELDS[name]) is not None}
    has_older = elastic is not None and elastic.n_proc_per_node is not None
    if "nproc_per_node" in kind.options and not has_older:
        written.setdefault("nprocPerNode", "auto")
    return read(written, KindOptions, at=SPEC, findings=findings) or KindOptions()


class _Replica(NamedTuple):
    word: str
    spec: ReplicaSpec


def _read_replicas(value: object, kind: Kind, findings: Findings) -> dict[str, _Replica]:
    """Read the replicas by canonical type, each with the word that the user wrote for it."""
    at = (*SPEC, kind.replica_key)
    if not isinstance(value, dict) or not value:
        found = "is missing" if value is None else "is empty" if value == {} else f"is {shown(value)}"
        findings.problem(at, f"{kind.replica_key} {found}; an object with {one_of(kind.types)} is needed")
        return {}
    replicas: dict[str, _Replica] = {}
    for word, item in value.items():
        name = kind.replica_type(word) if isinstance(word, str) else None
        if name is None:
            hint = did_you_mean(word, kind.types)
            message = f"{shown_key(word)} is no replica type of {kind.a_job}; use {one_of(kind.types)}{hint}"
            findings.problem((*at, key_in_path(word)), message)
        elif name in replicas:
            findings.problem((*at, word), f"{name} is there twice, in different case; keep one")
        else:
            if word != name:
                findings.warning(
                    (*at, word), f"{word} is taken as {name}; write {name}, the only word that kubectl scale and other tools know"
                )
            replica = _read_replica(item, kind, name, at=(*at, word), findings=findings)
            if replica is not None:
                replicas[name] = _Replica(word, replica)
    return replicas


def _read_replica(value: object, kind: Kind, name: str, *, at: Path, findings: Findings) -> ReplicaSpec | None:
    """Read a replica. Return None if nothing is readable. With a malformed template the rest can still be checked."""
    defaults = {"replicas": kind.default_replicas.get(name, 1), "restartPolicy": kind.restart_policy.value}
    if not isinstance(value, dict):
        return read(value, ReplicaSpec, at=at, findings=findings)
    written = defaults | {key: item for key, item in value.items() if item is not None}
    replica = read(written, ReplicaSpec, at=at, findings=findings) or _without_template(written)
    if not findings.blames((*at, "template")):
        check_schema(replica.template, POD_TEMPLATE, at=(*at, "template"), findings=findings)
    if not findings.blames((*at, "template")):
        check_pod(replica.template, at=(*at, "template"), findings=findings)
    return replica


def _without_template(written: dict[Any, Any]) -> ReplicaSpec:
    return _read_aside(written | {"template": {}}, ReplicaSpec, at=())[0] or ReplicaSpec(template={})


def _read_aside(value: object, cls: type[T], *, at: Path) -> tuple[T | None, Findings]:
    """Return the readable part, and what is wrong with it, which does not count as a problem of the job."""
    aside = Findings()
    with contextlib.suppress(TooMany):
        return read(value, cls, at=at, findings=aside), aside
    return None, aside


def _read_status(value: object, findings: Findings) -> JobStatus:
    """Return the readable part of the status. The rest is written again; it never stops a job."""
    if value is None:
        return JobStatus()
    try:
        return msgspec.convert(value, JobStatus)
    except (msgspec.ValidationError, OverflowError):
        pass
    kept = {}
    problems: list[Problem] = []
    for field in msgspec.structs.fields(JobStatus):
        if isinstance(value, dict) and value.get(field.encode_name) is not None:
            part, aside = _read_aside({field.encode_name: value[field.encode_name]}, JobStatus, at=("status",))
            problems += aside.problems
            if part is not None:
                kept[field.name] = getattr(part, field.name)
    if problems:
        findings.warning(problems[0].at, f"{problems[0].message}; this part of status is ignored")
    return JobStatus(**kept)
