"""Turn a TrainJob and its runtime into the jobs that the controller runs for it: one of the nodes, and one of each initializer.

The job of the nodes has the TrainJob's name. An annotation of it holds a copy of the runtime, so later changes of the runtime affect only
new TrainJobs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from elastic.api import names
from elastic.api.errors import Path, Problem, SpecError
from elastic.api.job import Object
from elastic.api.kinds import API_VERSION, MPI_NODES, POLICY, WORKER
from elastic.api.parser import parse
from elastic.api.rules import report_mistakes
from elastic.api.trainer import train_job as api
from elastic.api.trainer.runtime import BatchJobSpec, Mpi, ReplicatedJob, Runtime, VolumeClaimPolicy
from elastic.api.trainer.train_job import Trainer, TrainJobSpec
from elastic_training.controller.deciding.trainjobs import claims, gangs, initializers, injection, mpi, nodes, patches, policies, support
from elastic_training.controller.deciding.trainjobs.bounds import KNOWN, Bounds, annotations_of, bounds, unknown
from elastic_training.controller.deciding.trainjobs.roles import Roles, limit, roles

T = TypeVar("T", bound=msgspec.Struct)
SNAPSHOT = f"{names.OWN_PREFIX}runtime"
"""Annotation of the owned job: the runtime that it was made from."""
MOST_SNAPSHOT = 128 * 1024
"""Characters of this annotation; the API server takes 256 KiB for all annotations of an object."""
RUNTIME_REF: Path = ("spec", "runtimeRef")
TORCH_TUNE = ("tune", "run")


@dataclass(frozen=True, slots=True)
class Draft:
    """A TrainJob and its runtime as they were read, with the jobs of the runtime as the patches change them."""

    spec: TrainJobSpec
    runtime: Runtime
    roles: Roles
    bounds: Bounds
    count: int

    @property
    def job(self) -> ReplicatedJob:
        return self.roles.nodes

    @property
    def trainer(self) -> Trainer:
        return self.spec.trainer or Trainer()

    def metadata(self, field: str) -> dict[str, str]:
        """Return the labels or annotations that the JobSet of the runtime gets, also by patches."""
        outer = self.runtime.spec.template
        parts = [(outer.metadata if outer is not None else None) or {}, *patches.metadata(self.spec.runtime_patches)]
        return {key: value for part in parts for key, value in (part.get(field) or {}).items()}

    @property
    def claims(self) -> tuple[VolumeClaimPolicy, ...]:
        outer = self.runtime.spec.template
        return outer.spec.volume_claim_policies if outer is not None and outer.spec is not None else ()

    def scheduling(self, job: ReplicatedJob) -> Object:
        """Return the part of a job's runPolicy about gang scheduling."""
        pod = job.template.spec.template if job.template.spec is not None else {}
        found = gangs.scheduling_policy(self.runtime.spec.pod_group_policy, self.metadata("annotations"), pod)
        return {"schedulingPolicy": found} if found is not None else {}

    @property
    def policy(self) -> str:
        return policies.name(self.runtime.spec.ml_policy)

    @property
    def is_torch(self) -> bool:
        return self.policy == policies.TORCH

    @property
    def mpi(self) -> Mpi | None:
        return self.runtime.spec.ml_policy.mpi if self.runtime.spec.ml_policy is not None else None

    def templates(self, name: str) -> dict[str, Object]:
        """Return the pod templates of the job of TrainJob `name`, by replica type."""
        if self.mpi is not None:
            made = mpi.templates(name, self.roles, self.trainer, self.mpi)
        else:
            made = {WORKER: nodes.template(name, self.job, self.trainer)}
            own = policies.environment(self.policy, job=name, count=self.count, pod=made[WORKER])
            for container in made[WORKER]["spec"]["containers"]:
                if own and container.get("name") == nodes.NODE:
                    container["env"] = nodes.merged(container.get("env") or (), own)
            self.inject(made[WORKER], nodes.NODE, name)
        return {type: claims.with_volumes(template, name, self.claims) for type, template in made.items()}

    def inject(self, template: Object, job: str, name: str) -> None:
        """Give the containers of this job their variables, if envInjection names them. `name` is the TrainJob's."""
        if containers := injection.targets(self.runtime).get(job):
            processes = nodes.processes(nodes.template(name, self.job, self.trainer), self.trainer)
            injection.inject(template, containers, train_job=name, count=self.bounds.most, processes=processes)


def lower(train_job: Object, runtime: Object | None, *, gang_scheduler: str | None = None) -> tuple[list[Object], list[Problem]]:
    """Return the jobs and claims to create for this TrainJob, or the problems that prevent it.

    gang_scheduler: the scheduler for which the controller makes pod groups; None if that is not known.
    """
    problems: list[Problem] = []
    draft = _draft(train_job, runtime, problems)
    if draft is not None:
        at = (draft.spec.runtime_ref.kind, draft.spec.runtime_ref.name, "spec", "podGroupPolicy")
        problems += gangs.problems(draft.runtime.spec.pod_group_policy, draft.metadata("annotations"), at, scheduler=gang_scheduler)
    if draft is None or runtime is None or problems:
        return [], problems
    made = [_job(train_job, draft, runtime), *_initializers(train_job, draft)]
    for whose, job in zip(("nodes", *(f"pod of {one.name}" for one in draft.roles.initializers)), made, strict=True):
        try:
            parse(job)
        except SpecError as error:
            for problem in error.problems:
                place = problem.at if problem.at[:1] == ("metadata",) else RUNTIME_REF
                problems.append(Problem(place, f"the {whose} would not be valid: {problem}"))
    return ([] if problems else [*made, *claims.objects(_placed(train_job), draft.claims)]), problems


def without_mpi(made: Sequence[Object]) -> list[Problem]:
    """Return why a controller that serves no MPIJobs cannot carry out these objects."""
    message = "the controller does not serve MPIJobs, which the policy mpi needs; start it with --enable-kinds that name MPIJob"
    return [Problem(RUNTIME_REF, message)] if any(item["kind"] == MPI_NODES.name for item in made) else []


def runtime_key(train_job: Object) -> tuple[str, str, str]:
    """Return kind, namespace and name of the runtime that the TrainJob names."""
    found = (train_job.get("spec") or {}).get("runtimeRef") or {}
    kind = found.get("kind") or api.CLUSTER_RUNTIME
    return kind, train_job["metadata"].get("namespace", "") if kind == api.RUNTIME else "", found.get("name") or ""


def missing(kind: str, name: str) -> Problem:
    """Return the problem of a TrainJob whose runtime does not exist."""
    return Problem(RUNTIME_REF, f"{kind} {name} does not exist; create it or name another")


def snapshot(runtime: Object) -> Object:
    """Return the part of a runtime that its TrainJobs are made from."""
    metadata = runtime["metadata"]
    kept = {key: value for key, value in annotations_of(runtime).items() if key in KNOWN}
    return {"metadata": {"name": metadata["name"]} | ({"annotations": kept} if kept else {}), "spec": runtime.get("spec") or {}}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bounds, pods and initializers that a TrainJob asks for now, by the runtime that its job was made from."""

    bounds: Bounds
    templates: Mapping[str, Object]
    """The pod templates of the job, by replica type."""
    patches: str | None
    """Checksum of the patches in them."""
    initializers: Mapping[str, Object]
    """The initializers' jobs, by step."""


def wanted_now(train_job: Object, owned: Object) -> tuple[Wanted | None, list[Problem]]:
    """Return what a TrainJob asks of its job, or the problems that prevent it."""
    problems: list[Problem] = []
    try:
        kept = json.loads(annotations_of(owned).get(SNAPSHOT, ""))
    except ValueError:
        return None, [Problem((), f"the owned job's annotation {SNAPSHOT} cannot be read; delete that job to have it made again")]
    draft = _draft(train_job, kept, problems) if isinstance(kept, dict) else None
    if draft is None:
        return None, problems
    templates, checksum = draft.templates(train_job["metadata"]["name"]), patches.checksum(draft.spec.runtime_patches)
    jobs = zip((job.name for job in draft.roles.initializers), _initializers(train_job, draft), strict=True)
    return Wanted(draft.bounds, templates, checksum, dict(jobs)), problems


def _draft(train_job: Object, runtime: Object | None, problems: list[Problem]) -> Draft | None:
    spec = _read(train_job.get("spec"), TrainJobSpec, ("spec",), problems)
    if spec is None:
        return None
    problems += [*support.in_train_job(spec), *unknown(annotations_of(train_job)), *report_mistakes(annotations_of(train_job))]
    reference = spec.runtime_ref
    if reference.api_group != api.GROUP or reference.kind not in (api.RUNTIME, api.CLUSTER_RUNTIME):
        problems.append(Problem(RUNTIME_REF, f"unsupported runtime: {reference.kind}.{reference.api_group}"))
        return None
    if runtime is None:
        problems.append(missing(reference.kind, reference.name))
        return None
    at = (reference.kind, reference.name)
    kept = snapshot(runtime)
    found = _read({"metadata": kept["metadata"], "spec": kept["spec"]}, Runtime, at, problems)
    if found is None:
        return None
    problems += support.in_runtime(found, at)
    if len(json.dumps(kept)) > MOST_SNAPSHOT:
        problems.append(Problem(at, f"the runtime is longer than {MOST_SNAPSHOT} characters; shorten it"))
    jobs = roles(found, at, problems)
    if jobs is None:
        return None
    problems += initializers.problems(spec, jobs.initializers)
    wrong = list(patches.problems(jobs.all, spec.runtime_patches))
    problems += wrong
    jobs = jobs.changed(lambda job: patches.applied(job, spec.runtime_patches if not wrong else ()))
    count = _count(spec, found, jobs.nodes.template.spec, problems)
    limits, wrong = bounds(annotations_of(train_job), annotations_of(kept), nodes=count)
    problems += wrong
    draft = Draft(spec, found, jobs, limits, count)
    problems += _checks(draft)
    problems += injection.problems(found, {job.name: job for job in jobs.all}, limits, at)
    place = (*at, "spec", "template", "spec", "volumeClaimPolicies")
    problems += claims.problems(train_job["metadata"]["name"], draft.claims, jobs.all, place)
    return draft


def _read(value: object, cls: type[T], at: Path, problems: list[Problem]) -> T | None:
    try:
        return msgspec.convert(value, cls)
    except msgspec.ValidationError as error:
        problems.append(Problem(at, f"{error}; this version of the controller cannot carry it out"))
        return None


def _count(spec: TrainJobSpec, runtime: Runtime, pods: BatchJobSpec | None, problems: list[Problem]) -> int:
    policy = runtime.spec.ml_policy
    wanted = spec.trainer.num_nodes if spec.trainer is not None else None
    if wanted is None:
        wanted = policy.num_nodes if policy is not None else pods.parallelism if pods is not None else None
    if wanted is not None and wanted < 1:
        problems.append(Problem(("spec", "trainer", "numNodes"), f"numNodes is {wanted}; at least 1 is needed"))
    return max(1, wanted if wanted is not None else 1)


def _checks(draft: Draft) -> Iterator[Problem]:
    trainer, limits = draft.trainer, draft.bounds
    if not draft.is_torch and (limits.least, limits.most) != (draft.count, draft.count):
        message = f"only nodes with the policy torch can come and go yet; remove {', '.join(KNOWN)}"
        yield Problem(("metadata", "annotations"), message)
    elif limits.asked is None and not limits.least <= draft.count <= limits.most:
        message = f"numNodes is {draft.count}, but {limits.least} to {limits.most} nodes are allowed; change one, or set {names.NODES}"
        yield Problem(("spec", "trainer", "numNodes"), message)
    if draft.policy not in (policies.TORCH, policies.MPI, policies.FLUX) and trainer.num_proc_per_node is not None:
        yield Problem(("spec", "trainer", "numProcPerNode"), "numProcPerNode has no effect without the policy torch or mpi; remove it")
    if trainer.num_proc_per_node is not None and trainer.num_proc_per_node < 1:
        yield Problem(("spec", "trainer", "numProcPerNode"), f"numProcPerNode is {trainer.num_proc_per_node}; at least 1 is needed")
    reserved = [str(entry["name"]) for entry in trainer.env if entry.get("name") in policies.RESERVED.get(draft.policy, ())]
    if reserved:
        yield Problem(("spec", "trainer", "env"), f"must not have reserved envs, invalid envs configured: {reserved}")
    if draft.is_torch and nodes.command(draft.job, trainer)[:2] == TORCH_TUNE:
        yield _of_torchtune(draft)
    if draft.mpi is not None:
        yield from mpi.problems(draft.roles, draft.mpi)


def _of_torchtune(draft: Draft) -> Problem:
    given = draft.trainer.command is not None
    at = ("spec", "trainer", "command") if given else (*draft.roles.at, "template", "spec", "template", "spec", "containers")
    whose = "the command" if given else f"the command of the container {nodes.NODE}"
    message = f"{whose} is {' '.join(TORCH_TUNE)}, but torchtune is not supported; use torchrun with a script of your own"
    return Problem(at, message)


def _job(train_job: Object, draft: Draft, runtime: Object) -> Object:
    metadata, spec, limits = train_job["metadata"], draft.spec, draft.bounds
    templates = draft.templates(metadata["name"])
    failures = limit(draft.job)
    job_set = draft.runtime.spec.template.spec if draft.runtime.spec.template is not None else None
    ttl_s = job_set.ttl_seconds_after_finished if job_set is not None else None
    policy: Object = {"cleanPodPolicy": "Running", "suspend": spec.suspend, **draft.scheduling(draft.job)}
    policy |= {"activeDeadlineSeconds": spec.active_deadline_seconds} if spec.active_deadline_seconds is not None else {}
    policy |= {"ttlSecondsAfterFinished": ttl_s} if ttl_s is not None else {}
    placed = _metadata(train_job, draft, runtime)
    if draft.mpi is not None:
        policy["backoffLimit"] = failures
        return mpi.job(placed, draft.roles, templates, draft.mpi, count=draft.count, trainer=draft.trainer, run_policy=policy)
    more: Object = {}
    if draft.is_torch:
        elastic = {"minReplicas": limits.least, "maxReplicas": limits.most, "maxRestarts": failures}
        more = {"elasticPolicy": elastic, "nprocPerNode": nodes.processes(templates[WORKER], draft.trainer)}
    else:
        policy["backoffLimit"] = failures
    policy_word = "Never" if failures == 0 and not draft.is_torch else "OnFailure"
    count = draft.count if limits.asked is None else limits.asked
    worker = {"replicas": count, "restartPolicy": policy_word, "template": templates[WORKER]}
    return {
        "apiVersion": API_VERSION,
        "kind": "PyTorchJob",
        "metadata": placed,
        "spec": {"runPolicy": policy, **more, "pytorchReplicaSpecs": {WORKER: worker}},
    }


def _initializers(train_job: Object, draft: Draft) -> Iterator[Object]:
    checksum, spec = patches.checksum(draft.spec.runtime_patches), draft.spec
    for job in draft.roles.initializers:
        policy = {"suspend": spec.suspend, "backoffLimit": limit(job), **draft.scheduling(job)}
        source, placed = initializers.source(spec, job.name), _placed(train_job)
        made = initializers.lowered(placed, job, source, checksum=checksum, run_policy=policy)
        template = claims.with_volumes(made["spec"]["pytorchReplicaSpecs"][WORKER]["template"], placed["name"], draft.claims)
        draft.inject(template, job.name, placed["name"])
        yield made


def _metadata(train_job: Object, draft: Draft, runtime: Object) -> Object:
    own = (draft.roles.launcher or draft.job).template.metadata or {}
    labels, annotations = ({**draft.metadata(field), **(own.get(field) or {})} for field in ("labels", "annotations"))
    annotations[POLICY] = draft.policy if draft.policy in (policies.TORCH, policies.MPI) else policies.PLAIN
    annotations[SNAPSHOT] = json.dumps(snapshot(runtime), separators=(",", ":"))
    if (checksum := patches.checksum(draft.spec.runtime_patches)) is not None:
        annotations[patches.PATCHES] = checksum
    if draft.roles.initializers:
        annotations[names.WAITS_FOR] = ",".join(job.name for job in draft.roles.initializers)
    if draft.bounds.asked is not None:
        annotations[names.NODES] = str(draft.bounds.asked)
    if (report := annotations_of(train_job).get(names.REPORT)) is not None:
        annotations[names.REPORT] = report
    return _placed(train_job) | {"labels": labels, "annotations": annotations}


def _placed(train_job: Object) -> Object:
    """Return the metadata of an object that belongs to a TrainJob: its name, its namespace and its owner."""
    metadata = train_job["metadata"]
    owner = {
        "apiVersion": api.API_VERSION,
        "kind": api.TRAIN_JOB,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"name": metadata["name"], "namespace": metadata.get("namespace", "default"), "ownerReferences": [owner]}
