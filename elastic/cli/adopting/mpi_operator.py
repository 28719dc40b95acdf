"""Decide what changes when MPIJobs are taken over from the MPI Operator (v2beta1), and when they are given back. Pure, like plan.py.

Both kinds have the same name, and a cluster can have only one of them, so the old definition is deleted with all its jobs. All jobs are
saved in a file first. Suspended jobs are then created again as our kind, over ssh. A running job is an obstacle, because only the MPI
Operator looks after the Job that is its launcher.
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
"""Fields of early releases of v2beta1, and the field and value that replaced each."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Objects of the cluster before a take-over."""

    operators: Sequence[Object]
    definition: Object
    jobs: Sequence[Object]
    """MPIJobs of v2beta1."""


@dataclass(frozen=True, slots=True)
class Now:
    """Objects of the cluster when an interrupted take-over continues."""

    operators: Sequence[Object]
    definition: Object | None
    """Definition of MPIJobs, of any version."""
    jobs: Sequence[Object]
    """MPIJobs of v2beta1."""
    made: Sequence[Object]
    """MPIJobs of our version."""


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
                f"MPIJob {namespace}/{name} has not finished, and only the MPI Operator looks after its launcher; "
                f"wait for its end, or suspend it: kubectl -n {namespace} patch mpijobs.v2beta1.{GROUP} {name} --type merge -p '{patch}'"
            )


def takeover(seen: Seen, ours: Sequence[Object], *, file: str) -> Iterator[Change]:
    """Yield the changes of a take-over. `ours` are all definitions to apply."""
    yield from _stopped(seen.operators)
    yield _deletion(seen.jobs, file)
    yield _applied(ours)
    yield from (_made_anew(job, file) for job in seen.jobs if not is_over(job))


def resumed(now: Now, kept: Object, ours: Sequence[Object], *, file: str) -> Iterator[Change]:
    """Yield the remaining changes of an interrupted take-over: its jobs are in the cluster, in the file, or created already."""
    yield from _stopped(now.operators)
    if now.definition is not None and is_theirs(now.definition):
        yield _deletion(now.jobs, file)
    yield _applied(ours)
    there = {_key(job) for job in now.made}
    yield from (_made_anew(job, file) for job in kept["jobs"] if _key(job) in kept["waiting"] and _key(job) not in there)


def not_resumed(now: Now, kept: Object, *, file: str) -> str | None:
    """Return why a take-over cannot continue with this file, or None if it can."""
    definition = now.definition
    if definition is None or not is_theirs(definition):
        return None
    again = f"`elastic adopt --back {file}` starts the operator that it keeps; to begin again, name another file with --save"
    if _uid(definition) != kept["definition"]:
        return f"{file} exists already, and its definition {MPI.crd_name} is not the one in this cluster; {again}"
    before = {_key(job): job["spec"] for job in kept["jobs"]}
    after = before if is_going(definition) else {_key(job): job["spec"] for job in now.jobs}
    if others := sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)):
        return f"MPIJob {', '.join(others[:10])} was created, deleted or changed since {file} was written; {again}"
    return None


def _stopped(operators: Sequence[Object]) -> Iterator[Change]:
    return (plan.scaled(one, 0, f"stop {plan.titled(one)}") for one in operators if plan.replicas(one))


def _deletion(jobs: Sequence[Object], file: str) -> Change:
    words = f"delete the definition {MPI.crd_name} (v2beta1) with its {counted(len(jobs), 'job')}, kept in {file}"
    otherwise = f"`elastic adopt --back {file}` starts the operator again; then begin again, with another --save file"
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
    return Create(f"make {where} again, suspended: {API_VERSION} over ssh", made)


def converted(job: Object) -> Object:
    """Return the job as one of our kind. The fields mean the same, but our jobs start over ssh only if they say so."""
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
    """Return the content of the file from which `elastic adopt --back` gives the jobs back."""
    jobs = [{"apiVersion": THEIRS, "kind": MPI.name, "metadata": bare_metadata(job), "spec": job["spec"]} for job in seen.jobs]
    kept = {"operators": [plan.kept_operator(one) for one in seen.operators], "objects": [plan.bare(seen.definition)]}
    waiting = [_key(job) for job in seen.jobs if not is_over(job)]
    return {**kept, "jobs": jobs, "waiting": waiting, "definition": _uid(seen.definition)}


def return_obstacles(kept: Object, jobs: Sequence[Object]) -> Iterator[str]:
    """Yield why the jobs cannot be given back now. `jobs` are the MPIJobs of our version."""
    for job in jobs:
        if is_over(job):
            continue
        if not is_suspended(job):
            yield (
                f"MPIJob {_key(job)} has not finished, and would be deleted with the definition; wait for its end, or `elastic suspend` it"
            )
        elif _key(job) not in kept["waiting"]:
            yield f"MPIJob {_key(job)} is suspended, not in the file, and would be lost with the definition; keep its YAML and delete it"


def return_(kept: Object, ours: Sequence[Object], jobs: Sequence[Object], definition: Object | None) -> Iterator[Change]:
    """Yield the changes that give the jobs back.

    `ours` are the deployments of our controllers, `jobs` the MPIJobs of our version, and `definition` is the present one of MPIJobs. If it
    is the MPI Operator's and is not being deleted, it stays with its jobs: the take-over did not replace it, or it was given back already.
    """
    rest = list(plan.return_(kept, ours))
    at = next(index for index, change in enumerate(rest) if isinstance(change, Apply))
    waiting = [job for job in kept["jobs"] if _key(job) in kept["waiting"]]
    yield from rest[:at]
    if definition is None or not is_theirs(definition) or is_going(definition):
        words = f"delete the definition {MPI.crd_name} (v1) with its {counted(len(jobs), 'job')}"
        yield DeleteDefinition(words, MPI.crd_name, API_VERSION, frozenset(map(plan.identity, jobs)), "type the command again")
    yield rest[at]
    yield from (Create(f"make MPIJob {_key(job)} again, as it was: suspended", job) for job in waiting)
    yield from rest[at + 1 :]


def is_over(job: Object) -> bool:
    return any(one["type"] in ("Succeeded", "Failed") and one["status"] == "True" for one in _status(job).get("conditions") or ())


def is_suspended(job: Object) -> bool:
    """Return whether the job is suspended and none of its pods is active."""
    asked = (job["spec"].get("runPolicy") or {}).get("suspend") is True
    return asked and not any((one or {}).get("active") for one in (_status(job).get("replicaStatuses") or {}).values())


def _status(job: Object) -> dict[str, Any]:
    return job.get("status") or {}


def _key(job: Object) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"


def bare_metadata(job: Object) -> dict[str, Any]:
    return {key: value for key, value in job["metadata"].items() if key in ("name", "namespace", "labels", "annotations")}
