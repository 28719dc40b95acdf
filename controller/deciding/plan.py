"""Decides what to do about one job: one look at everything, one plan. Read `plan` as the table of contents of a job's life.
Pure: no clock, no I/O. Whoever carries the plan out may fail half-way; the next look starts from what is really there.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from controller.deciding import compat
from controller.deciding.actions import Create, Forget, JobEvent, Plan, normal, warning
from controller.deciding.events import (
    in_words,
    of_membership,
    of_pods,
    of_remarks,
    of_rescale,
    of_shortage,
    of_strays,
    of_templates,
    shortage,
)
from controller.deciding.job_view import JobView, booked, called, counted, derive
from controller.deciding.lifecycle import cleanup, failure, gang_restart, suspension, termination
from controller.deciding.lifecycle.conditions import (
    has_begun,
    is_over,
    reason_of,
    with_condition,
    with_running_false,
    with_words_at_end,
)
from controller.deciding.lifecycle.lost_nodes import with_lost_given_up
from controller.deciding.lifecycle.success import is_running
from controller.deciding.objects import pod_group
from controller.deciding.objects.differences import reconciled
from controller.deciding.objects.hpa import autoscaler, left_out
from controller.deciding.objects.pdb import disruption_budget
from controller.deciding.objects.pods import pod_for
from controller.deciding.objects.services import services
from controller.deciding.rendezvous import c10d_recovery, membership
from controller.deciding.rendezvous.c10d_store import store_deleted, store_objects, unguarded
from controller.deciding.replicas import creation_backoff, pod_revision
from controller.deciding.replicas.replica_plan import plan_replicas
from controller.deciding.replicas.tally import replica_statuses
from controller.frameworks import FRAMEWORKS
from controller.watching.snapshot import Snapshot
from elastic.api.job import ElasticStatus, Job, JobStatus, Object
from elastic.api.words import ConditionType, ManagedBy, RdzvBackend
from elastic.kube.resources import PODS


def plan(job: Job, snapshot: Snapshot) -> Plan:
    snapshot = compat.as_chosen(job, snapshot)
    planned = with_lost_given_up(job, snapshot, _planned(job, snapshot))
    return dataclasses.replace(planned, is_strict=snapshot.settings.strict)


def _planned(job: Job, snapshot: Snapshot) -> Plan:
    if job.run_policy.managed_by is ManagedBy.MULTIKUEUE or job.metadata.deletion_timestamp is not None:
        return Plan()
    if is_over(job.status):
        return cleanup.over(job, snapshot)
    status = _accepted(job, snapshot)
    if job.run_policy.suspend:
        return _written_down(job, snapshot, status) or suspension.suspended(job, snapshot, status, ())
    if pod_group.is_waiting(job, snapshot):
        return Plan(tuple(reconciled(snapshot, list(pod_group.pod_group(job, snapshot)), managed=())), status)
    status, news = suspension.resumed(job, status, snapshot.now)
    if status.start_time is None:
        status = replace(status, start_time=snapshot.now)
    news = (*news, *of_remarks(snapshot), *of_membership(snapshot), *of_pods(job, snapshot.pods), *of_strays(snapshot.left_behind))
    news = (*news, *creation_backoff.events(job, snapshot))
    status = creation_backoff.noted(job, snapshot, status)
    view = derive(job, creation_backoff.with_waiting(snapshot, status), status, news)
    return (
        termination.succeeded(view)
        or termination.finalize_failure(view)
        or termination.deadline_exceeded(view)
        or _elsewhere(view)
        or _met_anew(view)
        or termination.failed(view)
        or _active(view)
    )


def _written_down(job: Job, snapshot: Snapshot, status: JobStatus) -> Plan | None:
    """Restarts that only the rendezvous server knows, before it is told to forget them."""
    known = status.elastic or ElasticStatus()
    if snapshot.world is None or (elastic := booked(job, snapshot, known, leaving=known.leaving)).restarts == known.restarts:
        return None
    return Plan(status=replace(status, elastic=elastic))


def _accepted(job: Job, snapshot: Snapshot) -> JobStatus:
    message = f"{job.kind.name} {job.metadata.name} is created.{in_words(job, snapshot)}"
    if job.status.condition(ConditionType.CREATED.value):
        return job.status
    return with_condition(job.status, ConditionType.CREATED, reason=reason_of(job, "Created"), message=message, now=snapshot.now)


def _elsewhere(view: JobView) -> Plan | None:
    """A worker's image cannot take our library: the group is made anew with c10d, and none of it is held against the job."""
    job = view.job
    if view.backend is not membership.RendezvousBackend.OURS or not (reason := membership.undeliverable(job, view.snapshot.pods)):
        return None
    message = f"{job.kind.name} {job.metadata.name} is made anew with c10d, because its image cannot take the library: {reason}"
    elastic = replace(view.status.elastic or ElasticStatus(), backend=RdzvBackend.C10D.value, leaving=())
    return Plan((Forget(),), replace(view.status, elastic=elastic), (*view.news, warning("OtherRendezvous", message)))


def _met_anew(view: JobView) -> Plan | None:
    """A loss has made torch close its rendezvous: without the store the group is made anew, and none of it is held against the job."""
    job, snapshot = view.job, view.snapshot
    pod = c10d_recovery.gave_up_after_loss(job, snapshot) if view.backend is membership.RendezvousBackend.STORE else None
    if pod is None:
        return None
    elastic = c10d_recovery.restart_on_fresh_store(view.status.elastic or ElasticStatus(), snapshot)
    message = f"{job.kind.name} {job.metadata.name} meets anew at a fresh store, because the agent of {pod.name} gave up after a loss."
    told = normal("FreshRendezvous", message, about=elastic.last_rescale.id if elastic.last_rescale else "")
    return Plan(tuple(store_deleted(job, snapshot)), replace(view.status, elastic=elastic), (*view.news, told))


def _active(view: JobView) -> Plan:
    """Keeps the job as it should be: lost pods are counted, then replaced; places are filled; surplus goes."""
    job, snapshot = view.job, view.snapshot
    elastic = counted(view)
    known = view.status.elastic or ElasticStatus()
    again = [v for v in view.verdicts if v.fate is failure.Fate.AGAIN]
    restarts = tuple(failure.restart_event(job, v) for v in again if v.pod.uid not in known.counted)
    replicas = plan_replicas(job, snapshot, known.leaving)
    held_back, now = creation_backoff.held_back(view.status, snapshot.now), snapshot.now
    # A pod is deleted only when its end stands in the status, so that no crash in between makes it count twice, or never.
    replaced = [v.pod for v in again if v.pod.uid in known.counted]
    actions = [
        *replicas.expectations,
        *creation_backoff.without_waiting(reconciled(snapshot, _objects(job, snapshot), managed=cleanup.ACTIVE_ONLY), view.status, now),
        *cleanup.deletions([*replaced, *replicas.surplus, *pod_revision.stale_pods(job, snapshot)]),
        *services(job, snapshot, replicas.filled),
        *(Create(PODS, pod_for(job, type, index, snapshot)) for type, index in replicas.missing if type not in held_back),
    ]
    match view.backend:
        case membership.RendezvousBackend.OURS:
            elastic = booked(job, snapshot, elastic, leaving=replicas.leaving)
        case membership.RendezvousBackend.STORE:
            elastic = c10d_recovery.with_c10d_world(job, snapshot, elastic, replicas.surplus)
        case membership.RendezvousBackend.NONE if gang_restart.restarts_as_a_whole(job, snapshot):
            elastic = gang_restart.with_gang_restart(job, snapshot, elastic, next((v for v in again if not v.is_refused), None))
            restarts = restarts or tuple(gang_restart.gang_restart_events(job, elastic))
    status = _shown(view, restarting=restarts, is_apart=gang_restart.is_apart(job, snapshot, elastic))
    if elastic != (known if view.status.elastic else None) and elastic != ElasticStatus():
        status = replace(status, elastic=elastic)
    at_first = tuple(_at_first(job, snapshot)) if replicas.missing else ()
    news = (*view.news, *at_first, *restarts, *of_rescale(job, known=known, new=elastic), *of_shortage(job, view.counts))
    moments = (
        view.deadline,
        membership.next_deadline(replicas.leaving, now=snapshot.now),
        gang_restart.pause_until(job, snapshot),
        creation_backoff.next_try(view.status, snapshot.now),
    )
    return Plan(tuple(actions), status, news, min((moment for moment in moments if moment is not None), default=None))


def _at_first(job: Job, snapshot: Snapshot) -> Iterator[JobEvent]:
    """What a user should know about the pods that are about to be made."""
    yield from of_templates(job)
    yield from pod_group.of_schedulers(job, snapshot.settings)
    yield from left_out(job, snapshot.settings)
    yield from membership.elsewhere(job, snapshot)
    if membership.backend_in_use(job, snapshot) is membership.RendezvousBackend.STORE:
        yield from unguarded(job)


def _objects(job: Job, snapshot: Snapshot) -> list[Object]:
    """What an active job has beside pods and services, in the order it should be made."""
    return [
        *pod_group.pod_group(job, snapshot),
        *FRAMEWORKS[job.kind.name].objects(job, snapshot),
        *membership.secret(job, snapshot),
        *(store_objects(job, snapshot) if membership.backend_in_use(job, snapshot) is membership.RendezvousBackend.STORE else ()),
        *autoscaler(job, snapshot.settings),
        *disruption_budget(job, snapshot),
    ]


def _shown(view: JobView, *, restarting: Sequence[JobEvent], is_apart: bool) -> JobStatus:
    """Counts and the condition that follows from them. A group that falls apart does not run, whoever of it still does, nor one that is
    too small to train; but upstream says of it that it does, and a job that has not begun is as
    new while its pods start.
    """
    job, now, is_strict = view.job, view.snapshot.now, view.snapshot.settings.strict
    status = replace(view.status, replica_statuses=replica_statuses(job, view.counts))
    is_active, pause = not is_apart and is_running(job, view.counts), creation_backoff.in_words(view.status, view.snapshot)
    remarks = in_words(job, view.snapshot) + pause
    waits = "" if is_strict else shortage(job, view.counts)
    if is_active and not waits:
        message = f"{job.kind.name} {called(job)} is running.{remarks}"
        return with_condition(status, ConditionType.RUNNING, reason=reason_of(job, "Running"), message=message, now=now)
    if restarting:
        message = restarting[0].message + pause
        status = with_condition(status, ConditionType.RESTARTING, reason=reason_of(job, "Restarting"), message=message, now=now)
    has_no_room = any(pod.unscheduled for pod in view.snapshot.pods)
    if waits and (is_active or has_no_room or has_begun(status)):
        status = with_running_false(status, reason=reason_of(job, "Waiting"), message=f"{waits}{remarks}", now=now)
    return status if restarting else with_words_at_end(status, pause, mark=creation_backoff.WAITS, now=now)
