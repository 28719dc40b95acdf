"""Decides which pods of a job can work together, and so which must be made anew when that changes.
A group meets at one rendezvous; where a framework's processes are told how many they are, a group also has one size.
"""

from controller import membership, regroup, store
from controller.frameworks.protocol import total
from controller.snapshot import GROUP, Pod, Snapshot
from elastic.api.job import Job, Object


def group_of(job: Job, snapshot: Snapshot) -> str:
    """The word that pods made now carry; empty where any pods of the job go together."""
    if regroup.is_whole(job, snapshot):
        return regroup.name_of(job)
    place, policy = membership.place(job, snapshot), job.elastic
    if place is membership.Place.OURS or policy is None:
        return place.value
    is_unbounded = policy.min_replicas is None and policy.max_replicas is None
    words = [place.value, store.run_of_store(job, snapshot)] if place is membership.Place.STORE else []
    if is_unbounded or not job.kind.native_elastic:
        words.append(f"size-{total(job)}")
    return "-".join(words)


def is_waiting(job: Job, snapshot: Snapshot) -> bool:
    """Workers are made once they have where to meet: a store that lives, or a controller that knows the rendezvous server again."""
    match membership.place(job, snapshot):
        case membership.Place.STORE:
            return not store.run_of_store(job, snapshot)
        case membership.Place.OURS:
            return snapshot.settings.rendezvous is None
    return False


def marked(pod: Object, group: str) -> Object:
    if group:
        pod["metadata"]["labels"][GROUP] = group
    return pod


def orphans(job: Job, snapshot: Snapshot) -> list[Pod]:
    """Pods whose end says nothing, for what they were made for is gone: strays, and all that met at a store which is no more."""
    if membership.place(job, snapshot) is membership.Place.STORE and is_waiting(job, snapshot):
        return [pod for pod in snapshot.pods if pod.group]
    return strays(job, snapshot)


def strays(job: Job, snapshot: Snapshot) -> list[Pod]:
    """Pods of another group than the job's; unmarked ones were made by somebody else and are left to finish."""
    if is_waiting(job, snapshot):
        return []
    if regroup.is_whole(job, snapshot):
        return regroup.outsiders(job, snapshot)
    group = group_of(job, snapshot)
    return [pod for pod in snapshot.pods if pod.group and pod.group != group]
