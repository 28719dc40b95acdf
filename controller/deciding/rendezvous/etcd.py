"""Derive from its spec what a job that meets in an etcd gets.

That is the endpoint, the settings of the backend elastic-etcd, the user's Secret with the login, and the place where the controller takes
part. Warnings for users come from here, and so does the fact that an agent has closed the rendezvous.
"""

import re

from elastic.api.job import Job
from elastic.api.names import RDZV_SECRET
from elastic.api.rendezvous_choice import ETCDS, members_of, obstacle_to_library
from elastic.api.words import RdzvBackend
from elastic.etcd.place import EtcdPlace
from elastic.membership.bounds import MOST_SECONDS
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import first_error, restart_accounting
from elastic_training.controller.deciding.lifecycle.conditions import WAITS
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend, backend_in_use
from elastic_training.controller.deciding.rendezvous.expectation import allowed_sizes
from elastic_training.controller.facts.settings import Settings
from elastic_training.rendezvous.delivery import has_closed

DEFAULT_PORT = 2379
MOST_RESTARTS = 10**9
"""The largest number that agents take."""
PREFIX = "/elastic-training"
INSTALL = (
    "set rdzvHost and rdzvPort, or add deploy/components/etcd to the installation, or on a laptop install Debian's etcd-server "
    "and restart the cluster (`elastic down`, `elastic up --detach`)"
)
OF_PLACE = ("etcd_prefix", "protocol", "cacert", "cert", "key")
"""Settings that the installation's etcd decides."""


def is_own(job: Job) -> bool:
    """Tell whether the job meets in the installation's etcd."""
    return job.elastic is not None and job.elastic.rdzv_backend in ETCDS and not members_of(job)


def endpoint(job: Job, settings: Settings) -> str:
    """Return the members of the etcd, each with a port."""
    assert job.elastic is not None
    if is_own(job):
        return ",".join(f"https://{member}" for member in settings.etcd)
    port = job.elastic.rdzv_port or DEFAULT_PORT
    return ",".join(member if re.search(r":\d+$", member) else f"{member}:{port}" for member in members_of(job))


def place(job: Job, settings: Settings) -> EtcdPlace:
    """Return the place where the controller takes part."""
    prefix, uid = f"{PREFIX}/{job.metadata.uid}/", job.metadata.uid
    if is_own(job):
        return EtcdPlace(endpoints=settings.etcd, prefix=prefix, is_tls=True, job=uid)
    chosen, named = dict(conf(job)), endpoint(job, settings).split(",")
    return EtcdPlace(
        endpoints=tuple(member.rpartition("//")[2].rstrip("/") for member in named),
        prefix=f"{chosen.get('etcd_prefix', PREFIX).rstrip('/')}/{uid}/",
        is_tls=chosen.get("protocol") == "https" or named[0].startswith("https://"),
        namespace=job.metadata.namespace,
        secret=secret_name(job),
    )


def conf(job: Job) -> list[tuple[str, str]]:
    """Return the settings of torchrun's --rdzv-conf: the user's own, and the job's limits if they name none."""
    assert job.elastic is not None
    limit, sizes = restart_accounting.budget_of(job.elastic).max_restarts, allowed_sizes(job, most=job.most_workers)
    is_dated = job.elastic.restart_budget is not None and job.elastic.restart_budget.window_seconds is not None
    ours = {
        "max_restarts": _number(limit if not is_dated else None),
        "allowed_sizes": ":".join(str(size) for size in sizes),
    }
    ours["grace"] = str(job.elastic.scale_in_grace_seconds)
    ours["hang_timeout"] = _number(job.elastic.hang_timeout_seconds, most=MOST_SECONDS)
    ours["max_restarts_without_progress"] = _number(job.elastic.max_restarts_without_progress)
    chosen = {entry.key: entry.value for entry in job.elastic.rdzv_conf if not (is_own(job) and entry.key in OF_PLACE)}
    return [(key, value) for key, value in (ours | chosen).items() if value]


def _number(limit: int | None, *, most: int = MOST_RESTARTS) -> str:
    """Write a limit as agents take it; cut a limit that nobody reaches."""
    return "" if limit is None else str(min(limit, most))


def secret_name(job: Job) -> str:
    """Return the name of the user's Secret with login and certificates for the etcd; empty without one."""
    return (job.elastic.rdzv_secret or job.metadata.annotations.get(RDZV_SECRET, "")) if job.elastic is not None else ""


def closed(view: JobView) -> str:
    """Say why the agents have closed the rendezvous for good, as a worker's container says; empty if none does."""
    if view.backend is not RendezvousBackend.ETCD:
        return ""
    for pod in view.snapshot.pods:
        for container in pod.containers:
            for message in (container.message, container.last_message):
                if reason := has_closed(message, view.job.metadata.uid):
                    return first_error.of_pod_named(view, reason)
    return ""


def awaits(view: JobView) -> bool:
    """Tell whether the first pods wait: at the installation's etcd a job's agents need its user, which the controller makes."""
    job, world = view.job, view.snapshot.world
    if view.backend is not RendezvousBackend.ETCD or not is_own(job) or view.snapshot.pods:
        return False
    return not view.snapshot.settings.etcd or world is None or not view.sees_members


def missing(view: JobView) -> str:
    """Say that the pods wait because the job asks for an etcd that does not exist, and what to do; empty for other jobs."""
    return _without_any(view.job) if awaits(view) and not view.snapshot.settings.etcd else ""


def _without_any(job: Job) -> str:
    return f"{_named(job)}, rdzvHost names no etcd, and this installation has none: {INSTALL}"


def _named(job: Job) -> str:
    backend = job.elastic.rdzv_backend if job.elastic is not None else None
    return f"elasticPolicy.rdzvBackend is {backend.value if backend is not None else ''}"


def wait_in_words(view: JobView) -> str:
    """Return the end of a condition's message while pods wait for an etcd."""
    if words := missing(view):
        return f"{WAITS}for an etcd: {words}."
    if not awaits(view) or view.snapshot.world is None:
        return ""
    return f"{WAITS}for the installation's etcd: {view.snapshot.world.trouble}."


def remark(job: Job, settings: Settings) -> str:
    """Say what users must know of a job that asks for an etcd; empty for other jobs."""
    policy = job.elastic
    if policy is None or policy.rdzv_backend not in ETCDS:
        return ""
    named = _named(job)
    if backend_in_use(job, settings) is RendezvousBackend.ETCD:
        return f"{named}: workers meet over etcd's v3 API, as with etcd" if policy.rdzv_backend is RdzvBackend.ETCD_V2 else ""
    if is_own(job) and not settings.etcd:
        return _without_any(job)
    why = obstacle_to_library(job) or "it began so, or this control plane delivers no library"
    return f"{named}: torch's own handler is used, which needs python-etcd in the image and the v2 interface of etcd, because {why}"
