"""Derive the view of a job from the job and the snapshot of its cluster.

A view is derived before the first decision, and again when the job is active: then it has a start time, and pods that a node refused count
as pending.
"""

from dataclasses import replace

from msgspec import structs

from elastic.api.job import Job
from elastic_training.controller.deciding.events import of_limits, of_membership, of_pods, of_remarks, of_signals, of_strays
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import acceptance, collateral, failure, gang_restart, suspension
from elastic_training.controller.deciding.lifecycle.disruption import notices
from elastic_training.controller.deciding.lifecycle.verdicts import Fate
from elastic_training.controller.deciding.objects import hpa_trouble
from elastic_training.controller.deciding.rendezvous import c10d_recovery, straggler_replacement
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.replicas import creation_backoff, pod_revision
from elastic_training.controller.deciding.replicas.tally import tally
from elastic_training.controller.facts.snapshot import Snapshot
from elastic_training.controller.frameworks import FRAMEWORKS


def derive(job: Job, snapshot: Snapshot) -> JobView:
    backend = FRAMEWORKS[job.kind.name].backend(job, snapshot.settings)
    view = JobView(
        job=job,
        snapshot=snapshot,
        status=acceptance.accepted(job, snapshot),
        backend=backend,
        restarts_as_a_whole=gang_restart.restarts_as_a_whole(job),
        has_interchangeable_workers=_has_interchangeable_workers(job, backend),
        notices={
            **straggler_replacement.notices(job, snapshot, backend),
            **notices(snapshot, job.status.elastic.leaving if job.status.elastic is not None else ()),
        },
        answerable=(),
        verdicts=(),
        counted=frozenset(job.status.elastic.counted if job.status.elastic is not None else ()),
        failed=frozenset(),
        counts={},
    )
    return _with_ends(view)


def _has_interchangeable_workers(job: Job, backend: RendezvousBackend) -> bool:
    if job.elastic is None or not job.kind.native_elastic:
        return False
    return backend is not RendezvousBackend.NONE or FRAMEWORKS[job.kind.name].has_interchangeable_workers(job)


def activated(view: JobView) -> JobView:
    """Return the view of a job that may run: it has a start time, and its Events are due."""
    job, snapshot = view.job, view.snapshot
    status, news = suspension.resumed(job, view.status, snapshot.now)
    if status.start_time is None:
        status = structs.replace(status, start_time=snapshot.now)
    news = (
        *news,
        *of_remarks(snapshot),
        *of_membership(snapshot),
        *of_pods(job, snapshot.pods),
        *of_limits(snapshot),
        *of_strays(snapshot.left_behind),
    )
    news = (*news, *of_signals(job, snapshot), *creation_backoff.events(job, snapshot), *hpa_trouble.events(job, snapshot))
    status = creation_backoff.noted(job, snapshot, status)
    waiting = creation_backoff.with_waiting(snapshot, status)
    active = replace(view, snapshot=waiting, status=status, news=news)
    return active if waiting is snapshot else _with_ends(active)


def _with_ends(view: JobView) -> JobView:
    """Return the view with what its pods and their ends mean."""
    job, pods = view.job, view.snapshot.pods
    orphans = {pod.uid for pod in (*pod_revision.orphans(view), *c10d_recovery.shut_out(view))}
    answerable = tuple(pod for pod in pods if pod.uid not in orphans)
    view = replace(view, answerable=answerable)
    verdicts = failure.judge(job, answerable)
    view = replace(view, losses=collateral.losses(view, verdicts))
    verdicts = collateral.explained(view, verdicts)
    failed = frozenset(verdict.pod.uid for verdict in verdicts if verdict.fate is not Fate.AGAIN)
    if view.restarts_as_a_whole:
        verdicts = gang_restart.decisive(verdicts)
    counts = FRAMEWORKS[job.kind.name].displayed_counts(job, tally(job, pods))
    return replace(view, verdicts=tuple(verdicts), failed=failed, counts=counts)
