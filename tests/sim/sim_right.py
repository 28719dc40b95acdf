"""Find what is wrong with a cluster in which nothing happens any more: what the spec asks for, what is there, what the status says."""

from collections import Counter
from collections.abc import Iterator

from sim_api import Api
from sim_pods import is_deleting, is_ready
from sim_rendezvous import SimServer

from elastic.api import parse
from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import REPLICA_TYPE
from elastic.api.owners import controller_uid
from elastic.api.words import CleanPodPolicy, Through
from elastic.kube.resources import HORIZONTAL_POD_AUTOSCALERS, POD_DISRUPTION_BUDGETS, PODS, SECRETS, SERVICES
from elastic.membership.wire import WorldReport
from elastic_training.controller.frameworks import FRAMEWORKS
from elastic_worker.etcd.records import World as Sealed

AT_WORK = ("Pending", "Running")


def wrongs(api: Api, server: SimServer, raw: Object | None) -> list[str]:
    """Return what is wrong; nothing if all is right."""
    if raw is None:
        return [f"pod {p['metadata']['name']} is left of a job that is gone" for p in api.all(PODS)]
    job, _ = parse(raw, stored=True)
    uid = raw["metadata"]["uid"]
    pods = [pod for pod in api.all(PODS) if controller_uid(pod["metadata"]) == uid and REPLICA_TYPE in pod["metadata"]["labels"]]
    true = [c.type for c in job.status.conditions if c.status == "True"]
    if "Succeeded" in true or "Failed" in true:
        return [*_conditions(true, never=("Running", "Restarting")), *_over(api, job, pods)]
    if job.run_policy.suspend:
        return [*_conditions(true, wanted="Suspended", never=("Running", "Restarting")), *_idle(api, job, pods)]
    gone = [pod for pod in pods if _is_tolerated(job, pod)]
    is_short = bool(gone) and job.workers - len(gone) < job.least_workers
    wanted, never = ("Created", "Running") if is_short else ("Running", "Restarting")
    return [*_conditions(true, wanted=wanted, never=(never, "Restarting", "Suspended")), *_active(api, server, job, pods)]


def silences(api: Api, raw: Object | None) -> Iterator[str]:
    """Yield the words that the conditions of a job lack that has not finished and does not train: what it waits for."""
    if raw is None:
        return
    job, _ = parse(raw, stored=True)
    true = {c.type for c in job.status.conditions if c.status == "True"}
    if true & {"Succeeded", "Failed", "Suspended"} or job.elastic is None or not job.kind.native_elastic:
        return
    pods = [pod for pod in api.all(PODS) if controller_uid(pod["metadata"]) == raw["metadata"]["uid"]]
    workers = [pod for pod in pods if pod["metadata"]["labels"].get(REPLICA_TYPE) == WORKER.lower()]
    active = sum(pod["status"]["phase"] == "Running" and not is_deleting(pod) for pod in workers)
    words = f"Waiting for workers: {active} of at least {job.least_workers} running."
    if active < job.least_workers and not any(words in c.message for c in job.status.conditions):
        yield f"it waits and does not say '{words}': {[c.message for c in job.status.conditions]}"
    if active < job.least_workers and "Running" in true:
        yield f"it is said to be running with {active} of at least {job.least_workers} workers"


def _conditions(true: list[str], *, wanted: str = "Created", never: tuple[str, ...] = ()) -> Iterator[str]:
    if wanted not in true or "Created" not in true:
        yield f"the conditions that hold are {true}, without {wanted}"
    for type in never:
        if type in true:
            yield f"the conditions that hold are {true}, with {type}"


def _is_tolerated(job: Job, pod: Object) -> bool:
    """Return whether a worker has failed for good in a job that goes on without it, such as a TFJob with dynamic workers."""
    is_worker = pod["metadata"]["labels"][REPLICA_TYPE] == WORKER.lower()
    return is_worker and pod["status"]["phase"] == "Failed" and FRAMEWORKS[job.kind.name].tolerates(job, WORKER)


def _over(api: Api, job: Job, pods: list[Object]) -> Iterator[str]:
    policy = job.run_policy.clean_pod_policy
    for pod in pods:
        phase = pod["status"]["phase"]
        if policy is CleanPodPolicy.ALL or (policy is CleanPodPolicy.RUNNING and phase in AT_WORK):
            yield f"pod {pod['metadata']['name']} ({phase}) is there after the end, against cleanPodPolicy {policy.value}"
        elif phase in AT_WORK and _has_met(job):
            yield f"pod {pod['metadata']['name']} ({phase}) works or waits on after the end of its group"
    for resource in (HORIZONTAL_POD_AUTOSCALERS, POD_DISRUPTION_BUDGETS):
        if api.all(resource):
            yield f"{resource.plural} are there after the end"


def _has_met(job: Job) -> bool:
    return job.elastic is not None and job.status.elastic is not None and bool(job.status.elastic.backend)


def _idle(api: Api, job: Job, pods: list[Object]) -> Iterator[str]:
    if pods or api.all(SERVICES):
        yield "pods or services are there although the job is suspended"
    for type, status in job.status.replica_statuses.items():
        if status.active:
            yield f"{type}: {status.active} are said to be active, and the job is suspended"


def _active(api: Api, server: SimServer, job: Job, pods: list[Object]) -> Iterator[str]:
    if job.status.elastic is not None and job.status.elastic.closed:
        yield f"the job goes on although its group was let end: {job.status.elastic.closed}"
    for type, spec in job.replicas.items():
        mine = [pod for pod in pods if pod["metadata"]["labels"][REPLICA_TYPE] == type.lower()]
        phases = Counter("deleting" if is_deleting(pod) else pod["status"]["phase"] for pod in mine)
        if sum(phases.values()) != spec.replicas or phases["Pending"] or phases["deleting"]:
            yield f"{type}: {dict(phases)} for {spec.replicas}: {[p['metadata']['name'] for p in mine]}"
        told = job.status.replica_statuses[type]
        if (told.active, told.succeeded, told.failed) != (phases["Running"], phases["Succeeded"], phases["Failed"]):
            yield f"{type}: the status says {told}, there are {dict(phases)}"
    names = {pod["metadata"]["name"] for pod in pods}
    services = {service["metadata"]["name"] for service in api.all(SERVICES) if REPLICA_TYPE in service["metadata"].get("labels", {})}
    if job.kind.has_services and services != names:
        yield f"services {sorted(services)} for pods {sorted(names)}"
    if job.elastic is not None:
        budgets = {budget["metadata"]["name"] for budget in api.all(POD_DISRUPTION_BUDGETS)}
        guarded = {job.metadata.name} | ({f"{job.metadata.name}-launcher"} if job.kind.name == "MPIJob" else set())
        if budgets != guarded:
            yield f"an elastic job has disruption budgets: {sorted(budgets)}"
        policy = job.elastic.scaling_policy
        has_metrics = job.elastic.metrics is not None or (policy is not None and policy.through is Through.HPA)
        if len(api.all(HORIZONTAL_POD_AUTOSCALERS)) != has_metrics:
            yield "a job with metrics has an autoscaler, and another has none"
    for pod in pods:
        if pod["metadata"]["labels"][REPLICA_TYPE] == WORKER.lower() and not is_ready(pod) and not _is_tolerated(job, pod):
            yield f"pod {pod['metadata']['name']} is not ready: {pod['status'].get('conditions')}"
    yield from _membership(api, server, job, names)


def _membership(api: Api, server: SimServer, job: Job, names: set[str]) -> Iterator[str]:
    elastic = job.status.elastic
    if job.kind.name != "PyTorchJob" or job.elastic is None or elastic is None or elastic.backend not in ("elastic", "etcd"):
        return
    if not api.all(SECRETS):
        yield "the job has no secret"
    if elastic.leaving:
        yield f"the status says that {elastic.leaving} leave"
    if lasting := [entry for entry in elastic.disruptions if entry.ended_at is None]:
        yield f"the status says that disruptions last: {lasting}"
    world: WorldReport | Sealed | None = server.hub.world(job.metadata.uid)
    members = {seat.name for seat in world.members} if world is not None else set()
    if elastic.backend == "etcd":
        world = server.etcds.of(job.metadata.uid).world()
        members = {seat.name for seat in world.seats} if world is not None else set()
    workers = {name for name in names if f"-{WORKER.lower()}-" in name}
    if world is None or members != workers:
        yield f"the world is {sorted(members)} ({world or 'unknown'}), the workers are {sorted(workers)}"
    elif server.living is not None and elastic.backend == "elastic" and (idle := list(server.living.idle(job.metadata.uid, members))):
        yield from idle
    elif (elastic.world_size, elastic.generation) != (len(members), world.generation):
        yield f"the status says {elastic.generation}, {elastic.world_size} members; the world is {world.generation}, {len(members)}"
