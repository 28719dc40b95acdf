"""Decide which services a job has: one per replica as long as others may connect to its pod, so that a leaving worker keeps its name."""

from collections.abc import Collection, Iterator

from elastic.kube.resources import SERVICES
from elastic_training.controller.deciding.actions import Action, Create, Delete
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.objects.pods import replica_name, service_for
from elastic_training.controller.deciding.rendezvous import readiness


def services(view: JobView, places: Collection[tuple[str, int]]) -> Iterator[Action]:
    """Yield the actions on services. `places` are the replicas that exist or are about to be created, by type and index."""
    job, snapshot = view.job, view.snapshot
    if not job.kind.has_services:
        return
    there = {service.name for service in snapshot.services}
    named = {replica_name(job, type, index): (type, index) for type, index in places}
    for name, (type, index) in named.items():
        if name not in there:
            yield Create(SERVICES, service_for(job, type, index, also_unready=readiness.is_gated(view)))
    still_used = {pod.name for pod in snapshot.pods} | named.keys()
    for service in snapshot.services:
        if service.name not in still_used and not service.is_deleting:
            yield Delete(SERVICES, service.name, service.uid)
