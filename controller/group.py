"""Decides which pods of a job can work together, and so which must be made anew when that changes.
A group meets at one rendezvous; where a framework's processes are told how many they are, a group also has one size.
"""

from controller import membership
from controller.frameworks.protocol import total
from controller.snapshot import GROUP, Pod, Snapshot
from elastic.api.job import Job, Object
from elastic.api.words import RdzvBackend


def group_of(job: Job, snapshot: Snapshot) -> str:
    """The word that pods made now carry; empty where any pods of the job go together."""
    if membership.is_ours(job, snapshot):
        return RdzvBackend.ELASTIC.value
    policy = job.elastic
    if policy is None:
        return ""
    is_unbounded = policy.min_replicas is None and policy.max_replicas is None
    return f"size-{total(job)}" if is_unbounded or not job.kind.native_elastic else ""


def marked(pod: Object, group: str) -> Object:
    if group:
        pod["metadata"]["labels"][GROUP] = group
    return pod


def strays(job: Job, snapshot: Snapshot) -> list[Pod]:
    """Pods of another group than the job's; unmarked ones were made by somebody else and are left to finish."""
    group = group_of(job, snapshot)
    return [pod for pod in snapshot.pods if pod.group and pod.group != group]
