"""The rules that one field's type cannot say: names, counts, what goes with what. Each rule looks at a job that was read and speaks up.

Where a rule can be said in the CRD's schema, elastic.api.crd says it there as well, in the same words.
"""

from __future__ import annotations

import msgspec

from elastic.api import names
from elastic.api.errors import Path
from elastic.api.job import ElasticPolicy, Job
from elastic.api.kinds import WORKER, Kind
from elastic.api.reader import Findings, one_of
from elastic.api.words import RdzvBackend, WorkerLibrary

ELASTIC: Path = ("spec", "elasticPolicy")


def check(job: Job, *, stored: bool, findings: Findings) -> Job:
    """The job, its replicas clamped if it is stored; each broken rule is noted."""
    _check_types(job, findings)
    for name in job.replicas:
        _check_containers(job, name, findings)
    if job.elastic is not None:
        _check_elastic(job, job.elastic, findings)
        job = _check_bounds(job, job.elastic, stored=stored, findings=findings)
    elif job.workers < job.kind.least_workers and WORKER in job.replicas:
        _out_of_range(
            job,
            f"Worker.replicas is {job.workers}; a {job.kind.name} needs at least {job.kind.least_workers}",
            stored=stored,
            findings=findings,
        )
    _check_names(job, findings)
    return job


def _replicas_at(kind: Kind, *parts: str | int) -> Path:
    return ("spec", kind.replica_key, *parts)


def _check_names(job: Job, findings: Findings) -> None:
    meta, kind = job.metadata, job.kind
    name, field = (meta.name, "name") if meta.name or not meta.generate_name else (meta.generate_name + "x" * 5, "generateName")
    at: Path = ("metadata", field)
    if not name:
        findings.problem(at, "name is missing")
        return
    pattern = names.DNS_1035 if kind.has_services else names.DNS_1123
    if not pattern.match(name):
        start = "start with a letter" if kind.has_services else "start with a letter or digit"
        findings.problem(at, f'{field} is "{name[:80]}"; use lower-case letters, digits and -, {start} and end with a letter or digit')
        return
    longest = max((_longest_pod_name(job, type, name) for type in job.replicas), key=len)
    if len(longest) > names.LONGEST:
        over = len(longest) - names.LONGEST
        findings.problem(
            at,
            f"{field} has {len(name)} characters, which makes the pod name {longest} longer than {names.LONGEST}; shorten it by {over}",
        )


def _longest_pod_name(job: Job, type: str, name: str) -> str:
    count = max(job.replicas[type].replicas, job.most_workers if type == WORKER else 0, 1)
    return names.pod_name(job.kind, name, type, count - 1)


def _check_types(job: Job, findings: Findings) -> None:
    kind = job.kind
    for name in kind.required:
        if name not in job.replicas:
            findings.problem(_replicas_at(kind, name), f"{name} is missing; a {kind.name} needs exactly one")
    for name in kind.single:
        if name in job.replicas and job.replicas[name].replicas != 1:
            findings.problem(
                _replicas_at(kind, name, "replicas"),
                f"{name}.replicas is {job.replicas[name].replicas}; a {kind.name} needs exactly one {name}, write 1",
            )
    heads = sum(job.replicas[name].replicas for name in kind.at_most_one_of if name in job.replicas)
    if heads > 1:
        findings.problem(
            _replicas_at(kind), f"there are {heads} replicas of {one_of(kind.at_most_one_of)}; a {kind.name} has at most one in all"
        )


def _check_containers(job: Job, name: str, findings: Findings) -> None:
    kind = job.kind
    at = _replicas_at(kind, name, "template", "spec", "containers")
    spec = job.replicas[name].template.get("spec")
    found = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(found, list) or not found or not all(isinstance(c, dict) for c in found):
        findings.problem(at, f"containers is missing or empty; a container named {kind.container} is needed")
        return
    listed = [str(c.get("name", "")) for c in found]
    if kind.container_required and kind.container not in listed:
        have = f"the only container is {listed[0]}" if len(listed) == 1 else f"the containers are {', '.join(listed)}"
        findings.problem(at, f"{have}; a {kind.name} trains in the container named {kind.container}, rename the one that trains")
    for i, container in enumerate(found):
        if not container.get("image"):
            findings.problem((*at, i, "image"), "image is missing; name the image of this container")


def _check_elastic(job: Job, elastic: ElasticPolicy, findings: Findings) -> None:
    if WORKER not in job.replicas:
        findings.problem(_replicas_at(job.kind, WORKER), "Worker is missing; elasticPolicy needs workers to come and go")
    least, most = elastic.min_replicas, elastic.max_replicas
    if least is not None and most is not None and least > most:
        findings.problem(
            (*ELASTIC, "minReplicas"), f"minReplicas is {least} but maxReplicas is {most}; lower minReplicas or raise maxReplicas"
        )
    if elastic.n_proc_per_node is not None:
        _check_nproc(job, findings)
    if elastic.metrics is not None and elastic.scaling_policy is not None and elastic.scaling_policy.through is None:
        findings.problem(
            (*ELASTIC, "scalingPolicy"),
            "scalingPolicy and metrics would both set Worker.replicas; remove one, or write scalingPolicy.through: hpa",
        )
    _check_sizes(job, elastic, findings)
    if elastic.worker_library is WorkerLibrary.NONE and elastic.rdzv_backend is RdzvBackend.ELASTIC:
        findings.problem(
            (*ELASTIC, "workerLibrary"),
            "workerLibrary is None but rdzvBackend is elastic, which needs it; use Inject or Image, or another backend",
        )


def _check_nproc(job: Job, findings: Findings) -> None:
    at = (*ELASTIC, "nProcPerNode")
    if job.options.nproc_per_node is not None:
        findings.problem(at, "nProcPerNode and spec.nprocPerNode are both set; remove nProcPerNode, which is deprecated")
    else:
        findings.warning(at, "nProcPerNode is deprecated; use spec.nprocPerNode")


def _check_sizes(job: Job, elastic: ElasticPolicy, findings: Findings) -> None:
    at = (*ELASTIC, "allowedSizes" if elastic.allowed_sizes else "sizeStep")
    if elastic.allowed_sizes and elastic.size_step is not None:
        findings.problem(at, "allowedSizes and sizeStep are both set; remove one")
        return
    least, most = job.bounds
    if not elastic.is_allowed(least) and least <= most:
        name = "minReplicas" if elastic.min_replicas is not None else "the least number of workers"
        findings.problem(at, f"{name} is {least}, which {at[-1]} does not allow; the job could wait for ever, so make it an allowed size")
    elif not elastic.is_allowed(job.workers) and least <= job.workers <= most:
        findings.warning(
            _replicas_at(job.kind, WORKER, "replicas"),
            f"Worker.replicas is {job.workers}, which {at[-1]} does not allow; {elastic.largest_allowed(job.workers)} will train together",
        )


def _check_bounds(job: Job, elastic: ElasticPolicy, *, stored: bool, findings: Findings) -> Job:
    """Only bounds that were written bind; those that follow from Worker.replicas cannot be left."""
    if WORKER not in job.replicas:
        return job
    least, most, count = elastic.min_replicas, elastic.max_replicas, job.workers
    if most is not None and count > most:
        advice = "lower replicas or raise maxReplicas"
        return _clamped(job, most, f"Worker.replicas is {count} but maxReplicas is {most}", advice=advice, stored=stored, findings=findings)
    if least is not None and count < least and (most is None or least <= most):
        advice = "raise replicas or lower minReplicas"
        return _clamped(
            job, least, f"Worker.replicas is {count} but minReplicas is {least}", advice=advice, stored=stored, findings=findings
        )
    if least is None and most is not None and count < most:
        findings.warning(
            (*ELASTIC, "minReplicas"),
            f"minReplicas is not set and so is maxReplicas, {most}; with {count} workers the job waits, so set minReplicas",
        )
    if count < 1 and least is None:
        _out_of_range(job, f"Worker.replicas is {count}; an elastic job needs at least 1", stored=stored, findings=findings)
    return job


def _clamped(job: Job, count: int, message: str, *, advice: str, stored: bool, findings: Findings) -> Job:
    if not stored:
        _out_of_range(job, f"{message}; {advice}", stored=False, findings=findings)
        return job
    _out_of_range(job, f"{message}; {count} are run, {advice}", stored=True, findings=findings)
    worker = msgspec.structs.replace(job.replicas[WORKER], replicas=count)
    return msgspec.structs.replace(job, replicas={**job.replicas, WORKER: worker})


def _out_of_range(job: Job, message: str, *, stored: bool, findings: Findings) -> None:
    at = _replicas_at(job.kind, WORKER, "replicas")
    if stored:
        findings.warning(at, message)
    else:
        findings.problem(at, message)
