"""Write into a job's status why no step comes, and report a suspected hang with an Event."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from elastic.api.book import Hang, HangPod, HangRanks
from elastic.api.job import ElasticStatus, Job
from elastic.membership.bounds import clipped
from elastic.membership.hang_status import words_at
from elastic.membership.phases import WorldPhase
from elastic_training.controller.deciding.actions import JobEvent, normal, warning
from elastic_training.controller.facts.hang_seen import HangSeen
from elastic_training.controller.facts.snapshot import Pod, Snapshot
from elastic_training.rendezvous.engine.doing_words import sentence, spans
from elastic_training.rendezvous.engine.messages.doing import HangState, RanksDoing

RESUMED = "TrainingMoves"


def recorded(status: ElasticStatus, snapshot: Snapshot) -> ElasticStatus:
    """Return the status with the hang that the rendezvous server has found."""
    seen = snapshot.world.hang if snapshot.world is not None else None
    found = _entry(seen, snapshot.pods) if seen is not None else None
    return replace(status, hang=found) if found != status.hang else status


def events(job: Job, *, known: ElasticStatus, new: ElasticStatus, snapshot: Snapshot) -> Iterator[JobEvent]:
    """Yield an Event when a hang is first suspected, and an Event when its training goes on, but none when the job restarts or ends."""
    now, is_at_work = snapshot.now, snapshot.world is not None and snapshot.world.phase == WorldPhase.RUNNING
    name, was_suspected = f"{job.kind.title} {job.metadata.name}", _is_suspected(known.hang)
    if new.hang is not None and _is_suspected(new.hang) and not was_suspected:
        words = f"{name} may hang: {words_at(new.hang, now)}. `elastic stacks {job.metadata.name}` shows what each rank does"
        yield warning(HangState.SUSPECTED.value, words, about=f"{new.generation}/{new.hang.since}")
    elif was_suspected and is_at_work and not _is_suspected(new.hang) and new.generation == known.generation:
        assert known.hang is not None
        yield normal(RESUMED, f"{name} moves again", about=f"{known.generation}/{known.hang.since}")


def _is_suspected(hang: Hang | None) -> bool:
    return hang is not None and hang.state == HangState.SUSPECTED


def _entry(seen: HangSeen, pods: Sequence[Pod]) -> Hang:
    nodes = {pod.name: pod.node for pod in pods}

    def place_of(member: str) -> str:
        return f"{member} on {nodes[member]}" if nodes.get(member) else member

    return Hang(
        state=seen.hang.state.value,
        since=_before(seen.at, seen.hang.since_s),
        reports_steps=seen.hang.has_stepped,
        message=clipped(sentence(seen.hang, place_of=place_of, later_s=None)),
        ranks=tuple(_ranks(group, seen.at, nodes) for group in seen.hang.groups),
    )


def _ranks(group: RanksDoing, at: datetime, nodes: Mapping[str, str]) -> HangRanks:
    doing = group.doing
    return HangRanks(
        ranks=spans(group),
        count=group.count,
        pods=tuple(HangPod(name=name, node=nodes.get(name, "")) for name in group.members),
        kind=doing.kind.value,
        does=doing.does,
        place=doing.place,
        code=doing.code,
        since=_before(at, doing.for_s) if group.is_still else None,
    )


def _before(at: datetime, seconds: float) -> datetime:
    """Return the time in whole seconds, rounded up: the time that has passed since is told with the words `at least`."""
    exact = at - timedelta(seconds=seconds)
    return exact.replace(microsecond=0) + timedelta(seconds=bool(exact.microsecond))
