"""Decide which pods of a job can work together, and so which pods must be replaced when the job changes.

The pods of a group meet at one rendezvous. If a framework tells its processes how many they are, a group also has one size.
"""

from elastic.api.job import Object
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import gang_restart
from elastic_training.controller.deciding.rendezvous import c10d_store, etcd
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.facts.snapshot import GROUP, Pod
from elastic_training.controller.frameworks.protocol import total


def group_of(view: JobView) -> str:
    """Return the group label of pods that are made now; empty if any pods of the job fit together."""
    job, backend = view.job, view.backend
    if view.restarts_as_a_whole:
        return gang_restart.name_of(job)
    if backend.needs_library or job.elastic is None:
        return backend.value
    is_unbounded = job.elastic.min_replicas is None and job.elastic.max_replicas is None
    words = [backend.value, c10d_store.run_of_store(job, view.snapshot)] if backend is RendezvousBackend.STORE else []
    if is_unbounded or not job.kind.native_elastic:
        words.append(f"size-{total(job)}")
    return "-".join(words)


def awaits_rendezvous(view: JobView) -> bool:
    """Workers are made once they can meet: there is a store that lives, or the controller knows the rendezvous server again."""
    match view.backend:
        case RendezvousBackend.STORE:
            return not c10d_store.run_of_store(view.job, view.snapshot)
        case RendezvousBackend.OURS:
            return view.snapshot.settings.rendezvous is None
        case RendezvousBackend.ETCD:
            return etcd.awaits(view)
    return False


def marked(pod: Object, group: str) -> Object:
    if group:
        pod["metadata"]["labels"][GROUP] = group
    return pod


def orphans(view: JobView) -> list[Pod]:
    """Pods whose end says nothing about the job: stale pods, and all pods that met at a store which is gone."""
    if view.backend is RendezvousBackend.STORE and awaits_rendezvous(view):
        return [pod for pod in view.snapshot.pods if pod.group]
    return stale_pods(view)


def stale_pods(view: JobView) -> list[Pod]:
    """Pods of another group than the job's present one. Pods without a group label were made by another controller and may finish."""
    if awaits_rendezvous(view):
        return []
    if view.restarts_as_a_whole:
        return gang_restart.pods_of_earlier_starts(view.job, view.snapshot)
    group = group_of(view)
    return [pod for pod in view.snapshot.pods if pod.group and pod.group != group]
