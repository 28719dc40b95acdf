"""Keep an active job as it should be: count ends of pods, choose replicas, make and delete objects and pods, write the status.

The rules are in the modules that are imported here. This module puts them into order, as stages that add to one ledger.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from elastic.api.job import ElasticStatus, JobStatus, Object
from elastic.api.words import ConditionType
from elastic.kube.resources import PODS
from elastic_training.controller.deciding import autoscaling
from elastic_training.controller.deciding.actions import Action, Create, JobEvent, Plan
from elastic_training.controller.deciding.events import (
    in_words,
    of_early_end,
    of_missing_etcd,
    of_rescale,
    of_shortage,
    of_templates,
    shortage,
)
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import cleanup, collateral, disruption_log, failure, gang_restart
from elastic_training.controller.deciding.lifecycle.conditions import (
    has_begun,
    reason_of,
    with_condition,
    with_running_false,
    with_words_at_end,
    without_former_words,
)
from elastic_training.controller.deciding.lifecycle.doomed_pods import DoomedPods, doomed_pods
from elastic_training.controller.deciding.lifecycle.success import is_running
from elastic_training.controller.deciding.lifecycle.verdicts import Fate, Verdict
from elastic_training.controller.deciding.objects import hpa_trouble, pod_group
from elastic_training.controller.deciding.objects.differences import reconciled
from elastic_training.controller.deciding.objects.hpa import autoscaler, left_out
from elastic_training.controller.deciding.objects.pdb import disruption_budgets
from elastic_training.controller.deciding.objects.pods import pod_for
from elastic_training.controller.deciding.objects.services import services
from elastic_training.controller.deciding.rendezvous import (
    c10d_recovery,
    c10d_store,
    departures,
    etcd,
    failing_saves,
    hangs,
    host_list,
    latecomers,
    lost_state,
    readiness,
    straggler_replacement,
    stragglers,
    worker_library,
    world_status,
)
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.deciding.replicas import (
    creation_backoff,
    loss_backoff,
    missing_workers,
    node_numbers,
    pod_revision,
    spare_workers,
)
from elastic_training.controller.deciding.replicas.replica_plan import ReplicaPlan, ReplicaSlot, plan_replicas
from elastic_training.controller.deciding.replicas.replica_statuses import replica_statuses
from elastic_training.controller.facts.snapshot import Pod
from elastic_training.controller.frameworks import FRAMEWORKS


@dataclass(frozen=True, slots=True)
class Ledger:
    """Entries of one round: the choices made at its start, and the entries that the stages have added so far."""

    known: ElasticStatus
    """status.elastic before this round."""
    lost: tuple[Verdict, ...]
    """Ends of pods that are made again."""
    replicas: ReplicaPlan
    stale: tuple[Pod, ...]
    doomed: DoomedPods
    made: tuple[ReplicaSlot, ...]
    """The missing pods that are made now. The others wait."""
    elastic: ElasticStatus
    status: JobStatus
    restarts: tuple[JobEvent, ...] = ()
    objects: tuple[Action, ...] = ()

    @property
    def going(self) -> list[Pod]:
        """The pods to delete.

        A failed pod is deleted only once the stored status counts it, so that a crash neither loses its end nor counts it twice.
        """
        counted = frozenset(self.known.counted)
        replaced = [verdict.pod for verdict in self.lost if verdict.pod.uid in counted]
        return [*replaced, *self.replicas.to_delete, *self.doomed.may_go]


class PlanStage(NamedTuple):
    """A step of the round. after: the stages whose entries it reads."""

    name: str
    enter: Callable[[JobView, Ledger], Ledger]
    after: tuple[str, ...] = ()


def keep_running(view: JobView) -> Plan:
    """Count failed pods, then make them again; make missing replicas, and delete surplus ones."""
    ledger = opened(view)
    for stage in STAGES:
        ledger = stage.enter(view, ledger)
    return closed(view, ledger)


def opened(view: JobView) -> Ledger:
    """Return the ledger with the choices that depend on the view alone."""
    replicas = plan_replicas(view)
    known = view.status.elastic or ElasticStatus()
    return Ledger(
        known=known,
        lost=tuple(verdict for verdict in view.verdicts if verdict.fate is Fate.AGAIN),
        replicas=replicas,
        stale=tuple(pod_revision.stale_pods(view)),
        doomed=doomed_pods(view),
        made=tuple(creation_backoff.made_now(view, replicas.missing)),
        elastic=known,
        status=view.status,
    )


def _ends(view: JobView, ledger: Ledger) -> Ledger:
    """Count the ends of pods, and add an Event about each pod that is created again."""
    fresh = (verdict for verdict in ledger.lost if verdict.pod.uid not in ledger.known.counted)
    restarts = tuple(failure.restart_event(view.job, verdict) for verdict in fresh)
    return replaced(ledger, elastic=failure.with_ends_counted(view), restarts=restarts)


def _world(view: JobView, ledger: Ledger) -> Ledger:
    """Enter the state of the rendezvous, or of the group that restarts as a whole, and the autoscaler's decision."""
    elastic = autoscaling.recorded(view.job, _with_rendezvous(view, ledger.elastic, ledger.replicas, ledger.doomed, ledger.lost))
    restarts = ledger.restarts
    if not restarts and view.restarts_as_a_whole:
        restarts = tuple(gang_restart.gang_restart_events(view.job, elastic))
    return replaced(ledger, elastic=elastic, restarts=restarts)


def _disruptions(view: JobView, ledger: Ledger) -> Ledger:
    """Enter the announced disruptions of the workers that leave, and the losses that explain failures of others."""
    return replaced(ledger, elastic=collateral.recorded(view, disruption_log.recorded(view, ledger.known, ledger.elastic)))


def _objects(view: JobView, ledger: Ledger) -> Ledger:
    """Choose the changes of objects other than the replicas' pods and services."""
    changes = reconciled(view.snapshot, list(_wanted_objects(view)), managed=cleanup.ACTIVE_ONLY)
    return replaced(ledger, objects=tuple(creation_backoff.without_waiting(changes, view.status, view.snapshot.now)))


def _losses(view: JobView, ledger: Ledger) -> Ledger:
    """Enter the pods that are made now. A place that loses all its new pods waits between tries."""
    store = [(loss_backoff.STORE, 0) for action in ledger.objects if isinstance(action, Create) and action.resource == PODS]
    # A pod that goes with its node is lost to it, also if we delete it.
    parted = [*ledger.stale, *(pod for pod in ledger.replicas.to_delete if pod.name not in view.notices)]
    return replaced(ledger, elastic=loss_backoff.with_made(view, ledger.elastic, [*ledger.made, *store], parted=parted))


def _conditions(view: JobView, ledger: Ledger) -> Ledger:
    """Write the status: counts, conditions, and the reasons for which the job waits."""
    held = creation_backoff.types_held_back(view, ledger.replicas.missing, ledger.made)
    pause = _pause_in_words(view, held=held)
    is_apart = gang_restart.is_apart(view, ledger.elastic)
    status = _with_conditions(view, restarting=ledger.restarts, is_apart=is_apart, pause=pause)
    elastic = replace(ledger.elastic, waits_for=missing_workers.in_words(view, held=held), waiting=pause)
    return replaced(ledger, elastic=elastic, status=replace(status, elastic=elastic) if elastic != ledger.known else status)


STAGES = (
    PlanStage("ends", _ends),
    PlanStage("world", _world, after=("ends",)),
    PlanStage("disruptions", _disruptions, after=("world",)),
    PlanStage("objects", _objects),
    PlanStage("losses", _losses, after=("ends", "objects")),
    PlanStage("conditions", _conditions, after=("world", "disruptions", "losses")),
)


def closed(view: JobView, ledger: Ledger) -> Plan:
    """Return the plan: the actions, the status, the Events, and the time to look again."""
    job, known, elastic, replicas = view.job, ledger.known, ledger.elastic, ledger.replicas
    going = [*ledger.going, *ledger.stale]
    ready = readiness.of_workers(view, going=going)
    news = (
        *view.news,
        *(_first_pod_events(view) if replicas.missing else ()),
        *ledger.restarts,
        *of_rescale(job, known=known, new=elastic),
        *of_early_end(job, known=known, new=elastic),
        *of_shortage(job, view.counts),
        *disruption_log.events(job, known=known, new=elastic),
        *hangs.events(job, known=known, new=elastic, snapshot=view.snapshot),
        *stragglers.events(job, known=known, new=elastic),
        *failing_saves.events(job, known=known, new=elastic),
        *of_missing_etcd(etcd.missing(view)),
    )
    marks = spare_workers.marks(view, going=going, leaving=replicas.leaving)
    actions = (*_actions(view, ledger), *ready.changes, *marks)
    return Plan(actions, ledger.status, news, _next_look(view, replicas, ready, ledger.doomed))


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


def _actions(view: JobView, ledger: Ledger) -> Iterator[Action]:
    yield from ledger.replicas.expectations
    yield from ledger.objects
    yield from cleanup.deletions(ledger.going)
    yield from cleanup.deletions(list(ledger.stale), makes_room=True)
    yield from services(view, ledger.replicas.filled)
    for pod in node_numbers.numbered(view, (pod_for(view, type, index) for type, index in ledger.made)):
        yield Create(PODS, pod)


def _wanted_objects(view: JobView) -> Iterator[Object]:
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
    yield from left_out(job)
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

    A group being restarted is not Running even if some of its pods still are. Nor is a group with fewer workers than it needs. A job that
    has not begun stays as it is while its first pods start. `pause` says what the job waits for.
    """
    job, now = view.job, view.snapshot.now
    status = replace(view.status, replica_statuses=replica_statuses(job, view.counts))
    is_active = not is_apart and is_running(job, view.counts)
    missing = missing_workers.obstacles_in_words(view)
    remarks = in_words(job, view.snapshot) + (f" Missing {missing}." if missing else "") + pause
    waits = shortage(job, view.counts)
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
        straggler_replacement.look_again_at(view),
        creation_backoff.next_try(view.status, now),
        hpa_trouble.look_again_at(view.job, view.snapshot),
    )
    return min((moment for moment in moments if moment is not None), default=None)
