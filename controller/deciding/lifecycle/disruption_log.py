"""Write into a job's status which disruptions were announced, when, and what each cost. Nothing about them is decided here."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime

from msgspec.structs import replace

from elastic.api.book import MOST_MILLISECONDS, Disruption, Leaving
from elastic.api.counting import asked_to_save, counted
from elastic.api.job import ElasticStatus, Job
from elastic.api.words import LEFT, TAKEN_BACK, Cause
from elastic.signals.signal import Meaning
from elastic_training.controller.deciding.actions import JobEvent, normal, warning
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle.end_reasons import ended_by, is_refused
from elastic_training.controller.deciding.moments import FIRST, after
from elastic_training.controller.deciding.rendezvous.backend import RendezvousBackend
from elastic_training.controller.facts.snapshot import Pod, PodPhase

MOST = 16
RESCALED_WITHIN_S = 60.0
"""A rescale so soon after the last worker had gone is taken for that disruption's."""
Place = tuple[str, str]
"""A signal and a node."""


def recorded(view: JobView, before: ElasticStatus, new: ElasticStatus) -> ElasticStatus:
    """Return the status with the disruptions that have begun, ended, or cost something since."""
    pods = {pod.name: pod for pod in view.snapshot.pods}
    now, going, standing = view.snapshot.now, _going(view, new.leaving, pods), _standing(view, new.leaving, pods)
    entries = [
        entry if (entry.signal, entry.node) in standing - going.keys() else _continued(entry, going, _outcome(entry, before, view), now=now)
        for entry in new.disruptions
    ]
    unsaved = {(entry.signal, pods[entry.member].node) for entry in new.leaving if entry.asked_to_save and entry.member in pods}
    entries = [_with_cost(_asked_to_save(entry, unsaved, now=now), before, new, now=now) for entry in _with_new(entries, going, now=now)]
    return replace(new, disruptions=tuple(_bounded(entries)))


def suspended(view: JobView, known: ElasticStatus) -> ElasticStatus:
    """Return the status of a suspended job, in which earlier announcements have ended.

    If a signal names the program that suspends it, the suspension is a disruption until all pods have ended.
    """
    now, running = view.snapshot.now, [pod for pod in view.snapshot.pods if pod.phase is PodPhase.RUNNING]
    signals = [sight.signal for sight in view.snapshot.sights if sight.signal.meaning is not Meaning.INFORM] if running else []
    going: dict[Place, list[datetime | None]] = {(signal.name, ""): [None] * len(running) for signal in signals[:1]}
    entries = _with_new([_continued(entry, going, LEFT, now=now) for entry in known.disruptions], going, now=now)
    return replace(known, disruptions=tuple(_bounded(entries)))


def _with_new(entries: list[Disruption], going: Mapping[Place, list[datetime | None]], *, now: datetime) -> list[Disruption]:
    lasting = {(entry.signal, entry.node) for entry in entries if entry.ended_at is None}
    return [*entries, *(_begun(place, bys, now=now) for place, bys in going.items() if place not in lasting)]


def _going(view: JobView, leaving: Iterable[Leaving], pods: Mapping[str, Pod]) -> dict[Place, list[datetime | None]]:
    """Return by when each worker must have gone, by signal and node.

    Without our rendezvous no worker is asked to leave, so the signals themselves count. A deletion does not tell there why the pod goes.
    Some pods show only after they have failed which signal ended them.
    """
    found: dict[Place, list[datetime | None]] = {}
    asked = {entry.member: entry for entry in leaving}
    for entry in leaving:
        if entry.cause == Cause.DISRUPTION.value and entry.signal and entry.member in pods:
            found.setdefault((entry.signal, pods[entry.member].node), []).append(entry.by)
    if not (view.sees_members or view.backend is RendezvousBackend.HOSTS):
        for name, notice in view.notices.items():
            if name not in asked and not pods[name].is_deleting:
                found.setdefault((notice.signal, pods[name].node), []).append(notice.by)
    for pod in pods.values():
        signal = ended_by(pod) if pod.phase is PodPhase.FAILED and not pod.is_deleting and not is_refused(pod) else None
        if signal is not None and pod.name not in asked:
            found.setdefault((signal.name, pod.node), []).append(None)
    return found


def _standing(view: JobView, leaving: Iterable[Leaving], pods: Mapping[str, Pod]) -> set[Place]:
    """Return all signals of workers that go, also the less urgent ones: a disruption lasts until its own signal ends."""
    names = {entry.member for entry in leaving if entry.cause == Cause.DISRUPTION.value} | view.notices.keys()
    going = [(pod, view.snapshot.nodes.get(pod.node)) for name in names if (pod := pods.get(name)) is not None]
    return {(sight.signal.name, pod.node) for pod, node in going for sight in (*pod.sights, *(node.sights if node is not None else ()))}


def _begun(place: Place, bys: list[datetime | None], *, now: datetime) -> Disruption:
    by = min((by for by in bys if by is not None), default=None)
    return Disruption(signal=place[0], node=place[1], workers=len(bys), noticed_at=now, by=by)


def _continued(entry: Disruption, going: Mapping[Place, list[datetime | None]], outcome: str, *, now: datetime) -> Disruption:
    if entry.ended_at is not None:
        return entry
    there = going.get((entry.signal, entry.node))
    if there is None:
        return replace(entry, ended_at=now, outcome=outcome)
    return replace(entry, workers=max(entry.workers, len(there)))


def _asked_to_save(entry: Disruption, unsaved: Collection[Place], *, now: datetime) -> Disruption:
    is_first = entry.ended_at is None and entry.asked_to_save_at is None and (entry.signal, entry.node) in unsaved
    return replace(entry, asked_to_save_at=now) if is_first else entry


def _outcome(entry: Disruption, before: ElasticStatus, view: JobView) -> str:
    """Return TAKEN_BACK if all workers that the disruption concerns still work, else LEFT.

    A pod that comes back with its node after the others went on does not count.
    """
    names = {one.member for one in before.leaving if one.signal == entry.signal}
    here = [pod for pod in view.snapshot.pods if pod.node == entry.node and (not names or pod.name in names)]
    members = view.snapshot.world.members if view.snapshot.world is not None else frozenset()
    return TAKEN_BACK if here and all(pod.is_active and (not members or pod.name in members) for pod in here) else LEFT


def _with_cost(entry: Disruption, before: ElasticStatus, new: ElasticStatus, *, now: datetime) -> Disruption:
    last, former = new.last_rescale, before.last_rescale
    if last is None or last.cause != Cause.DISRUPTION.value:
        return entry
    is_new = former is None or former.id != last.id
    if is_new and (entry.ended_at is None or _awaits_rescale(entry, now)):
        entry = replace(entry, rescale=last.id)
    if entry.rescale != last.id:
        return entry
    return replace(
        entry,
        pause_milliseconds=max(0, min(sum(last.phases.values()), MOST_MILLISECONDS)),
        step_before=last.step_before,
        step_after=last.step_after,
        steps_lost=last.steps_lost,
        state_lost=last.state_lost,
    )


def _awaits_rescale(entry: Disruption, now: datetime) -> bool:
    """Return whether a rescale may follow: a pod that failed without notice is removed before the others work again."""
    return entry.outcome == LEFT and not entry.rescale and entry.ended_at is not None and now < after(entry.ended_at, RESCALED_WITHIN_S)


def _bounded(entries: list[Disruption]) -> list[Disruption]:
    """Return the newest entries. Entries that have ended go first."""
    surplus = len(entries) - MOST
    if surplus <= 0:
        return entries
    over = sorted(range(len(entries)), key=lambda index: (entries[index].ended_at is None, index))[:surplus]
    return [entry for index, entry in enumerate(entries) if index not in over]


def events(job: Job, *, known: ElasticStatus, new: ElasticStatus) -> Iterator[JobEvent]:
    """Return one Event for each disruption that was announced, and one if its workers had to save the state themselves."""
    before = {(entry.signal, entry.node, entry.noticed_at): entry for entry in known.disruptions}
    name = f"{job.kind.title} {job.metadata.name}"
    for entry in new.disruptions:
        former = before.get((entry.signal, entry.node, entry.noticed_at))
        where, about = f" on node {entry.node}" if entry.node else "", f"{entry.signal}/{entry.node}/{entry.noticed_at or FIRST:%H%M%S}"
        if former is None and entry.noticed_at is not None:
            by = f" by {entry.by:%H:%M:%S} UTC" if entry.by is not None else ""
            yield normal(
                "DisruptionAnnounced", f"{name}: signal {entry.signal}{where} concerns {counted(entry.workers, 'worker')}{by}.", about=about
            )
        if entry.asked_to_save_at is not None and (former is None or former.asked_to_save_at is None):
            words = asked_to_save(at=entry.asked_to_save_at, by=entry.by)
            yield warning("AskedToSave", f"{name}: signal {entry.signal}{where}: {words}.", about=about)
