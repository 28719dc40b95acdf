"""Decide on the store pod of jobs that meet through torch's own c10d. It is made before the workers and outlives them.

Its data ends with it, so each worker belongs to the run of the store for which it was made.
"""

from collections.abc import Iterator

from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import job_labels
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Delete, JobEvent, SeenVersion, warning
from elastic_training.controller.deciding.objects.ownership import owner_reference
from elastic_training.controller.facts.snapshot import Owned, PodPhase, Snapshot, pod_from
from elastic_training.rendezvous.c10d import HAS_RUN_IDS, C10dStore, c10d_env, store_network_policy, store_pod, store_service


def store_of(job: Job) -> C10dStore:
    return C10dStore(
        job_name=job.metadata.name,
        namespace=job.metadata.namespace,
        job_uid=job.metadata.uid,
        owner=owner_reference(job),
        template=job.replicas[WORKER].template,
        selector=job_labels(job.kind, job.metadata.name),
        container=job.kind.container,
    )


def store_objects(job: Job, snapshot: Snapshot) -> Iterator[Object]:
    """Yield the store pod, its service, and its network policy. A pod that has ended is deleted, and another one is made."""
    store = store_of(job)
    there = snapshot.find("Pod", store.name)
    if there is None or not _has_ended(there):
        yield store_pod(store)
    yield store_service(store)
    policy = store_network_policy(store)
    if policy is not None:
        yield policy


def store_deleted(job: Job, snapshot: Snapshot) -> Iterator[Delete]:
    there = snapshot.find("Pod", store_of(job).name)
    if there is not None:
        yield Delete(PODS, there.name, there.uid)


def store_seen(job: Job, snapshot: Snapshot) -> Iterator[SeenVersion]:
    """Yield the store pod in view. Its watch differs from that of the workers, and may be behind it."""
    there = snapshot.find("Pod", store_of(job).name)
    if there is not None:
        yield SeenVersion(PODS, there.name, str(there.raw["metadata"].get("resourceVersion", "")))


def unguarded(job: Job) -> Iterator[JobEvent]:
    """Warns if no NetworkPolicy can protect the store."""
    if store_network_policy(store_of(job)) is None:
        message = (
            f"{job.kind.name} {job.metadata.name} uses a store without a NetworkPolicy, because its workers use the host's network; "
            "the store has no authentication: remove elasticPolicy.rdzvBackend to use this control plane's rendezvous server"
        )
        yield warning("UnguardedStore", message)


def environment(job: Job, snapshot: Snapshot) -> list[Object]:
    assert job.elastic is not None
    conf = [(entry.key, entry.value) for entry in job.elastic.rdzv_conf]
    return c10d_env(store_of(job), conf, rendezvous_id=_rendezvous_id(job, snapshot))


def _rendezvous_id(job: Job, snapshot: Snapshot) -> str:
    """Return the rendezvous id, which belongs to the store's present run alone.

    A worker that is left of a former run finds the new store under the same name. With the same id it would join the new group, fail as it
    ends, and close the rendezvous for all.
    """
    there = snapshot.find("Pod", store_of(job).name)
    return f"{job.metadata.uid}-{run_of_store(job, snapshot)}" if there is not None and _has_run_ids(there) else job.metadata.uid


def _has_run_ids(store: Owned) -> bool:
    return HAS_RUN_IDS in (store.raw["metadata"].get("annotations") or {})


def run_of_store(job: Job, snapshot: Snapshot) -> str:
    """Return a name of the store pod's present run that is short enough for a label; empty if workers could not use it."""
    there = snapshot.find("Pod", store_of(job).name)
    if there is None or _has_ended(there):
        return ""
    # Workers that have another id for the same run cannot work with these, and so are of another group.
    return f"{'run-' if _has_run_ids(there) else ''}{there.uid[:8]}-{pod_from(there.raw).restarts}"


def _has_ended(owned: Owned) -> bool:
    pod = pod_from(owned.raw)
    return pod.is_deleting or pod.phase in (PodPhase.FAILED, PodPhase.SUCCEEDED)
