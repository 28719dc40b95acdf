"""Find the ranks that stay slower than the others, and what slows them.

All ranks of a synchronous training take the same time from step to step, because they wait for each other. So ranks are compared by the
time that they do not wait. Each window of all ranks is compared once. A rank is a straggler once it was slow in several windows in a row,
until it was fast in several.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from .messages import pace
from .messages.bounds import MOST_COUNTED, MOST_SECONDS
from .messages.pace import MOST_STRAGGLERS, Slowness, Straggler
from .state.job import JobState
from .state.paces import Finding, Paces, RankPace, Record, Told
from .values import dataclass, replace

FACTOR, FACTOR_OF_TWO = 1.5, 2.0
"""A rank is slow if it needs FACTOR times the median of all ranks, or of two ranks, FACTOR_OF_TWO times the time of the other."""
CALM = 0.5
"""A straggler is fast again once less than this part of the excess is left."""
LEAST_LOSS = 0.1
"""The excess must be this part of a step at least: a rank that is slow only in short moments holds nobody up."""
LEAST_SYNC = 0.75
"""The other ranks' time from step to step must be at least this part of the rank's time. If it is less, they do not wait for the rank."""
WINDOWS, CALM_WINDOWS = 5, 3
"""Windows in a row after which a rank counts as slow, and as fast again."""
THROTTLED, TIMES_THROTTLED = 25, 2
"""A rank's CPUs explain its slowness if THROTTLED percent of their periods are throttled, and TIMES_THROTTLED times the median."""
STALE_S, STALE_WINDOWS = 60.0, 3
"""A straggler is forgotten after so many seconds, and so many windows, without news: its program has stopped measuring."""
KINDS = (Slowness.COMPUTE, Slowness.DATA, Slowness.OUTSIDE, Slowness.NETWORK)
SENDING = KINDS.index(Slowness.NETWORK)
LEAST_SENDING = 0.25
"""Sending must take this part of a step more than usual. Its factor exceeds 1 by twice as much as that of the other parts."""
LEAST_S, LONGEST_S = 1e-6, 86400.0
LARGE = 1000
"""Members of a world for whose windows the time of the budget is long enough."""


@dataclass(frozen=True)
class _Seen:
    """One rank in a comparison."""

    member: str
    local_rank: int
    rank: int
    pace: RankPace
    told: Told


def heard(job: JobState, member: str, message: pace.Paces) -> JobState:
    """Take a window of a member. Compare the ranks once all members of the world have spoken, or one has spoken twice."""
    world = job.membership.world
    if world is None or message.generation != world.generation or member not in world.ranks or not job.budget.pace_s:
        return job
    paces = job.paces if job.paces.generation == world.generation else replace(job.paces, generation=world.generation, row={})
    told = Told(job.now, tuple(map(_rank_pace, message.workers)), message.throttled, message.milli_cpus)
    if member in paces.row:
        job = replace(job, paces=paces)
        paces = replace(_compared(job), row={member: told})
    else:
        paces = replace(paces, row={**paces.row, member: told})
    job = replace(job, paces=paces)
    return replace(job, paces=replace(_compared(job), row={})) if paces.row.keys() >= world.ranks.keys() else job


def window_s(job: JobState) -> float:
    """Return how long the windows of this world are. In a large world they are longer, so that a server of many jobs hears less often."""
    world = job.membership.world
    return job.budget.pace_s * max(1, world.size // LARGE) if world is not None else 0.0


def kept(job: JobState) -> JobState:
    """Return the job without findings about members that are gone, or that nobody measures any more."""
    if not job.budget.pace_s or job.is_done or job.accounting.closed:
        return replace(job, paces=Paces()) if job.paces != Paces() else job
    members = job.membership.members
    left = {
        key: record
        for key, record in job.paces.records.items()
        if key[0] in members
        and members[key[0]].incarnation == record.pod
        and (job.hang_watch.found is not None or job.now < record.at + STALE_S + STALE_WINDOWS * record.window_s)
    }
    return replace(job, paces=replace(job.paces, records=left)) if len(left) != len(job.paces.records) else job


def told(job: JobState) -> tuple[Straggler, ...] | None:
    """Return the stragglers for the controller, the slowest first; None until enough was compared, such as after the server's start."""
    found = [(*key, record.found) for key, record in job.paces.records.items() if record.found is not None]
    if job.membership.expectation is not None and not job.budget.pace_s:
        return ()
    if not found and not job.is_done and job.paces.compared < WINDOWS:
        return None
    found.sort(key=lambda entry: (-entry[2].percent, entry[2].rank))
    return tuple(_straggler(*entry) for entry in found[:MOST_STRAGGLERS])


def _straggler(member: str, local_rank: int, found: Finding) -> Straggler:
    return Straggler(
        rank=found.rank,
        member=member,
        local_rank=local_rank,
        kind=Slowness.THROTTLED if found.is_throttled else KINDS[found.part],
        percent=found.percent,
        own_s=found.own_s,
        usual_s=found.usual_s,
        part_s=found.part_s,
        usual_part_s=found.usual_part_s,
        for_s=min(found.for_s, MOST_SECONDS),
        among=found.among,
        throttled=found.throttled,
        milli_cpus=found.milli_cpus,
    )


def _rank_pace(worker: pace.Pace) -> RankPace:
    return RankPace(
        worker.steps, (worker.compute_us / 1e6, worker.data_us / 1e6, worker.outside_us / 1e6), worker.wait_us / 1e6, worker.send_us / 1e6
    )


def _ranks(job: JobState) -> Iterator[_Seen]:
    """Yield each rank with a window in this row."""
    world, row = job.membership.world, job.paces.row
    assert world is not None
    members = job.membership.members
    workers = max((max(len(told.ranks), members[name].workers) for name, told in row.items() if name in members), default=0)
    for member, told in row.items():
        if member not in world.ranks:
            continue
        for local_rank, found in enumerate(told.ranks):
            if found.steps:
                yield _Seen(member, local_rank, world.ranks[member] * workers + local_rank, found, told)


def _compared(job: JobState) -> Paces:
    """Return the paces after a comparison of the ranks in the row."""
    seen = list(_ranks(job))
    if len(seen) < 2:
        return job.paces
    usual = _Usual.of(seen)
    records = dict(job.paces.records)
    for one in seen:
        record = _record(job, one, usual, records.pop((one.member, one.local_rank), None))
        if record is not None:
            records[one.member, one.local_rank] = record
    return replace(job.paces, records=records, compared=min(job.paces.compared + 1, WINDOWS))


@dataclass(frozen=True)
class _Usual:
    """The usual pace of the ranks in a comparison. The faster one of two ranks has it."""

    own_s: float
    step_s: float
    parts: tuple[float, ...]
    send_s: float
    throttled: float
    factor: float
    among: int

    @classmethod
    def of(cls, seen: list[_Seen]) -> _Usual:
        """Return what is usual among these ranks. If half of them are slow, such as the shards of one of two pods, the others say it."""
        if len(seen) == 2:
            one = min(seen, key=lambda one: one.pace.own_s)
            return cls(one.pace.own_s, one.pace.step_s, one.pace.parts, one.pace.send_s, one.told.throttled, FACTOR_OF_TWO, 2)
        return cls(
            own_s=median_low(one.pace.own_s for one in seen),
            step_s=median_low(one.pace.step_s for one in seen),
            parts=tuple(median_low(one.pace.parts[part] for one in seen) for part in range(SENDING)),
            send_s=median_low(one.pace.send_s for one in seen),
            throttled=median_low(one.told.throttled for one in seen),
            factor=FACTOR,
            among=len(seen),
        )

    def slow_part(self, one: RankPace, *, factor: float) -> int | None:
        """Return the part of a step in which this rank is slow, if it needs so many times the usual time, and the others wait for it."""
        excess = one.own_s - self.own_s
        if one.own_s >= factor * self.own_s and excess >= max(LEAST_S, LEAST_LOSS * one.step_s):
            parts = [own - usual for own, usual in zip(one.parts, self.parts)]
            return parts.index(max(parts)) if self.step_s >= LEAST_SYNC * one.own_s else None
        excess = one.send_s - self.send_s
        is_much = one.send_s >= (2 * factor - 1) * self.send_s and excess >= max(LEAST_S, LEAST_SENDING * one.step_s)
        return SENDING if is_much else None


def _record(job: JobState, one: _Seen, usual: _Usual, known: Record | None) -> Record | None:
    """Return what is known of a rank after one more window; None if nothing is worth keeping."""
    member = job.membership.members.get(one.member)
    if member is None:
        return None
    if known is not None and known.pod != member.incarnation:
        known = None
    found = known.found if known is not None else None
    factor = usual.factor if found is None else 1 + (usual.factor - 1) * CALM
    window_s = min(one.pace.steps * one.pace.step_s, LONGEST_S)
    record = known or Record(member.incarnation, job.now, window_s, since=job.now - window_s)
    record = replace(record, at=job.now, window_s=window_s)
    part = usual.slow_part(one.pace, factor=factor)
    if part is None:
        record = replace(record, slow=0, differs=0, fast=record.fast + 1)
        return record if found is not None and record.fast < CALM_WINDOWS else None
    record = replace(record, slow=min(record.slow + 1, WINDOWS), fast=0)
    now = _finding(job, one, usual, part=part, since=record.since)
    if found is None:
        return replace(record, found=now if record.slow >= WINDOWS else None)
    if (now.part, now.is_throttled) == (found.part, found.is_throttled):
        return replace(record, differs=0, found=now if now.among > found.among else replace(found, rank=now.rank))
    record = replace(record, differs=record.differs + 1)
    return replace(record, differs=0, found=now) if record.differs >= WINDOWS else record


def _finding(job: JobState, one: _Seen, usual: _Usual, *, part: int, since: float) -> Finding:
    """Return the figures of a slow rank."""
    own_s, usual_s = (one.pace.send_s, usual.send_s) if part == SENDING else (one.pace.own_s, usual.own_s)
    is_throttled = part != SENDING and one.told.throttled >= max(THROTTLED, TIMES_THROTTLED * usual.throttled)
    return Finding(
        rank=one.rank,
        part=part,
        is_throttled=is_throttled,
        percent=min(MOST_COUNTED, round(100 * own_s / max(usual_s, LEAST_S))),
        own_s=own_s,
        usual_s=usual_s,
        part_s=own_s if part == SENDING else one.pace.parts[part],
        usual_part_s=usual_s if part == SENDING else usual.parts[part],
        for_s=max(0.0, job.now - since),
        among=usual.among,
        throttled=one.told.throttled,
        milli_cpus=one.told.milli_cpus,
    )
