"""Decides what taking MPIJobs over from the MPI Operator (v2beta1) changes, and giving back. Pure, as plan.py.

Both kinds have one name and a cluster one of them, so the old definition goes with all its jobs. Before, all are kept in a file; those that
are suspended are made anew, as ours over ssh. One that runs is an obstacle: its launcher is a Job that only the MPI Operator looks after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.api.counting import counted
from elastic.api.errors import SpecError
from elastic.api.kinds import API_VERSION, GROUP, KINDS
from elastic.api.parser import parse
from elastic.cli.adopting import plan
from elastic.cli.adopting.plan import Apply, Change, Create, DeleteDefinition
from elastic.kube.resources import Object

MPI = KINDS["MPIJob"]
THEIRS = f"{GROUP}/v2beta1"
OPERATOR_LABEL = "app=mpi-operator"
OWN_MANAGER = f"{GROUP}/mpi-operator"
ONCE_CALLED = {"waitForWorkers": ("launcherCreationPolicy", "WaitForWorkersReady")}
"""A field of early releases of v2beta1, and what it is called since."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is in the cluster."""

    operators: Sequence[Object]
    definition: Object
    jobs: Sequence[Object]
    """Of v2beta1."""


@dataclass(frozen=True, slots=True)
class Now:
    """What is in the cluster when a take-over goes on."""

    operators: Sequence[Object]
    definition: Object | None
    """Of MPIJobs, of any version."""
    jobs: Sequence[Object]
    """Of v2beta1."""
    made: Sequence[Object]
    """Of ours."""


def is_going(definition: Object) -> bool:
    return "deletionTimestamp" in definition["metadata"]


def _uid(one: Object) -> str:
    return str(one["metadata"].get("uid") or "")


def is_theirs(definition: Object) -> bool:
    return bool(definition["metadata"]["name"] == MPI.crd_name and plan.stores(definition, "v2beta1"))


def obstacles(seen: Seen) -> Iterator[str]:
    for job in seen.jobs:
        if not (is_over(job) or is_suspended(job)):
            namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
            patch = '{"spec": {"runPolicy": {"suspend": true}}}'
            yield (
                f"MPIJob {namespace}/{name} is not over, and only the MPI Operator looks after its launcher; "
                f"wait for its end, or suspend it: kubectl -n {namespace} patch mpijobs.v2beta1.{GROUP} {name} --type merge -p '{patch}'"
            )


def takeover(seen: Seen, ours: Sequence[Object], *, file: str) -> Iterator[Change]:
    """ours: all definitions to apply."""
    yield from _stopped(seen.operators)
    yield _deletion(seen.jobs, file)
    yield _applied(ours)
    yield from (_made_anew(job, file) for job in seen.jobs if not is_over(job))


def resumed(now: Now, kept: Object, ours: Sequence[Object], *, file: str) -> Iterator[Change]:
    """What is left of a take-over that was broken off: its jobs are in the cluster, in the file, or made anew already."""
    yield from _stopped(now.operators)
    if now.definition is not None and is_theirs(now.definition):
        yield _deletion(now.jobs, file)
    yield _applied(ours)
    there = {_key(job) for job in now.made}
    yield from (_made_anew(job, file) for job in kept["jobs"] if _key(job) in kept["waiting"] and _key(job) not in there)


def not_resumed(now: Now, kept: Object, *, file: str) -> str | None:
    """Why a take-over cannot go on with this file."""
    definition = now.definition
    if definition is None or not is_theirs(definition):
        return None
    anew = f"`elastic adopt --back {file}` starts the operator that it keeps; to begin anew, name another file with --save"
    if _uid(definition) != kept["definition"]:
        return f"{file} is there already, and keeps another definition {MPI.crd_name} than the one that is in this cluster; {anew}"
    before = {_key(job): job["spec"] for job in kept["jobs"]}
    after = before if is_going(definition) else {_key(job): job["spec"] for job in now.jobs}
    if others := sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)):
        return f"MPIJob {', '.join(others[:10])} came, went or changed since {file} was written; {anew}"
    return None


def _stopped(operators: Sequence[Object]) -> Iterator[Change]:
    return (plan.scaled(one, 0, f"stop {plan.titled(one)}") for one in operators if plan.replicas(one))


def _deletion(jobs: Sequence[Object], file: str) -> Change:
    words = f"delete the definition {MPI.crd_name} (v2beta1) with its {counted(len(jobs), 'job')}, kept in {file}"
    otherwise = f"`elastic adopt --back {file}` starts the operator again; then begin anew, with another --save file"
    return DeleteDefinition(words, MPI.crd_name, THEIRS, frozenset(map(plan.identity, jobs)), otherwise)


def _applied(ours: Sequence[Object]) -> Change:
    return Apply(f"apply our {len(ours)} definitions of kinds ({GROUP}); stored jobs of other kinds stay", tuple(ours))


def _made_anew(job: Object, file: str) -> Change:
    where = f"MPIJob {_key(job)}"
    made = converted(job)
    try:
        parse(made)
    except SpecError as error:
        return Change(f"leave {where} in {file} alone: {error.problems[0]}")
    return Create(f"make {where} anew, suspended: {API_VERSION} over ssh", made)


def converted(job: Object) -> Object:
    """As a job of ours: the fields have one meaning, but that ours start over ssh only where they say so."""
    spec = dict(job["spec"])
    for old, (new, value) in ONCE_CALLED.items():
        if spec.pop(old, None):
            spec.setdefault(new, value)
    policy = dict(spec.get("runPolicy") or {})
    if policy.get("managedBy") == OWN_MANAGER:
        del policy["managedBy"]
    if policy:
        spec["runPolicy"] = policy
    return {"apiVersion": API_VERSION, "kind": MPI.name, "metadata": bare_metadata(job), "spec": {"mpiTransport": "SSH", **spec}}


def saved(seen: Seen) -> Object:
    """What giving back needs."""
    jobs = [{"apiVersion": THEIRS, "kind": MPI.name, "metadata": bare_metadata(job), "spec": job["spec"]} for job in seen.jobs]
    kept = {"operators": [plan.kept_operator(one) for one in seen.operators], "objects": [plan.bare(seen.definition)]}
    waiting = [_key(job) for job in seen.jobs if not is_over(job)]
    return {**kept, "jobs": jobs, "waiting": waiting, "definition": _uid(seen.definition)}


def return_obstacles(kept: Object, jobs: Sequence[Object]) -> Iterator[str]:
    """jobs: MPIJobs of ours."""
    for job in jobs:
        if is_over(job):
            continue
        if not is_suspended(job):
            yield f"MPIJob {_key(job)} is not over, and would be deleted with the definition; wait until it is, or `elastic suspend` it"
        elif _key(job) not in kept["waiting"]:
            yield f"MPIJob {_key(job)} is suspended, not in the file, and would be lost with the definition; keep its YAML and delete it"


def return_(kept: Object, ours: Sequence[Object], jobs: Sequence[Object], definition: Object | None) -> Iterator[Change]:
    """ours: the deployments of our controllers; jobs: MPIJobs of ours; definition: that of MPIJobs now.

    Theirs stays, with its jobs, unless it is going: the take-over did not come so far, or all has been given back before.
    """
    rest = list(plan.return_(kept, ours))
    at = next(index for index, change in enumerate(rest) if isinstance(change, Apply))
    waiting = [job for job in kept["jobs"] if _key(job) in kept["waiting"]]
    yield from rest[:at]
    if definition is None or not is_theirs(definition) or is_going(definition):
        words = f"delete the definition {MPI.crd_name} (v1) with its {counted(len(jobs), 'job')}"
        yield DeleteDefinition(words, MPI.crd_name, API_VERSION, frozenset(map(plan.identity, jobs)), "type the command again")
    yield rest[at]
    yield from (Create(f"make MPIJob {_key(job)} anew, as it was: suspended", job) for job in waiting)
    yield from rest[at + 1 :]


def is_over(job: Object) -> bool:
    return any(one["type"] in ("Succeeded", "Failed") and one["status"] == "True" for one in _status(job).get("conditions") or ())


def is_suspended(job: Object) -> bool:
    """And nothing of it runs any more."""
    asked = (job["spec"].get("runPolicy") or {}).get("suspend") is True
    return asked and not any((one or {}).get("active") for one in (_status(job).get("replicaStatuses") or {}).values())


def _status(job: Object) -> dict[str, Any]:
    return job.get("status") or {}


def _key(job: Object) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"


def bare_metadata(job: Object) -> dict[str, Any]:
    return {key: value for key, value in job["metadata"].items() if key in ("name", "namespace", "labels", "annotations")}
