"""Write into a job's status why no step comes, and report a suspected hang with an Event."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from msgspec.structs import replace

from controller.deciding.actions import JobEvent, normal, warning
from controller.facts.hang_seen import HangSeen
from controller.facts.snapshot import Pod, Snapshot
from elastic.api.book import Hang, HangRanks
from elastic.api.job import ElasticStatus, Job
from elastic.membership.bounds import clipped
from rendezvous.engine.doing_words import sentence, spans
from rendezvous.engine.messages.doing import HangState, RanksDoing

RESUMED = "TrainingMoves"


def recorded(status: ElasticStatus, snapshot: Snapshot) -> ElasticStatus:
    """Return the status with what the rendezvous server found out about a standstill."""
    seen = snapshot.world.hang if snapshot.world is not None else None
    found = _entry(seen, snapshot.pods) if seen is not None else None
    return replace(status, hang=found) if found != status.hang else status


def events(job: Job, *, known: ElasticStatus, new: ElasticStatus) -> Iterator[JobEvent]:
    """Yield an Event when a hang is suspected, and one when training goes on after it."""
    name, was_suspected = f"{job.kind.name} {job.metadata.name}", _is_suspected(known.hang)
    if new.hang is not None and _is_suspected(new.hang) and not was_suspected:
        words = f"{name} may hang: {new.hang.message}. `elastic stacks {job.metadata.name}` shows what each rank does"
        yield warning(HangState.SUSPECTED.value, words, about=f"{new.generation}/{new.hang.since}")
    elif was_suspected and not _is_suspected(new.hang) and new.generation == known.generation:
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
        since=(seen.at - timedelta(seconds=seen.hang.since_s)).replace(microsecond=0),
        message=clipped(sentence(seen.hang, place_of=place_of)),
        ranks=tuple(_ranks(group, nodes.get(group.first, "")) for group in seen.hang.groups),
    )


def _ranks(group: RanksDoing, node: str) -> HangRanks:
    doing = group.doing
    return HangRanks(
        ranks=spans(group),
        pod=group.first,
        node=node,
        kind=doing.kind.value,
        does=doing.does,
        place=doing.place,
        code=doing.code,
        seconds=round(doing.for_s),
    )
