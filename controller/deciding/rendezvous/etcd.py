"""What a job that meets in an etcd gets from its spec: endpoint, settings of the backend elastic-etcd, the user's Secret with the login.
It says what users must know, and sees in a pod that its agents have closed the rendezvous. The controller does not read the etcd.
"""

import re

from controller.deciding.job_view import JobView
from controller.deciding.lifecycle import first_error, restart_accounting
from controller.deciding.rendezvous.backend import RendezvousBackend, backend_in_use
from controller.deciding.rendezvous.expectation import allowed_sizes
from controller.deciding.settings import Settings
from elastic.api.job import Job
from elastic.api.rendezvous_choice import ETCDS, obstacle_to_library
from elastic.api.words import RdzvBackend
from rendezvous.delivery import has_closed

DEFAULT_PORT = 2379


def endpoint(job: Job) -> str:
    """The members of the etcd, each with a port."""
    assert job.elastic is not None
    port = job.elastic.rdzv_port or DEFAULT_PORT
    members = [member.strip() for member in (job.elastic.rdzv_host or "").split(",") if member.strip()]
    return ",".join(member if re.search(r":\d+$", member) else f"{member}:{port}" for member in members)


def conf(job: Job) -> list[tuple[str, str]]:
    """The settings of torchrun's --rdzv-conf: the user's own, and the job's limits where they name none."""
    assert job.elastic is not None
    limit, sizes = restart_accounting.budget_of(job.elastic).max_restarts, allowed_sizes(job, most=job.most_workers)
    ours = {"max_restarts": str(limit) if limit is not None else "", "allowed_sizes": ":".join(str(size) for size in sizes)}
    ours["grace"] = str(job.elastic.scale_in_grace_seconds)
    chosen = {entry.key: entry.value for entry in job.elastic.rdzv_conf}
    return [(key, value) for key, value in (ours | chosen).items() if value]


def secret_name(job: Job) -> str:
    """The user's Secret with login and certificates for the etcd; empty without."""
    return (job.elastic.rdzv_secret or "") if job.elastic is not None else ""


def closed(view: JobView) -> str:
    """Why the agents have closed the rendezvous for good, as a worker's container says; empty where none does."""
    if view.backend is not RendezvousBackend.ETCD:
        return ""
    for pod in view.snapshot.pods:
        for container in pod.containers:
            for message in (container.message, container.last_message):
                if reason := has_closed(message, view.job.metadata.uid):
                    return first_error.of_pod_named(view, reason)
    return ""


def remark(job: Job, settings: Settings) -> str:
    """What users must know of a job that asks for an etcd; empty for other jobs."""
    policy = job.elastic
    if policy is None or policy.rdzv_backend not in ETCDS:
        return ""
    named = f"elasticPolicy.rdzvBackend is {policy.rdzv_backend.value}"
    if backend_in_use(job, settings) is RendezvousBackend.ETCD:
        return f"{named}: workers meet over etcd's v3 API, as with etcd" if policy.rdzv_backend is RdzvBackend.ETCD_V2 else ""
    if not policy.rdzv_host:
        return f"{named} and rdzvHost names no etcd; set rdzvHost and rdzvPort, or remove rdzvBackend to meet at the rendezvous server"
    why = obstacle_to_library(job) or "it began so, or this control plane delivers no library"
    return f"{named}: torch's own handler is used, which needs python-etcd in the image and the v2 interface of etcd, because {why}"
