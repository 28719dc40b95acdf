"""Write into a job's status which ranks the others wait for, and report each of them with an Event."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from msgspec.structs import replace

from elastic.api.book import Straggler
from elastic.api.job import ElasticStatus, Job
from elastic.api.words import Stragglers
from elastic.membership.bounds import clipped
from elastic_training.controller.deciding.actions import JobEvent, normal, warning
from elastic_training.controller.facts.snapshot import Pod, Snapshot
from elastic_training.rendezvous.engine.messages import pace
from elastic_training.rendezvous.engine.pace_words import sentence


def recorded(job: Job, status: ElasticStatus, snapshot: Snapshot) -> ElasticStatus:
    """Return the status with the stragglers that the rendezvous server has found.

    A server that has just started does not know any yet. Until it does, known stragglers stay as long as their pods.
    """
    seen = snapshot.world.stragglers if snapshot.world is not None else None
    if job.elastic is None or job.elastic.stragglers is Stragglers.IGNORE:
        found: tuple[Straggler, ...] = ()
    elif seen is None:
        uids = {pod.uid for pod in snapshot.pods}
        found = tuple(one for one in status.stragglers if one.pod_uid in uids)
    else:
        found = tuple(_entries(seen, status.stragglers, snapshot))
    return replace(status, stragglers=found) if found != status.stragglers else status


def events(job: Job, *, known: ElasticStatus, new: ElasticStatus) -> Iterator[JobEvent]:
    """Yield an Event for each new straggler, and one for each that is fast again or gone."""
    name = f"{job.kind.name} {job.metadata.name}"
    before, now = {_about(one): one for one in known.stragglers}, {_about(one): one for one in new.stragglers}
    for about, one in now.items():
        if about not in before:
            yield warning("Straggler", f"{name}: {one.message}", about=about)
    for about, one in before.items():
        if about not in now and not any(_is_same(one, other) for other in new.stragglers):
            yield normal("StragglerRecovered", f"{name}: rank {one.rank} ({one.pod}) no longer holds up the others", about=about)


def _entries(seen: Sequence[pace.Straggler], known: Sequence[Straggler], snapshot: Snapshot) -> Iterator[Straggler]:
    pods = {pod.name: pod for pod in snapshot.pods}
    for one in seen:
        pod = pods.get(one.member)
        if pod is not None:
            entry = _entry(one, pod, snapshot)
            before = next((other for other in known if _is_same(entry, other) and other.kind == entry.kind), None)
            yield entry if before is None else replace(entry, since=before.since)


def _entry(seen: pace.Straggler, pod: Pod, snapshot: Snapshot) -> Straggler:
    place = f"{pod.name} on {pod.node}" if pod.node else pod.name
    return Straggler(
        rank=seen.rank,
        local_rank=seen.local_rank,
        pod=pod.name,
        pod_uid=pod.uid,
        node=pod.node,
        kind=seen.kind.value,
        percent=seen.percent,
        since=(snapshot.now - timedelta(seconds=seen.for_s)).replace(microsecond=0),
        message=clipped(sentence(seen, place_of=lambda _: place)),
    )


def _is_same(one: Straggler, other: Straggler) -> bool:
    """Return whether both are about one process. Its rank changes with the world."""
    return (one.pod_uid, one.local_rank) == (other.pod_uid, other.local_rank)


def _about(one: Straggler) -> str:
    return f"{one.pod_uid}/{one.local_rank}/{one.kind}/{one.since}"
