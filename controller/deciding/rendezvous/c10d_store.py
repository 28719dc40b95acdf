"""Decides on the store pod of jobs that meet through torch's own c10d: it is made before the workers and outlives any of them.
What it holds dies with it, so workers belong to the very run of the store they were made for.
"""

from collections.abc import Iterator

from controller.deciding.actions import Delete, JobEvent, warning
from controller.deciding.objects.ownership import owner_reference
from controller.watching.snapshot import Owned, Phase, Snapshot, pod_from
from elastic.api.job import Job, Object
from elastic.api.kinds import WORKER
from elastic.api.names import job_labels
from elastic.kube.resources import PODS
from rendezvous.c10d import Store, c10d_env, store_network_policy, store_pod, store_service


def store_of(job: Job) -> Store:
    return Store(
        job_name=job.metadata.name,
        namespace=job.metadata.namespace,
        job_uid=job.metadata.uid,
        owner=owner_reference(job),
        template=job.replicas[WORKER].template,
        selector=job_labels(job.kind, job.metadata.name),
        container=job.kind.container,
    )


def store_objects(job: Job, snapshot: Snapshot) -> Iterator[Object]:
    """The pod, its name, and who may speak to it. A pod that ended is not wanted: it goes, and another one is made."""
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


def unguarded(job: Job) -> Iterator[JobEvent]:
    """Warns if no NetworkPolicy can protect the store."""
    if store_network_policy(store_of(job)) is None:
        message = (
            f"{job.kind.name} {job.metadata.name} uses a store without a NetworkPolicy, because its workers use the host's network; "
            "the store has no authentication: remove elasticPolicy.rdzvBackend to use this control plane's rendezvous server"
        )
        yield warning("UnguardedStore", message)


def environment(job: Job) -> list[Object]:
    assert job.elastic is not None
    return c10d_env(store_of(job), [(entry.key, entry.value) for entry in job.elastic.rdzv_conf])


def run_of_store(job: Job, snapshot: Snapshot) -> str:
    """Names the store pod's present run, short enough for a label; empty while there is none that workers could use."""
    there = snapshot.find("Pod", store_of(job).name)
    if there is None or _has_ended(there):
        return ""
    return f"{there.uid[:8]}-{pod_from(there.raw).restarts}"


def _has_ended(owned: Owned) -> bool:
    pod = pod_from(owned.raw)
    return pod.is_deleting or pod.phase in (Phase.FAILED, Phase.SUCCEEDED)
