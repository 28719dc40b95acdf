"""Decides what to do about one job: one look at everything, one plan. Read `plan` as the table of contents of a job's life.
Pure: no clock, no I/O. Whoever carries the plan out may fail half-way; the next look starts from what is really there.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from controller import aftermath, compat, ending, failure, finish, gang, group, membership, regroup, suspension
from controller.actions import Create, Forget, News, Plan, normal, warning
from controller.conditions import is_over, reason_of, with_condition
from controller.crew import crew_of
from controller.frameworks import FRAMEWORKS
from controller.hpa import autoscaler, left_out
from controller.look import Look, booked, called, counted, look_at
from controller.lost import with_lost_given_up
from controller.news import in_words, of_pods, of_remarks, of_rescale, of_shortage, of_templates, shortage
from controller.objects import reconciled
from controller.pdb import disruption_budget
from controller.pods import pod_for
from controller.replicas import replica_statuses
from controller.services import services
from controller.snapshot import Snapshot
from controller.store import store_deleted, store_objects, unguarded
from controller.success import is_running
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
        return ending.over(job, snapshot)
    status = _accepted(job, snapshot)
    if job.run_policy.suspend:
        return _written_down(job, snapshot, status) or suspension.suspended(job, snapshot, status, ())
    if gang.is_waiting(job, snapshot):
        return Plan(tuple(reconciled(snapshot, list(gang.pod_group(job, snapshot)), managed=())), status)
    status, news = suspension.resumed(job, status, snapshot.now)
    if status.start_time is None:
        status = replace(status, start_time=snapshot.now)
    look = look_at(job, snapshot, status, (*news, *of_remarks(snapshot), *of_pods(job, snapshot.pods)))
    return (
        finish.succeeded(look)
        or finish.closing(look)
        or finish.too_late(look)
        or _elsewhere(look)
        or _met_anew(look)
        or finish.failed(look)
        or _active(look)
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


def _elsewhere(look: Look) -> Plan | None:
    """A worker's image cannot take our library: the group is made anew with c10d, and none of it is held against the job."""
    job = look.job
    if look.place is not membership.Place.OURS or not (reason := membership.undeliverable(job, look.snapshot.pods)):
        return None
    message = f"{job.kind.name} {job.metadata.name} is made anew with c10d, because its image cannot take the library: {reason}"
    elastic = replace(look.status.elastic or ElasticStatus(), backend=RdzvBackend.C10D.value, leaving=())
    return Plan((Forget(),), replace(look.status, elastic=elastic), (*look.news, warning("OtherRendezvous", message)))


def _met_anew(look: Look) -> Plan | None:
    """A loss has made torch close its rendezvous: without the store the group is made anew, and none of it is held against the job."""
    job, snapshot = look.job, look.snapshot
    pod = aftermath.of_a_loss(job, snapshot) if look.place is membership.Place.STORE else None
    if pod is None:
        return None
    elastic = aftermath.met_anew(look.status.elastic or ElasticStatus(), snapshot)
    message = f"{job.kind.name} {job.metadata.name} meets anew at a fresh store, because the agent of {pod.name} gave up after a loss."
    told = normal("FreshRendezvous", message, about=elastic.last_rescale.id if elastic.last_rescale else "")
    return Plan(tuple(store_deleted(job, snapshot)), replace(look.status, elastic=elastic), (*look.news, told))


def _active(look: Look) -> Plan:
    """Keeps the job as it should be: lost pods are counted, then replaced; places are filled; surplus goes."""
    job, snapshot = look.job, look.snapshot
    elastic = counted(look)
    known = look.status.elastic or ElasticStatus()
    again = [v for v in look.verdicts if v.fate is failure.Fate.AGAIN]
    restarts = tuple(failure.told(job, v) for v in again if v.pod.uid not in known.counted)
    crew = crew_of(job, snapshot, known.leaving)
    # A pod is deleted only when its end stands in the status, so that no crash in between makes it count twice, or never.
    replaced = [v.pod for v in again if v.pod.uid in known.counted]
    actions = [
        *crew.told,
        *reconciled(snapshot, _objects(job, snapshot), managed=ending.ACTIVE_ONLY),
        *ending.deletions([*replaced, *crew.parted, *group.strays(job, snapshot)]),
        *services(job, snapshot, crew.places),
        *(Create(PODS, pod_for(job, type, index, snapshot)) for type, index in crew.missing),
    ]
    match look.place:
        case membership.Place.OURS:
            elastic = booked(job, snapshot, elastic, leaving=crew.leaving)
        case membership.Place.STORE:
            elastic = aftermath.shown(job, snapshot, elastic)
        case membership.Place.NONE if regroup.is_whole(job, snapshot):
            elastic = regroup.shown(job, snapshot, elastic, next(iter(again), None))
            restarts = restarts or tuple(regroup.told(job, elastic))
    status = _shown(look, restarting=restarts, is_apart=regroup.is_apart(job, snapshot, elastic))
    if elastic != (known if look.status.elastic else None) and elastic != ElasticStatus():
        status = replace(status, elastic=elastic)
    at_first = tuple(_at_first(job, snapshot)) if crew.missing else ()
    news = (*look.news, *at_first, *restarts, *of_rescale(job, known=known, new=elastic), *of_shortage(job, look.counts))
    moments = (look.deadline, membership.next_deadline(crew.leaving, now=snapshot.now), regroup.pause_until(job, snapshot))
    return Plan(tuple(actions), status, news, min((moment for moment in moments if moment is not None), default=None))


def _at_first(job: Job, snapshot: Snapshot) -> Iterator[News]:
    """What a user should know about the pods that are about to be made."""
    yield from of_templates(job)
    yield from gang.of_schedulers(job, snapshot.settings)
    yield from left_out(job, snapshot.settings)
    yield from membership.elsewhere(job, snapshot)
    if membership.place(job, snapshot) is membership.Place.STORE:
        yield from unguarded(job)


def _objects(job: Job, snapshot: Snapshot) -> list[Object]:
    """What an active job has beside pods and services, in the order it should be made."""
    return [
        *gang.pod_group(job, snapshot),
        *FRAMEWORKS[job.kind.name].objects(job, snapshot),
        *membership.secret(job, snapshot),
        *(store_objects(job, snapshot) if membership.place(job, snapshot) is membership.Place.STORE else ()),
        *autoscaler(job, snapshot.settings),
        *disruption_budget(job, snapshot),
    ]


def _shown(look: Look, *, restarting: Sequence[News], is_apart: bool) -> JobStatus:
    """Counts and the condition that follows from them; a group that falls apart does not run, whoever of it still does."""
    job, now = look.job, look.snapshot.now
    status = replace(look.status, replica_statuses=replica_statuses(job, look.counts))
    if not is_apart and is_running(job, look.counts):
        message = f"{job.kind.name} {called(job)} is running.{shortage(job, look.counts)}{in_words(job, look.snapshot)}"
        return with_condition(status, ConditionType.RUNNING, reason=reason_of(job, "Running"), message=message, now=now)
    if restarting:
        message = restarting[0].message
        return with_condition(status, ConditionType.RESTARTING, reason=reason_of(job, "Restarting"), message=message, now=now)
    return status
