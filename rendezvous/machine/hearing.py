"""What each event does to what the machine knows. It records and places; whether a round follows is decided in rounds.

A message speaks for the incarnation of its connection. One that arrives late, twice, or for a world that is gone changes nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter

from rendezvous.machine import progress, window
from rendezvous.machine.charge import alone, disrupted_by, recount
from rendezvous.machine.state import Cause, Failure, Job, Member, Phase, Standing, ranks_of
from rendezvous.wire import Beat, Ended, Expectation, Failed, Finished, FromMember, Held, Join, Leave, Notice, Ready, Started

RETIRED_KEPT = 1024


def hear(job: Job, *, name: str, incarnation: str, message: FromMember) -> Job:
    """The job after a member said something."""
    if isinstance(message, Join):
        return _join(job, name=name, incarnation=incarnation, message=message)
    member = job.members.get(name)
    if member is None or member.incarnation != incarnation:
        return job
    job = job.change(name, heard_at=job.now)
    match message:
        case Ready():
            return _ready(job, job.members[name], message)
        case Leave():
            return _leave(job, member, message)
        case Notice():
            return job.change(name, leave_by=job.now + message.by_s, leave_cause=message.cause)
        case Failed():
            return _failed(job, member, message)
        case Started():
            return _started(job, member, message.generation)
        case Finished():
            return job.change(name, phase=Phase.FINISHED) if member.generation == message.generation else job
        case Beat():
            return job


def is_retired(job: Job, name: str, incarnation: str) -> bool:
    """Whether a newer incarnation took this one's place."""
    return (name, incarnation) in job.retired


def _join(job: Job, *, name: str, incarnation: str, message: Join) -> Job:
    known = job.members.get(name)
    if known is not None and known.incarnation != incarnation:
        job = _retire(job, known)
        known = None
    held = message.held
    if held is not None:
        job = _adopt(job, held)
    if known is None:
        phase = Phase.READY if message.ready else Phase.BOOTING
        known = Member(name=name, incarnation=incarnation, phase=phase, heard_at=job.now, arrived=job.arrivals)
        job = replace(job, arrivals=job.arrivals + 1)
    member = replace(known, heard_at=job.now, broken_at=None, store=message.store or known.store)
    after = held.generation if held is not None else 0
    barrier = Ready(after=after, store=member.store, trouble=message.trouble) if message.ready else None
    return _place(job.with_member(member), member, held=held, barrier=barrier)


def _place(job: Job, member: Member, *, held: Held | None, barrier: Ready | None) -> Job:
    """Put a member that presented itself where it belongs: into the current world, to the barrier, or astray."""
    standing = job.standing
    generation = held.generation if held is not None else 0
    if standing is not None and member.phase is not Phase.BOOTING and member.world == standing.id and generation < standing.generation:
        return job  # the world was sealed with it while it was away: its view tells it so
    if standing is not None and held is not None and _is_seat_of(standing, held, member.name):
        if standing.seats[held.rank] is None:
            job = replace(job, standing=standing.seated(held.rank, member.name))
        if member.phase is Phase.FINISHED:
            return job
        working = job.change(member.name, phase=Phase.RUNNING, world=standing.id, generation=generation)
        if barrier is None:
            return working
        if not standing.adopted:
            return _ready(working, working.members[member.name], barrier)
    phase = Phase.READY if barrier is not None else Phase.BOOTING
    return job.change(member.name, phase=phase, world="", generation=generation)


def _is_seat_of(standing: Standing, held: Held, name: str) -> bool:
    """Whether what a member holds is a seat of this very world, and free or its own."""
    return held.id == standing.id and held.rank < standing.size and standing.seats[held.rank] in (None, name)


def _adopt(job: Job, held: Held) -> Job:
    """Learn from what a member holds: never number a world below it, and after a restart take its world as the current one."""
    job = replace(job, generation=max(job.generation, held.generation))
    standing = job.standing
    if held.rank >= held.size or (standing is not None and (not standing.adopted or held.generation <= standing.generation)):
        return job
    seats: tuple[str | None, ...] = (None,) * held.size
    world = Standing(
        id=held.id,
        generation=held.generation,
        seats=seats,
        store=held.store,
        reason="found running after a restart of the rendezvous server",
        cause=Cause.START.value,
        since=job.now,
        adopted=True,
        ranks=ranks_of(seats),
    )
    job = replace(job, standing=world, trouble=None, failures=(), disrupted=(), hung="", started=frozenset())
    return replace(job, progress=progress.in_new_world(job))


def _retire(job: Job, member: Member) -> Job:
    """A newer incarnation of a member has come: the old one is gone and may not come back."""
    retired = (*job.retired, (member.name, member.incarnation))[-RETIRED_KEPT:]
    job = gone(job, member.name, cause=Cause.DISRUPTION.value, words=f"{member.name} started anew")
    return replace(job, retired=retired).without(member.name)


def _ready(job: Job, member: Member, message: Ready) -> Job:
    if member.phase is Phase.RUNNING and message.after < member.generation:
        return job  # it left an older world than the one it was sealed into since
    was_working = member.phase is Phase.RUNNING and job.standing is not None and member.world == job.standing.id
    if was_working and message.trouble:
        job = disrupted_by(job, name=member.name, cause=Cause.DISRUPTION.value, words=f"{member.name}: {message.trouble}")
    elif was_working and not (job.round is not None and job.round.draining):
        job = _record(job, member, status=None)
    return job.change(member.name, phase=Phase.READY, world="", generation=message.after, store=message.store or member.store)


def _leave(job: Job, member: Member, message: Leave) -> Job:
    told = job.leave_by.get(member.name)
    cause = member.leave_cause or (told[1] if told is not None else Cause.DISRUPTION.value)
    words = f"{member.name} left: {message.reason}" if message.reason else f"{member.name} left"
    return gone(job, member.name, cause=cause, words=words)


def gone(job: Job, name: str, *, cause: str, words: str) -> Job:
    """A member is no longer here. One that had finished stays known, for its end was no loss."""
    member = job.members[name]
    if member.phase is Phase.FINISHED:
        return job
    if job.standing is not None and job.standing.ranks.get(name) is not None:
        job = disrupted_by(job, name=name, cause=cause, words=words)
        if any(lost == name and why == Cause.DISRUPTION.value for lost, why, _ in job.disrupted):
            job = replace(job, unexplained=(*job.unexplained, pod_of(member))[-RETIRED_KEPT:])
    return job.without(name)


def _failed(job: Job, member: Member, message: Failed) -> Job:
    standing = job.standing
    if standing is None or member.world != standing.id or message.generation != standing.generation:
        return job
    return _record(job, member, status=message.status)


def _record(job: Job, member: Member, *, status: int | None) -> Job:
    """Note a worker's own end in the current world, once per member, unless it was told to stop."""
    assert job.standing is not None
    if job.round is not None and job.round.draining and not job.failures:
        return job
    if any(failure.member == member.name for failure in job.failures):
        return job
    failure = Failure(member.name, status)
    words = f"a worker of {member.name} ended with status {status}" if status is not None else f"a worker of {member.name} ended"
    return replace(job, failures=(*job.failures, failure), trouble=job.trouble or (words, Cause.USER.value))


def _started(job: Job, member: Member, generation: int) -> Job:
    standing = job.standing
    if standing is None or member.world != standing.id or generation != standing.generation:
        return job
    started = job.started | {member.name}
    job = replace(job, started=started)
    if job.phases is not None and job.phases.started is None and started >= standing.ranks.keys():
        job = replace(job, phases=replace(job.phases, started=job.now))
    return job


def lose(job: Job, *, name: str, incarnation: str) -> Job:
    """The connection of a member broke; it has a moment to come back."""
    member = job.members.get(name)
    if member is None or member.incarnation != incarnation or member.broken_at is not None:
        return job
    return job.change(name, broken_at=job.now)


def expect(job: Job, expectation: Expectation) -> Job:
    """The job after the controller said who should be there. An older leader's word is not heard.
    What the first word tells of ends is of before this server's time, and may be counted already.
    """
    if job.expectation is not None and expectation.term < job.expectation.term:
        return job
    if job.expectation is None:
        earlier = tuple((end.pod_uid, end.run) for end in expectation.ended if not end.is_last)
        job = replace(job, progress=progress.learnt(job, expectation), dated=_dated(job, expectation), explained=earlier)
    job = replace(
        job,
        expectation=expectation,
        expected=dict.fromkeys(expectation.members),
        leave_by={leaving.member: (job.now + leaving.by_s, leaving.cause) for leaving in expectation.leaving},
        generation=max(job.generation, expectation.floor),
        restarts=_at_least(job.restarts, expectation.restarts),
    )
    for end in expectation.ended:
        if (end.pod_uid, end.run) not in job.explained:
            job = _explain(job, end)
    return job


def _dated(job: Job, expectation: Expectation) -> window.Dates:
    """The restarts within the budget's window, as the job's status tells of them."""
    dates = (window.Dated(charge.cause, job.now - charge.age_s, charge.count) for charge in expectation.charged)
    return tuple(sorted(dates, key=attrgetter("at")))


def _at_least(counts: Mapping[str, int], floor: Mapping[str, int]) -> Mapping[str, int]:
    """The larger count of each cause; the same object where nothing is larger."""
    if all(counts.get(cause, 0) >= count for cause, count in floor.items()):
        return counts
    return {cause: max(counts.get(cause, 0), floor.get(cause, 0)) for cause in sorted(counts.keys() | floor.keys())}


def _explain(job: Job, end: Ended) -> Job:
    """The controller says why a container ended. Where its connection stands, or nothing is known of it, that was an earlier run than any
    that may be lost from here: it is over and done with. Where the whole pod is over, it is charged though nobody here ever knew it.
    """
    member = job.members.get(end.member)
    is_here = member is not None and pod_of(member) == end.pod_uid
    words = f"the container of {end.member} ended ({end.cause})"
    if member is not None and member.broken_at is not None and is_here:
        job = gone(job, end.member, cause=end.cause, words=words)
    elif end.pod_uid in job.unexplained:
        job = recount(job, name=end.member, cause=end.cause, words=words)
    elif end.is_last and not is_here and end.member not in job.leave_by:
        job = alone(job, cause=end.cause, words=words)
    elif end.is_last:
        return job  # its connection will break
    left = list(job.unexplained)
    if end.pod_uid in left:
        left.remove(end.pod_uid)
    return replace(job, unexplained=tuple(left), explained=(*job.explained, (end.pod_uid, end.run))[-RETIRED_KEPT:])


def pod_of(member: Member) -> str:
    """The uid of a member's pod, with which its incarnation begins."""
    return member.incarnation.partition("/")[0]
