"""Keeps an active job as it should be: counts ends of pods, chooses replicas, makes and deletes objects and pods, writes the status.

Its parts stand in the modules that they are imported from; this one only puts them into order.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from msgspec.structs import replace

from controller.deciding import autoscaling, compat
from controller.deciding.actions import Action, Create, JobEvent, Plan
from controller.deciding.events import in_words, of_missing_etcd, of_rescale, of_shortage, of_templates, shortage
from controller.deciding.job_view import JobView
from controller.deciding.lifecycle import cleanup, collateral, disruption_log, failure, gang_restart
from controller.deciding.lifecycle.conditions import (
    has_begun,
    reason_of,
    with_condition,
    with_running_false,
    with_words_at_end,
    without_former_words,
)
from controller.deciding.lifecycle.doomed_pods import DoomedPods, doomed_pods
from controller.deciding.lifecycle.success import is_running
from controller.deciding.lifecycle.verdicts import Fate, Verdict
from controller.deciding.objects import hpa_trouble, pod_group
from controller.deciding.objects.differences import reconciled
from controller.deciding.objects.hpa import autoscaler, left_out
from controller.deciding.objects.pdb import disruption_budgets
from controller.deciding.objects.pods import pod_for
from controller.deciding.objects.services import services
from controller.deciding.rendezvous import (
    c10d_recovery,
    c10d_store,
    departures,
    etcd,
    hangs,
    host_list,
    latecomers,
    lost_state,
    readiness,
    worker_library,
    world_status,
)
from controller.deciding.rendezvous.backend import RendezvousBackend
from controller.deciding.replicas import creation_backoff, loss_backoff, missing_workers, node_numbers, pod_revision, spare_workers
from controller.deciding.replicas.replica_plan import ReplicaPlan, plan_replicas
from controller.deciding.replicas.replica_statuses import replica_statuses
from controller.frameworks import FRAMEWORKS
from controller.watching.snapshot import Pod
from elastic.api.job import ElasticStatus, JobStatus, Object
from elastic.api.words import ConditionType
from elastic.kube.resources import PODS


def keep_running(view: JobView) -> Plan:
    """Failed pods are counted, then made again; missing replicas are made, and surplus ones deleted."""
    known = view.status.elastic or ElasticStatus()
    counted = frozenset(known.counted)
    lost = [verdict for verdict in view.verdicts if verdict.fate is Fate.AGAIN]
    replicas, stale, doomed = plan_replicas(view), pod_revision.stale_pods(view), doomed_pods(view)
    made = creation_backoff.made_now(view, replicas.missing)
    elastic = autoscaling.recorded(view.job, _with_rendezvous(view, failure.with_ends_counted(view), replicas, doomed, lost))
    elastic = collateral.recorded(view, disruption_log.recorded(view, known, elastic))
    objects = list(_object_changes(view))
    store = [(loss_backoff.STORE, 0) for action in objects if isinstance(action, Create) and action.resource == PODS]
    # A pod that goes with its node is lost to it, also if we delete it. A place that loses all its new pods so waits between tries.
    parted = [*stale, *(pod for pod in replicas.to_delete if pod.name not in view.notices)]
    elastic = loss_backoff.with_made(view, elastic, [*made, *store], parted=parted)
    restarts = tuple(failure.restart_event(view.job, verdict) for verdict in lost if verdict.pod.uid not in counted)
    if not restarts and view.restarts_as_a_whole:
        restarts = tuple(gang_restart.gang_restart_events(view.job, elastic))
    held = creation_backoff.types_held_back(view, replicas.missing, made)
    pause = _pause_in_words(view, held=held)
    status = _with_conditions(view, restarting=restarts, is_apart=gang_restart.is_apart(view, elastic), pause=pause)
    elastic = replace(elastic, waits_for=missing_workers.in_words(view, held=held), waiting=pause)
    if elastic != known:
        status = replace(status, elastic=elastic)
    # A pod is deleted only when its end stands in the status, so that no crash in between makes it count twice, or never.
    replaced = [verdict.pod for verdict in lost if verdict.pod.uid in counted]
    going = [*replaced, *replicas.to_delete, *doomed.may_go]
    ready = readiness.of_workers(view, going=[*going, *stale])
    first = _first_pod_events(view) if replicas.missing else ()
    news = (*view.news, *first, *restarts, *of_rescale(view.job, known=known, new=elastic), *of_shortage(view.job, view.counts))
    news = (
        *news,
        *disruption_log.events(view.job, known=known, new=elastic),
        *hangs.events(view.job, known=known, new=elastic, now=view.snapshot.now),
    )
    news = (*news, *of_missing_etcd(etcd.missing(view)))
    marks = spare_workers.marks(view, going=(*going, *stale), leaving=replicas.leaving)
    actions = (*_actions(view, replicas, objects, going=going, stale=stale), *ready.changes, *marks)
    return Plan(actions, status, news, _next_look(view, replicas, ready, doomed))


def _with_rendezvous(
    view: JobView, elastic: ElasticStatus, replicas: ReplicaPlan, doomed: DoomedPods, lost: Sequence[Verdict]
) -> ElasticStatus:
    """Return the status with what became of the rendezvous, or of the group that restarts as a whole."""
    match view.backend:
        case RendezvousBackend.OURS | RendezvousBackend.ETCD if view.sees_members:
            return world_status.recorded(view, elastic, leaving=replicas.leaving)
        case RendezvousBackend.HOSTS:
            return host_list.recorded(view, elastic, leaving=replicas.leaving)
        case RendezvousBackend.STORE:
            return c10d_recovery.with_c10d_world(view, elastic, replicas.surplus, doomed=doomed.leaving)
        case RendezvousBackend.ETCD:
            return replace(elastic, backend=view.backend.value, leaving=tuple(departures.still_leaving(view, elastic.leaving)))
        case RendezvousBackend.NONE:
            elastic = replace(elastic, leaving=doomed.leaving)
            if not view.restarts_as_a_whole:
                return elastic
            return gang_restart.with_gang_restart(view, elastic, next((v for v in lost if not v.is_refused), None))
    return elastic


def _object_changes(view: JobView) -> Iterator[Action]:
    objects = reconciled(view.snapshot, list(_objects(view)), managed=cleanup.ACTIVE_ONLY)
    return creation_backoff.without_waiting(objects, view.status, view.snapshot.now)


def _actions(view: JobView, replicas: ReplicaPlan, objects: Sequence[Action], *, going: list[Pod], stale: list[Pod]) -> Iterator[Action]:
    yield from replicas.expectations
    yield from objects
    yield from cleanup.deletions(going)
    yield from cleanup.deletions(stale, makes_room=True)
    yield from services(view, replicas.filled)
    made = (pod_for(view, type, index) for type, index in creation_backoff.made_now(view, replicas.missing))
    for pod in node_numbers.numbered(view, made):
        yield Create(PODS, pod)


def _objects(view: JobView) -> Iterator[Object]:
    """Yield the objects of an active job other than pods and services, in the order in which they are made."""
    job, snapshot = view.job, view.snapshot
    yield from pod_group.pod_group(job, snapshot)
    yield from FRAMEWORKS[job.kind.name].objects(view)
    yield from worker_library.secret(view)
    if view.backend is RendezvousBackend.STORE:
        yield from c10d_store.store_objects(job, snapshot)
    yield from autoscaler(job, snapshot)
    yield from disruption_budgets(view)


def _first_pod_events(view: JobView) -> Iterator[JobEvent]:
    """Yield the Events about the pods that are about to be made."""
    job, settings = view.job, view.snapshot.settings
    yield from of_templates(job, settings)
    yield from pod_group.of_schedulers(job, settings)
    yield from left_out(job, settings)
    yield from worker_library.events(view)
    if view.backend is RendezvousBackend.STORE:
        yield from c10d_store.unguarded(job)


def _pause_in_words(view: JobView, *, held: Collection[str]) -> str:
    """Return what the job waits for before it creates pods. `held` are the types of the pods that wait to be created."""
    return (
        creation_backoff.in_words(view.status, view.snapshot, held=held)
        + gang_restart.pause_in_words(view)
        + worker_library.wait_in_words(view)
        + etcd.wait_in_words(view)
    )


def _with_conditions(view: JobView, *, restarting: Sequence[JobEvent], is_apart: bool, pause: str) -> JobStatus:
    """Return the status with its counts and the condition that follows from them.

    A group being restarted is not Running even if some of its pods still are, nor is one with fewer workers than it needs, except in strict
    compatibility. A job that has not begun stays as it is while its first pods start. `pause` says what the job waits for.
    """
    job, now = view.job, view.snapshot.now
    status = replace(view.status, replica_statuses=replica_statuses(job, view.counts))
    is_active = not is_apart and is_running(job, view.counts)
    missing = missing_workers.obstacles_in_words(view)
    remarks = in_words(job, view.snapshot) + (f" Missing {missing}." if missing else "") + pause
    waits = shortage(job, view.counts) if compat.says_that_workers_are_missing(view.snapshot.settings) else ""
    if is_active and not waits:
        message = f"{job.kind.title} {FRAMEWORKS[job.kind.name].called(job)} is running.{remarks}"
        status = with_condition(status, ConditionType.RUNNING, reason=reason_of(job, "Running"), message=message, now=now)
        return without_former_words(status, now=now)
    if restarting:
        message = restarting[0].message + pause
        status = with_condition(status, ConditionType.RESTARTING, reason=reason_of(job, "Restarting"), message=message, now=now)
    has_no_room = any(pod.unscheduled for pod in view.snapshot.pods)
    if waits and (is_active or has_no_room or has_begun(status)):
        status = with_running_false(status, reason=reason_of(job, "Waiting"), message=f"{waits}{remarks}", now=now)
    status = without_former_words(status, now=now, kept=ConditionType.RUNNING)
    return status if restarting else with_words_at_end(status, pause, now=now)


def _next_look(view: JobView, replicas: ReplicaPlan, ready: readiness.Readiness, doomed: DoomedPods) -> datetime | None:
    """Return when time alone changes the plan."""
    now = view.snapshot.now
    moments = (
        view.deadline,
        ready.look_again_at,
        doomed.look_again_at,
        departures.next_deadline(view, replicas.leaving) if replicas.leaving else None,
        gang_restart.pause_until(view),
        latecomers.look_again_at(view),
        lost_state.look_again_at(view),
        creation_backoff.next_try(view.status, now),
        hpa_trouble.look_again_at(view.job, view.snapshot),
    )
    return min((moment for moment in moments if moment is not None), default=None)
