"""Decides which pods of a job can work together, and so which must be made anew when that changes.
A group meets at one rendezvous; where a framework's processes are told how many they are, a group also has one size.
"""

from controller.deciding.lifecycle import gang_restart
from controller.deciding.rendezvous import c10d_store, membership
from controller.frameworks.protocol import total
from controller.watching.snapshot import GROUP, Pod, Snapshot
from elastic.api.job import Job, Object


def group_of(job: Job, snapshot: Snapshot) -> str:
    """The word that pods made now carry; empty where any pods of the job go together."""
    if gang_restart.restarts_as_a_whole(job, snapshot):
        return gang_restart.name_of(job)
    backend, policy = membership.backend_in_use(job, snapshot), job.elastic
    if backend is membership.RendezvousBackend.OURS or policy is None:
        return backend.value
    is_unbounded = policy.min_replicas is None and policy.max_replicas is None
    words = [backend.value, c10d_store.run_of_store(job, snapshot)] if backend is membership.RendezvousBackend.STORE else []
    if is_unbounded or not job.kind.native_elastic:
        words.append(f"size-{total(job)}")
    return "-".join(words)


def is_waiting(job: Job, snapshot: Snapshot) -> bool:
    """Workers are made once they have where to meet: a store that lives, or a controller that knows the rendezvous server again."""
    match membership.backend_in_use(job, snapshot):
        case membership.RendezvousBackend.STORE:
            return not c10d_store.run_of_store(job, snapshot)
        case membership.RendezvousBackend.OURS:
            return snapshot.settings.rendezvous is None
    return False


def marked(pod: Object, group: str) -> Object:
    if group:
        pod["metadata"]["labels"][GROUP] = group
    return pod


def orphans(job: Job, snapshot: Snapshot) -> list[Pod]:
    """Pods whose end says nothing, for what they were made for is gone: strays, and all that met at a store which is no more."""
    if membership.backend_in_use(job, snapshot) is membership.RendezvousBackend.STORE and is_waiting(job, snapshot):
        return [pod for pod in snapshot.pods if pod.group]
    return stale_pods(job, snapshot)


def stale_pods(job: Job, snapshot: Snapshot) -> list[Pod]:
    """Pods of another group than the job's; unmarked ones were made by somebody else and are left to finish."""
    if is_waiting(job, snapshot):
        return []
    if gang_restart.restarts_as_a_whole(job, snapshot):
        return gang_restart.pods_of_earlier_starts(job, snapshot)
    group = group_of(job, snapshot)
    return [pod for pod in snapshot.pods if pod.group and pod.group != group]
