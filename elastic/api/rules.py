"""Check the rules that one field's type cannot express: names, counts, and combinations of fields.

If the CRD's schema can express a rule, elastic.api.crd states it there as well, in the same words. A rule about a value that was already
found wrong reports nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from elastic.api import names
from elastic.api.book import MOST_MEMBERS
from elastic.api.counting import counted
from elastic.api.errors import Path, Problem, shown
from elastic.api.job import MOST_CONTAINERS, ElasticPolicy, Job, KindOptions
from elastic.api.kinds import WORKER
from elastic.api.reader import Findings, one_of
from elastic.api.rendezvous_choice import wanted_backend
from elastic.api.scaling import PolicyName, ScalingPolicy
from elastic.api.scaling_rules import check_progress, check_range, check_scaling, too_late
from elastic.api.words import MpiTransport, RdzvBackend, WorkerLibrary

ELASTIC: Path = ("spec", "elasticPolicy")
NPROC_WORDS = ("auto", "cpu", "gpu", "xpu")
AT_SERVER = (RdzvBackend.ELASTIC,)
BY_ENGINE = (RdzvBackend.ELASTIC, RdzvBackend.ETCD, RdzvBackend.ETCD_V2)
"""Backends whose rendezvous finds out what ranks do."""
MAX_RESTARTS_FLAG = re.compile(r"--max[-_]restarts(=|$)")


@dataclass(frozen=True, slots=True)
class Draft:
    """A job as it was read, not checked yet."""

    job: Job
    spelled: Mapping[str, str]
    """The word the user wrote for each replica type."""

    def at(self, type: str, *parts: str | int) -> Path:
        return ("spec", self.job.kind.replica_key, self.spelled.get(type, type), *parts)


def check(draft: Draft, *, stored: bool, findings: Findings) -> Job:
    """Return the job, with its replicas clamped if it is stored. Note each broken rule."""
    job = draft.job
    _check_types(draft, findings)
    for name in job.replicas:
        _check_containers(draft, name, findings)
    if job.elastic is not None:
        _check_elastic(job.elastic, job, findings)
        _check_secret(job, stored=stored, findings=findings)
        _check_sizes(draft, job.elastic, stored=stored, findings=findings)
        _check_members(draft, job.elastic, stored=stored, findings=findings)
    if not findings.blames(draft.at(WORKER)[:-1]) or WORKER in job.replicas:
        job = _check_counts(draft, stored=stored, findings=findings)
    if job.elastic is not None and job.kind.native_elastic and job.run_policy.restart_scope is not None:
        message = f"restartScope has no effect on {job.kind.a_job} with elasticPolicy, which goes on with the remaining workers; remove it"
        findings.warning(("spec", "runPolicy", "restartScope"), message)
    if job.options.nproc_per_node is not None:
        _check_nproc(job.options.nproc_per_node, findings)
    if "mpi_transport" in job.kind.options:
        _check_mpi(job.options, findings)
    _check_report(job, findings)
    _check_names(job, stored=stored, findings=findings)
    return job


def _check_types(draft: Draft, findings: Findings) -> None:
    job, kind = draft.job, draft.job.kind
    for name in kind.required:
        if name not in job.replicas and not findings.blames(draft.at(name)[:-1]):
            findings.problem(draft.at(name), f"{name} is missing; {kind.a_job} needs exactly one")
    for name in kind.single:
        count = job.replicas[name].replicas if name in job.replicas else 1
        if count != 1:
            findings.problem(draft.at(name, "replicas"), f"{name}.replicas is {count}; {kind.a_job} has exactly one {name}, write 1")
    heads = sum(job.replicas[name].replicas for name in kind.at_most_one_of if name in job.replicas)
    if heads > 1:
        one = one_of(kind.at_most_one_of)
        findings.problem(draft.at(WORKER)[:-1], f"there are {heads} replicas of {one}; {kind.a_job} has at most one, lower replicas")


def _check_containers(draft: Draft, name: str, findings: Findings) -> None:
    """Check the containers that are well formed. Malformed ones were noted already."""
    kind, spec = draft.job.kind, draft.job.replicas[name].template.get("spec") or {}
    at = draft.at(name, "template", "spec", "containers")
    found = spec.get("containers") if isinstance(spec, dict) else None
    if not found and not findings.blames(at[:-1]) and not findings.names(at[:-2]):
        needed = f"a container named {kind.container}" if kind.container_required else "at least one"
        findings.problem(at, f"containers is missing or empty; {needed} is needed")
    if not isinstance(found, list) or not all(isinstance(container, dict) for container in found) or not found:
        return
    if len(found) > MOST_CONTAINERS:
        findings.problem(at, f"there are {len(found)} containers; the most is {MOST_CONTAINERS}")
        return
    names_found = [container.get("name") for container in found]
    if kind.container_required and kind.container not in names_found and all(isinstance(name, str) for name in names_found):
        first = ", ".join(map(shown, names_found[:5]))
        have = f"the only container is {first}" if len(found) == 1 else f"the containers are {first}"
        findings.problem(at, f'{have}; {kind.a_job} trains in the container named "{kind.container}", rename the one that trains')
    for i, container in enumerate(found):
        if not container.get("image") and not findings.blames((*at, i, "image")):
            findings.problem((*at, i, "image"), "image is missing; name the image of this container")
    index = names_found.index(kind.container) if kind.container in names_found else 0
    _check_ports(found[index].get("ports"), draft, at=(*at, index, "ports"), findings=findings)
    if draft.job.elastic is not None and kind.name == "PyTorchJob":
        _check_command(found[index], at=(*at, index), findings=findings)


def _check_command(container: Mapping[str, Any], *, at: Path, findings: Findings) -> None:
    """Check the flags in a command, because they win over torchrun's environment."""
    for key in ("command", "args"):
        words = container.get(key)
        for i, text in enumerate(words if isinstance(words, list) else ()):
            if isinstance(text, str) and any(MAX_RESTARTS_FLAG.match(word) for word in text.split()):
                message = (
                    "--max-restarts in the command overrides elasticPolicy: each torchrun counts for itself, restarts that "
                    "a peer caused included, and ends at its own limit; remove it and set elasticPolicy.maxRestarts, for the whole job"
                )
                findings.warning((*at, key, i), message)
                return


def _check_ports(ports: Any, draft: Draft, *, at: Path, findings: Findings) -> None:
    """Check the ports, because the service opens them by name and cannot open one name or one number twice."""
    kind, seen = draft.job.kind, {}
    for i, port in enumerate(ports if isinstance(ports, list) else ()):
        if findings.blames((*at, i)):
            continue
        name, number = port.get("name"), port["containerPort"]
        if not 1 <= number <= 65535:
            findings.problem((*at, i, "containerPort"), f"containerPort is {shown(number)}; a port is between 1 and 65535")
        if name and name in seen:
            findings.problem((*at, i, "name"), f"two ports have the name {shown(name)}; rename one")
        seen[name] = number
    taken = next((name for name, number in seen.items() if name and number == kind.port), None)
    if kind.has_services and kind.port_name not in seen and taken:
        message = f"port {kind.port} is named {shown(taken)}; {kind.a_job} expects it as {kind.port_name}, rename it or use another number"
        findings.problem(at, message)


def _check_elastic(elastic: ElasticPolicy, job: Job, findings: Findings) -> None:
    least, most = elastic.min_replicas, elastic.max_replicas
    if least is not None and most is not None and least > most:
        message = f"minReplicas is {least} but maxReplicas is {most}; lower minReplicas or raise maxReplicas"
        findings.problem((*ELASTIC, "minReplicas"), message)
    if elastic.n_proc_per_node is not None and job.options.nproc_per_node is not None:
        message = "nProcPerNode and spec.nprocPerNode are both set; remove nProcPerNode, which is deprecated"
        findings.problem((*ELASTIC, "nProcPerNode"), message)
    elif elastic.n_proc_per_node is not None:
        findings.warning((*ELASTIC, "nProcPerNode"), "nProcPerNode is deprecated; use spec.nprocPerNode")
    _check_ours_only(elastic, job, findings)
    if elastic.scaling_policy is not None:
        _check_policy(elastic.scaling_policy, job, has_metrics=elastic.metrics is not None, findings=findings)
    if elastic.metrics == () and (elastic.scaling_policy is None or elastic.scaling_policy.policy is PolicyName.HPA):
        message = "metrics is empty, so its HorizontalPodAutoscaler scales by CPU, at 80 % of what pods request; name metrics or remove it"
        findings.warning((*ELASTIC, "metrics"), message)
    if elastic.progress is not None:
        check_progress(elastic.progress, policy=elastic.scaling_policy, at=(*ELASTIC, "progress"), findings=findings)
    if elastic.worker_library is WorkerLibrary.NONE and elastic.rdzv_backend is RdzvBackend.ELASTIC:
        message = "workerLibrary is None, but rdzvBackend elastic needs it; use Inject or Image, or rdzvBackend c10d"
        findings.problem((*ELASTIC, "workerLibrary"), message)


def _check_ours_only(elastic: ElasticPolicy, job: Job, findings: Findings) -> None:
    """Refuse the fields that only our engine acts on, at the rendezvous server or in an etcd."""
    same_error = elastic.restart_budget.same_error if elastic.restart_budget is not None else None
    ours_only: tuple[tuple[tuple[str, ...], int | str | None, int | str | None, str, tuple[RdzvBackend, ...]], ...] = (
        (("waitForLostStateSeconds",), elastic.wait_for_lost_state_seconds, 0, "wait for the state", AT_SERVER),
        (("restartBudget", "sameError"), same_error, None, "compare the errors of its attempts", AT_SERVER),
        (("firstStepTimeoutSeconds",), elastic.first_step_timeout_seconds, 600, "find out what its ranks do", BY_ENGINE),
        (("stragglers",), elastic.stragglers.value, "Report", "compare its ranks", BY_ENGINE),
    )
    for path, value, default, deed, backends in ours_only:
        if value != default and (job.kind.name != "PyTorchJob" or wanted_backend(job) not in backends):
            names = " or ".join(backend.value for backend in backends)
            message = f"{path[-1]} is {value}, but only a PyTorchJob with rdzvBackend {names} can {deed}; remove it"
            findings.problem((*ELASTIC, *path), message)


def _check_policy(policy: ScalingPolicy, job: Job, *, has_metrics: bool, findings: Findings) -> None:
    at, made = (*ELASTIC, "scalingPolicy"), job.metadata.creation_timestamp
    check_scaling(policy, has_metrics=has_metrics, at=at, findings=findings)
    if made is not None and (late := too_late(policy, made, at=at)) is not None:
        findings.warning(late.at, late.message)


def _check_secret(job: Job, *, stored: bool, findings: Findings) -> None:
    """Check the Secret for an etcd, which the field or the annotation names."""
    named = job.elastic.rdzv_secret if job.elastic is not None else None
    chosen = {
        (*ELASTIC, "rdzvSecret"): named,
        ("metadata", "annotations", names.RDZV_SECRET): job.metadata.annotations.get(names.RDZV_SECRET),
    }
    for at, name in chosen.items():
        if name and (len(name) > names.LONGEST_OBJECT or not names.DNS_1123_SUBDOMAIN.match(name)):
            message = f"{at[-1]} is {shown(name)}; write the name of a Secret of the job's namespace"
            (findings.warning if stored else findings.problem)(at, message)


def _check_report(job: Job, findings: Findings) -> None:
    for problem in report_mistakes(job.metadata.annotations):
        findings.problem(problem.at, problem.message)


def report_mistakes(annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the mistakes in the annotation that turns reports on or off."""
    word = annotations.get(names.REPORT)
    if word not in (None, names.REPORT_ON, names.REPORT_OFF):
        message = f"{names.REPORT} is {shown(word)}; write {one_of((names.REPORT_ON, names.REPORT_OFF))}"
        yield Problem(("metadata", "annotations", names.REPORT), message)


def _check_nproc(word: str, findings: Findings) -> None:
    if word not in NPROC_WORDS and not (word.isdecimal() and int(word) > 0):
        message = f"nprocPerNode is {shown(word)}; torchrun knows a number of at least 1, {one_of(NPROC_WORDS)}"
        findings.warning(("spec", "nprocPerNode"), message)


def _check_mpi(options: KindOptions, findings: Findings) -> None:
    if not options.ssh_auth_mount_path.startswith("/"):
        message = f"sshAuthMountPath is {shown(options.ssh_auth_mount_path)}; write the whole path of the .ssh folder"
        findings.problem(("spec", "sshAuthMountPath"), message)
    is_ssh, default = options.mpi_transport is MpiTransport.SSH, KindOptions()
    one_only = ("main_container",) if is_ssh else ("mpi_implementation", "ssh_auth_mount_path", "run_launcher_as_worker")
    for field in msgspec.structs.fields(KindOptions):
        if field.name in one_only and getattr(options, field.name) != getattr(default, field.name):
            message = f"{field.encode_name} has no effect with mpiTransport {options.mpi_transport.value}; remove one of the two"
            findings.warning(("spec", field.encode_name), message)


def _check_sizes(draft: Draft, elastic: ElasticPolicy, *, stored: bool, findings: Findings) -> None:
    if elastic.allowed_sizes and elastic.size_step is not None:
        findings.problem((*ELASTIC, "sizeStep"), "allowedSizes and sizeStep are both set; remove one")
        return
    at = (*ELASTIC, "allowedSizes" if elastic.allowed_sizes else "sizeStep")
    job, (least, most) = draft.job, draft.job.bounds
    if not elastic.is_allowed(least) and least <= most:
        name = "minReplicas" if elastic.min_replicas is not None else "the least number of workers"
        message = f"{name} is {least}, which {at[-1]} does not allow; the job could wait for ever, so choose an allowed size"
        (findings.warning if stored else findings.problem)(at, message)
    elif not elastic.is_allowed(job.workers) and least <= job.workers <= most:
        message = f"Worker.replicas is {job.workers}, which {at[-1]} does not allow; {elastic.largest_allowed(job.workers)} train together"
        findings.warning(draft.at(WORKER, "replicas"), message)
    _check_unused(elastic, findings)
    if least <= most:
        check_range(elastic, bounds=(least, most), at=(*ELASTIC, "scalingPolicy"), findings=findings)
    if _loses_state_in_a_drain(job, elastic):
        message = (
            "allowedSizes has 1 but not 2, so a single worker cannot pass its state to its replacement when its node is drained; "
            "allow 2 as well, or save checkpoints to storage that outlives the pod"
        )
        findings.warning(at, message)


def _check_unused(elastic: ElasticPolicy, findings: Findings) -> None:
    """Sizes outside of the limits that were written."""
    limits = (("maxReplicas", elastic.max_replicas, "above"), ("minReplicas", elastic.min_replicas, "below"))
    for name, limit, side in limits:
        for place, size in enumerate(elastic.allowed_sizes):
            if limit is not None and (size > limit if side == "above" else size < limit):
                message = f"allowedSizes has {size}, {side} {name} {limit}, so it is never used; remove it or change {name}"
                findings.warning((*ELASTIC, "allowedSizes", place), message)
                break


def _check_members(draft: Draft, elastic: ElasticPolicy, *, stored: bool, findings: Findings) -> None:
    """Check the number of workers, because the rendezvous server refuses larger jobs. An MPIJob needs it only for its list of hosts."""
    job, worker = draft.job, draft.at(WORKER)
    is_mpi = job.kind.name == "MPIJob"
    if findings.blames(worker) or not (is_mpi or (job.kind.name == "PyTorchJob" and wanted_backend(job) is RdzvBackend.ELASTIC)):
        return
    counts = [
        ((*ELASTIC, "maxReplicas"), "maxReplicas", elastic.max_replicas),
        ((*ELASTIC, "minReplicas"), "minReplicas", elastic.min_replicas),
        ((*worker, "replicas"), "Worker.replicas", job.workers),
    ]
    for at, name, count in counts:
        if count is not None and count > MOST_MEMBERS:
            message = f"{name} is {count}, but the rendezvous server takes at most {MOST_MEMBERS} workers of a job; lower {name}"
            (findings.warning if stored or is_mpi else findings.problem)(at, message if is_mpi else f"{message}, or set rdzvBackend c10d")
            return


def _loses_state_in_a_drain(job: Job, elastic: ElasticPolicy) -> bool:
    """Return whether a world may have one worker but not two, so that a replacement cannot take over the state."""
    is_ours = job.kind.native_elastic and elastic.rdzv_backend in (None, RdzvBackend.ELASTIC)
    return is_ours and job.bounds[0] == 1 and elastic.is_allowed(1) and not elastic.is_allowed(2)


def _check_counts(draft: Draft, *, stored: bool, findings: Findings) -> Job:
    """Check the number of workers against the written bounds. Bounds that follow from Worker.replicas cannot be exceeded."""
    job, elastic, at = draft.job, draft.job.elastic, draft.at(WORKER, "replicas")
    if elastic is not None and WORKER not in job.replicas:
        findings.problem(at[:-1], "Worker is missing; elasticPolicy needs workers that come and go")
        return job
    least, most = (elastic.min_replicas, elastic.max_replicas) if elastic is not None else (None, None)
    count, advice, bound = job.workers, "", None
    if findings.blames(at) or (least and most and least > most):
        return job
    if most is not None and count > most:
        found, advice, bound = f"Worker.replicas is {count} but maxReplicas is {most}", "lower replicas or raise maxReplicas", most
    elif least is not None and count < least:
        found, advice, bound = f"Worker.replicas is {count} but minReplicas is {least}", "raise replicas or lower minReplicas", least
    elif count < _fewest(job):
        found, advice = f"Worker.replicas is {count}", f"{job.kind.a_job} needs at least {_fewest(job)}"
    elif not any(spec.replicas for spec in job.replicas.values()):
        found, advice = "there are no replicas at all", "a job needs at least one"
    else:
        if least is None and most is not None and count < most:
            workers = counted(count, "worker")
            message = f"minReplicas is not set and so is {most} like maxReplicas; the job waits with {workers}, so set minReplicas"
            findings.warning((*ELASTIC, "maxReplicas"), message)
        return job
    if not stored:
        findings.problem(at, f"{found}; {advice}")
        return job
    findings.warning(at, f"{found}; {bound} are run, {advice}" if bound is not None else f"{found}; {advice}")
    return job if bound is None else _with_workers(job, bound)


def _fewest(job: Job) -> int:
    if WORKER not in job.replicas:
        return 0
    return max(job.kind.least_workers, 1 if job.elastic is not None else 0)


def _with_workers(job: Job, count: int) -> Job:
    worker = msgspec.structs.replace(job.replicas[WORKER], replicas=count)
    return msgspec.structs.replace(job, replicas={**job.replicas, WORKER: worker})


def _check_names(job: Job, *, stored: bool, findings: Findings) -> None:
    meta, kind = job.metadata, job.kind
    name, field = (meta.name, "name") if meta.name or not meta.generate_name else (meta.generate_name + "x" * 5, "generateName")
    at: Path = ("metadata", field)
    if findings.blames(("metadata",)):
        return
    if not name:
        findings.problem(at, "name is missing")
        return
    is_service = kind.has_services or job.options.mpi_transport is MpiTransport.SSH
    pattern = names.DNS_1035 if is_service else names.DNS_1123
    if not pattern.match(name):
        start = "start with a letter" if is_service else "start with a letter or digit"
        message = f"{field} is {shown(name)}; use lower-case letters, digits and -, {start} and end with a letter or digit"
        findings.problem(at, message)
        return
    longest = max((_longest_pod_name(job, type, name, stored=stored) for type in job.replicas), key=len, default=name)
    over = len(longest) - names.LONGEST
    if over > 0:
        message = f"{field} has {len(name)} characters and makes the pod name {shown(longest)} {len(longest)} long; shorten it by {over}"
        findings.problem(at, message)


def _longest_pod_name(job: Job, type: str, name: str, *, stored: bool) -> str:
    """Return the longest name of the pods that may ever exist. For a stored job, whose name cannot change, only present pods count."""
    may_grow = type == WORKER and not stored
    count = max(job.replicas[type].replicas, job.most_workers if may_grow else 0, 1)
    return names.pod_name(job.kind, name, type, count - 1)
