"""Find the fields of a TrainJob and its runtime that nothing here carries out, so that they are refused instead of ignored."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import NODEFAULT, Struct, structs

from elastic.api.errors import Path, Problem
from elastic.api.trainer.runtime import JobSetSpec, ReplicatedJob, Runtime, SuccessPolicy
from elastic.api.trainer.train_job import TrainJobSpec

NOT_YET = "is not supported yet; remove it"
TRAIN_JOB = ("runtime_ref", "initializer", "trainer", "runtime_patches", "suspend", "active_deadline_seconds", "managed_by")
RUNTIME = ("ml_policy", "pod_group_policy", "template")
POLICY = ("num_nodes", "torch", "mpi", "jax", "xgboost", "flux")
NO_FLUX = "is the policy of this runtime, but Flux is not supported; use a runtime with the policy mpi"
JOB_SET = (
    "replicated_jobs",
    "ttl_seconds_after_finished",
    "volume_claim_policies",
    "network",
    "success_policy",
    "failure_policy",
    "startup_policy",
)
JOB = ("template", "backoff_limit", "parallelism", "completions", "completion_mode")
NODE = "node"
METADATA = ("labels", "annotations", "creationTimestamp")


def in_train_job(spec: TrainJobSpec) -> Iterator[Problem]:
    """Yield the fields of a TrainJob that are not supported."""
    yield from _others(spec, ("spec",), known=TRAIN_JOB)


def in_runtime(runtime: Runtime, at: Path) -> Iterator[Problem]:
    """Yield the fields of a runtime that are not supported, outside its jobs. `at` is the place of the runtime."""
    spec, at = runtime.spec, (*at, "spec")
    yield from _others(spec, at, known=RUNTIME)
    if spec.ml_policy is not None:
        yield from _others(spec.ml_policy, (*at, "mlPolicy"), known=POLICY)
        if spec.ml_policy.flux is not None:
            yield Problem((*at, "mlPolicy", "flux"), f"flux {NO_FLUX}")
    if spec.template is not None:
        at = (*at, "template")
        yield from _of_metadata(spec.template.metadata, at)
        if spec.template.spec is not None:
            yield from _others(spec.template.spec, (*at, "spec"), known=JOB_SET)
            is_mpi = spec.ml_policy is not None and spec.ml_policy.mpi is not None
            yield from _of_policies(spec.template.spec, (*at, "spec"), last="launcher" if is_mpi else NODE)


def in_job(job: ReplicatedJob, at: Path, *, known: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Yield the fields of a job of the runtime that are not supported. `known` are those that only this job may have."""
    yield from _others(job, at, known=("name", "template", *known))
    at = (*at, "template")
    yield from _of_metadata(job.template.metadata, at)
    if job.template.spec is not None:
        yield from _others(job.template.spec, (*at, "spec"), known=JOB)
        if job.template.spec.completion_mode not in (None, "Indexed"):
            yield Problem((*at, "spec", "completionMode"), f"completionMode {NOT_YET}, because pods here have an index")


def _of_policies(job_set: JobSetSpec, at: Path, *, last: str) -> Iterator[Problem]:
    """Yield the policies of a JobSet that ask for something else than our jobs do. `last` is the job that ends the TrainJob."""
    network, success, failure = job_set.network, job_set.success_policy, job_set.failure_policy
    if network is not None:
        yield from _others(network, (*at, "network"), known=("enable_dns_hostnames", "publish_not_ready_addresses"))
        if network.enable_dns_hostnames is False:
            yield Problem((*at, "network", "enableDNSHostnames"), "enableDNSHostnames is false; pods here always have names, remove it")
        if network.publish_not_ready_addresses is False:
            message = "publishNotReadyAddresses is false; pods here have their names before they are ready, remove it"
            yield Problem((*at, "network", "publishNotReadyAddresses"), message)
    if (success is not None or last != NODE) and not _ends_with(last, success, [job.name for job in job_set.replicated_jobs]):
        yield Problem((*at, "successPolicy"), f"a TrainJob here completes with the job {last}; let successPolicy name it")
    if failure is not None and (failure.max_restarts or failure.rules):
        yield Problem((*at, "failurePolicy"), f"failurePolicy {NOT_YET}; backoffLimit of the job node limits its failures")


def _ends_with(last: str, policy: SuccessPolicy | None, jobs: list[str]) -> bool:
    """Return whether this policy lets a JobSet complete when this job does. Initializers have completed before; nodes of mpi never do."""
    targets = set((policy.target_replicated_jobs if policy is not None else ()) or jobs)
    if policy is not None and policy.operator != "All":
        return targets == {last}
    return last in targets and (last == NODE or NODE not in targets)


def _others(value: Struct, at: Path, *, known: tuple[str, ...]) -> Iterator[Problem]:
    for field in structs.fields(value):
        found = getattr(value, field.name)
        default = field.default if field.default is not NODEFAULT else None
        if field.name not in known and found is not None and found != default:
            yield Problem((*at, field.encode_name), f"{field.encode_name} {NOT_YET}")


def _of_metadata(metadata: Mapping[str, Any] | None, at: Path) -> Iterator[Problem]:
    for key, value in (metadata or {}).items():
        if key not in METADATA and value:
            yield Problem((*at, "metadata", key), f"{key} {NOT_YET}")
