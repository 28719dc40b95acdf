"""Decides what to do about one job: one look at everything, one plan. Read `plan` as the table of contents of a job's life.
Pure: no clock, no I/O. Whoever carries the plan out may fail half-way; the next look starts from what is really there.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec.structs import replace

from controller import aftermath, compat, ending, failure, gang, group, ledger, membership, regroup, suspension
from controller.actions import Create, Forget, News, Plan, normal, warning
from controller.conditions import is_over, reason_of, with_condition
from controller.crew import crew_of
from controller.frameworks import FRAMEWORKS
from controller.hpa import autoscaler, left_out
from controller.lost import with_lost_given_up
from controller.news import in_words, of_pods, of_remarks, of_rescale, of_shortage, of_templates, shortage
from controller.objects import reconciled
from controller.pdb import disruption_budget
from controller.pods import pod_for
from controller.replicas import Tally, replica_statuses, tally
from controller.services import services
from controller.snapshot import Pod, Snapshot
from controller.store import store_deleted, store_objects, unguarded
from controller.success import has_succeeded, is_running
from elastic.api.job import ElasticStatus, Job, JobStatus, Object
from elastic.api.words import ConditionType, ManagedBy, RdzvBackend
from elastic.kube.resources import PODS

NO_MORE_RESTARTS = "it has reached the specified backoff limit"
NO_MORE_TIME = "it was active longer than specified deadline"


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
    look = _look(job, snapshot, status, (*news, *of_remarks(snapshot), *of_pods(job, snapshot.pods)))
    return _succeeded(look) or _closing(look) or _too_late(look) or _elsewhere(look) or _met_anew(look) or _failed(look) or _active(look)


def _written_down(job: Job, snapshot: Snapshot, status: JobStatus) -> Plan | None:
    """Restarts that only the rendezvous server knows, before it is told to forget them."""
    known = status.elastic or ElasticStatus()
    if snapshot.world is None or (elastic := _booked(job, snapshot, known)).restarts == known.restarts:
        return None
    return Plan(status=replace(status, elastic=elastic))


def _booked(job: Job, snapshot: Snapshot, known: ElasticStatus) -> ElasticStatus:
    """The status with all that the rendezvous server tells of."""
    return ledger.dated(job, known=known, new=membership.shown(known, snapshot, known.leaving), now=snapshot.now)


@dataclass(frozen=True, slots=True)
class _Look:
    """What the rest of a round starts from."""

    job: Job
    snapshot: Snapshot
    status: JobStatus
    news: tuple[News, ...]
    place: membership.Place
    answerable: tuple[Pod, ...]
    """The pods whose end says something."""
    verdicts: tuple[failure.Verdict, ...]
    failed: frozenset[str]
    """The uids of pods that have failed for good."""

    @property
    def closed(self) -> str:
        """Why the job ends, where that is written down."""
        return self.status.elastic.closed if self.status.elastic is not None else ""

    @property
    def counts(self) -> Mapping[str, Tally]:
        return FRAMEWORKS[self.job.kind.name].shown(self.job, tally(self.job, self.snapshot.pods))

    @property
    def deadline(self) -> datetime | None:
        seconds, start = self.job.run_policy.active_deadline_seconds, self.status.start_time
        return None if seconds is None or start is None else start + timedelta(seconds=seconds)


def _look(job: Job, snapshot: Snapshot, status: JobStatus, news: tuple[News, ...]) -> _Look:
    orphans = {pod.uid for pod in group.orphans(job, snapshot)}
    answerable = tuple(pod for pod in snapshot.pods if pod.uid not in orphans)
    verdicts = failure.judge(job, answerable)
    failed = frozenset(verdict.pod.uid for verdict in verdicts if verdict.fate is not failure.Fate.AGAIN)
    if regroup.is_whole(job, snapshot):
        verdicts = regroup.decisive(verdicts)
    return _Look(job, snapshot, status, news, membership.place(job, snapshot), answerable, tuple(verdicts), failed)


def _accepted(job: Job, snapshot: Snapshot) -> JobStatus:
    message = f"{job.kind.name} {job.metadata.name} is created.{in_words(job, snapshot)}"
    if job.status.condition(ConditionType.CREATED.value):
        return job.status
    return with_condition(job.status, ConditionType.CREATED, reason=reason_of(job, "Created"), message=message, now=snapshot.now)


def _called(job: Job) -> str:
    """How upstream's messages call the job: by its name where a head decides, with its namespace where the workers do."""
    name = job.metadata.name
    return name if FRAMEWORKS[job.kind.name].head(job) and job.kind.name != "TFJob" else f"{job.metadata.namespace}/{name}"


def _succeeded(look: _Look) -> Plan | None:
    job = look.job
    if not has_succeeded(job, look.snapshot.pods, look.counts, failed=look.failed):
        return None
    named = _called(job)
    words = "successfully completed." if "/" in named else "is successfully completed."
    told = normal(reason_of(job, "Succeeded"), f"{job.kind.name} {named} {words}")
    status = ending.succeeded(job, look.status, look.counts, told, look.snapshot.now)
    return Plan(status=status, news=(*look.news, told))


def _closing(look: _Look) -> Plan | None:
    if not look.closed:
        return None
    if look.closed in (NO_MORE_RESTARTS, NO_MORE_TIME):
        return _ended(look, f"Job {look.job.metadata.name} has failed because {look.closed}")
    whose = "its group ended: " if look.place is membership.Place.OURS else ""
    return _ended(look, f"{look.job.kind.name} {look.job.metadata.name} is failed because {whose}{look.closed}")


def _too_late(look: _Look) -> Plan | None:
    if look.deadline is None or look.snapshot.now < look.deadline:
        return None
    return _noted(look, look.status.elastic or ElasticStatus(), NO_MORE_TIME)


def _ended(look: _Look, message: str) -> Plan:
    """The job is stopped from outside: everything it runs goes, and the counts stay as they last were."""
    status = ending.failed(look.job, look.status, message=message, now=look.snapshot.now)
    news = (*look.news, *ending.of_group(look.snapshot), normal(reason_of(look.job, "Failed"), message))
    return Plan(tuple(ending.everything_deleted(look.snapshot)), status, news, is_final=True)


def _elsewhere(look: _Look) -> Plan | None:
    """A worker's image cannot take our library: the group is made anew with c10d, and none of it is held against the job."""
    job = look.job
    if look.place is not membership.Place.OURS or not (reason := membership.undeliverable(job, look.snapshot.pods)):
        return None
    message = f"{job.kind.name} {job.metadata.name} is made anew with c10d, because its image cannot take the library: {reason}"
    elastic = replace(look.status.elastic or ElasticStatus(), backend=RdzvBackend.C10D.value, leaving=())
    return Plan((Forget(),), replace(look.status, elastic=elastic), (*look.news, warning("OtherRendezvous", message)))


def _met_anew(look: _Look) -> Plan | None:
    """A loss has made torch close its rendezvous: without the store the group is made anew, and none of it is held against the job."""
    job, snapshot = look.job, look.snapshot
    pod = aftermath.of_a_loss(job, snapshot) if look.place is membership.Place.STORE else None
    if pod is None:
        return None
    elastic = aftermath.met_anew(look.status.elastic or ElasticStatus(), snapshot)
    message = f"{job.kind.name} {job.metadata.name} meets anew at a fresh store, because the agent of {pod.name} gave up after a loss."
    told = normal("FreshRendezvous", message, about=elastic.last_rescale.id if elastic.last_rescale else "")
    return Plan(tuple(store_deleted(job, snapshot)), replace(look.status, elastic=elastic), (*look.news, told))


def _failed(look: _Look) -> Plan | None:
    """The rendezvous has given up, a pod failed for good, or the job's restarts are used up."""
    job, snapshot = look.job, look.snapshot
    if snapshot.world is not None and snapshot.world.closed:
        return _closed(look)
    fatal = [verdict for verdict in look.verdicts if verdict.fate is failure.Fate.FATAL]
    if fatal:
        return _failed_by(look, fatal)
    elastic = _counted(look)
    if failure.is_exhausted(job.run_policy.backoff_limit, failure.spent(job, look.answerable, elastic.restarts)):
        return _noted(look, elastic, NO_MORE_RESTARTS)
    if look.place is membership.Place.STORE and (reason := aftermath.given_up(job, snapshot)):
        return _noted(look, elastic, reason)
    spent = "" if look.place is membership.Place.OURS else ledger.beyond_budget(job, elastic, now=snapshot.now)
    return _noted(look, elastic, spent) if spent else None


def _noted(look: _Look, elastic: ElasticStatus, reason: str) -> Plan:
    """Why the job ends is written down before anything else is done: what shows it goes with the pods."""
    return Plan(status=replace(look.status, elastic=replace(elastic, closed=reason)), news=look.news)


def _closed(look: _Look) -> Plan:
    """The rendezvous has given up. That is written down before anything else is done: its server may be gone by the next look."""
    known = look.status.elastic or ElasticStatus()
    return Plan(status=replace(look.status, elastic=_booked(look.job, look.snapshot, known)), news=look.news)


def _counted(look: _Look) -> ElasticStatus:
    """The status with the ends of pods that are new in this look."""
    is_ours = look.place is membership.Place.OURS
    verdicts = [v for v in look.verdicts if not is_ours or membership.is_accounted(look.job, v.pod, look.snapshot)]
    counted = failure.counted(look.status, verdicts, look.snapshot.pods, is_ours=is_ours)
    return ledger.dated(look.job, known=look.status.elastic or ElasticStatus(), new=counted, now=look.snapshot.now)


def _failed_by(look: _Look, fatal: Sequence[failure.Verdict]) -> Plan:
    job, counts = look.job, look.counts
    type = fatal[0].type
    words = f"{_called(job)} has" if job.kind.name == "TFJob" else f"{job.metadata.name} is"
    message = f"{job.kind.name} {words} failed because {counts[type].failed} {type} replica(s) failed."
    reason = FRAMEWORKS[job.kind.name].failed_reason
    told = normal(reason_of(job, reason), message)
    if failure.by_exit_code(job, fatal[0]):
        message = f'job "{job.metadata.name}" is failing because "{type}" replica(s) failed.'
        told = warning(reason_of(job, reason), message)
    status = replace(look.status, replica_statuses=replica_statuses(job, counts))
    failed = ending.failed(job, status, message=message, now=look.snapshot.now, reason=reason)
    return Plan(status=failed, news=(*look.news, told))


def _active(look: _Look) -> Plan:
    """Keeps the job as it should be: lost pods are counted, then replaced; places are filled; surplus goes."""
    job, snapshot = look.job, look.snapshot
    elastic = _counted(look)
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
            shown = membership.shown(elastic, snapshot, crew.leaving)
            elastic = ledger.dated(job, known=elastic, new=shown, now=snapshot.now)
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


def _shown(look: _Look, *, restarting: Sequence[News], is_apart: bool) -> JobStatus:
    """Counts and the condition that follows from them; a group that falls apart does not run, whoever of it still does."""
    job, now = look.job, look.snapshot.now
    status = replace(look.status, replica_statuses=replica_statuses(job, look.counts))
    if not is_apart and is_running(job, look.counts):
        message = f"{job.kind.name} {_called(job)} is running.{shortage(job, look.counts)}{in_words(job, look.snapshot)}"
        return with_condition(status, ConditionType.RUNNING, reason=reason_of(job, "Running"), message=message, now=now)
    if restarting:
        message = restarting[0].message
        return with_condition(status, ConditionType.RESTARTING, reason=reason_of(job, "Restarting"), message=message, now=now)
    return status
