"""What each event does to what the machine knows. It records and places; whether a round follows is decided in rounds.

A message speaks for the incarnation of its connection. One that arrives late, twice, or for a world that is gone changes nothing.
"""

from dataclasses import replace
from operator import attrgetter

from elastic.membership import window
from elastic.membership.restart_log import RestartLog
from elastic.membership.wire import (
    MAX_MEMBERS,
    Beat,
    Ended,
    Expectation,
    Failed,
    Finished,
    FromMember,
    Held,
    Join,
    Leave,
    Notice,
    Ready,
    Restart,
    Started,
)
from rendezvous.machine import presented, progress
from rendezvous.machine.choose import unknown_seats
from rendezvous.machine.restart_budget import alone, disrupted_by, is_lost, recount, taken_over, told_of
from rendezvous.machine.state import Cause, CurrentWorld, Failure, Job, Loss, Member, Phase, ranks_of

RETIRED_KEPT = 1024
EXPLAINED_KEPT = 2 * MAX_MEMBERS
ANNOUNCED = frozenset({Cause.PLAN.value, Cause.DISRUPTION.value})
"""The causes that a member may give for its leaving; it could make up as many words as it likes."""


def apply_message(job: Job, *, name: str, incarnation: str, message: FromMember) -> Job:
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
            cause = message.cause if message.cause in ANNOUNCED else Cause.DISRUPTION.value
            return job.change(name, leave_by=job.now + message.by_s, leave_cause=cause)
        case Failed():
            return _failed(job, member, message)
        case Started():
            return _started(job, member, message.generation)
        case Finished():
            return _finished(job, member, message.generation)
        case Beat():
            return job


def is_retired(job: Job, name: str, incarnation: str) -> bool:
    """Whether a newer incarnation took this one's place."""
    return (name, incarnation) in job.retired


def _join(job: Job, *, name: str, incarnation: str, message: Join) -> Job:
    known = job.members.get(name)
    if known is not None and known.incarnation != incarnation:
        job = _retire(job, known, by=incarnation)
        known = None
    held = message.held
    if held is not None:
        held = presented.placed_near(job, held)
        job = _adopt(job, held) if held.id else job
    if known is None:
        job = _returned(job, name) if held is None else job
        phase = Phase.READY if message.ready else Phase.BOOTING
        known = Member(name=name, incarnation=incarnation, phase=phase, heard_at=job.now, arrived=job.arrivals)
        job = replace(job, arrivals=job.arrivals + 1)
    member = replace(known, heard_at=job.now, broken_at=None, store=message.store or known.store)
    after = held.generation if held is not None else 0
    barrier = Ready(after=after, store=member.store, trouble=message.trouble) if message.ready else None
    if held is not None and message.failed:
        job = _failed_before(job.with_member(member), member, held=held, message=message)
    return _place(job.with_member(member), member, held=held, barrier=barrier)


def _returned(job: Job, name: str) -> Job:
    """A member has come that holds no world: whoever had its name before works no more."""
    if not any(loss.may_work and loss.member == name for loss in job.disrupted):
        return job
    return replace(job, disrupted=tuple(replace(loss, may_work=loss.may_work and loss.member != name) for loss in job.disrupted))


def _failed_before(job: Job, member: Member, *, held: Held, message: Join) -> Job:
    """A member at the barrier repeats why it came there: the server that it told may be gone."""
    standing = job.standing
    if standing is None or held.generation != standing.generation or not _is_seat_of(standing, held, member.name):
        return job
    if _was_told_to_stop(job) and not standing.adopted:
        return job
    return _record(job, member, status=message.status, ago_s=message.failed_ago_s)


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


def _is_seat_of(standing: CurrentWorld, held: Held, name: str) -> bool:
    """Whether what a member holds is a seat of this very world, and free or its own."""
    return held.id == standing.id and held.rank < standing.size and standing.seats[held.rank] in (None, name)


def _adopt(job: Job, held: Held) -> Job:
    """Learn from what a member holds: never number a world below it, and after a restart take its world as the current one."""
    believed = presented.credible(job, held)
    job = taken_over(replace(job, generation=max(job.generation, held.generation)), believed)
    standing = job.standing
    if held.rank >= held.size or (standing is not None and (not standing.adopted or held.generation <= standing.generation)):
        return job
    seats: tuple[str | None, ...] = (None,) * held.size
    world = CurrentWorld(
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
    job = replace(job, standing=world, uncounted=believed, trouble=None, failures=(), disrupted=(), hung="")
    job = replace(job, started=frozenset(), finished=frozenset())
    return replace(job, progress=progress.in_new_world(job))


def _retire(job: Job, member: Member, *, by: str) -> Job:
    """A newer incarnation of a member has come: the old one is gone and may not come back."""
    retired = (*job.retired, (member.name, member.incarnation))[-RETIRED_KEPT:]
    if member.has_left and pod_of(member) == _pod(by):
        # Its container ended with 0 and was started again all the same (restartPolicy Always): so will the others be, and the work.
        job = replace(job, finished=frozenset())
    job = gone(job, member.name, words=f"{member.name} started anew")
    return replace(job, retired=retired).without(member.name)


def _ready(job: Job, member: Member, message: Ready) -> Job:
    if member.phase is Phase.RUNNING and message.after < member.generation:
        return job  # it left an older world than the one it was sealed into since
    was_working = member.phase is Phase.RUNNING and job.standing is not None and member.world == job.standing.id
    if was_working and message.trouble:
        words = f"{member.name}: {message.trouble}"
        job = disrupted_by(job, Loss(member.name, pod_of(member), Cause.DISRUPTION.value, words))
    elif was_working and not (job.round is not None and job.round.draining) and not (job.standing is not None and job.standing.adopted):
        job = _record(job, member, status=None)  # of a world that an earlier server sealed: it may have been that one which called it
    return job.change(member.name, phase=Phase.READY, world="", generation=message.after, store=message.store or member.store)


def _leave(job: Job, member: Member, message: Leave) -> Job:
    told = job.leave_by.get(member.name)
    cause = member.leave_cause or (told[1] if told is not None else "")
    if message.by_signal:
        cause = cause or Cause.DISRUPTION.value
    words = f"{member.name} left: {message.reason}" if message.reason else f"{member.name} left"
    if member.phase is Phase.FINISHED:
        return job.change(member.name, has_left=True)
    return gone(job, member.name, cause=cause, words=words)


def gone(job: Job, name: str, *, cause: str = "", words: str) -> Job:
    """A member is no longer here. One that had finished stays known, for its end was no loss. Without a cause it is taken for a disruption
    until the controller says how its container ended.
    """
    member = job.members[name]
    if member.phase is Phase.FINISHED:
        return job
    if job.standing is not None and job.standing.ranks.get(name) is not None:
        loss = Loss(name, pod_of(member), cause or Cause.DISRUPTION.value, words, is_gone=True, unsure=not cause, may_work=not cause)
        job = disrupted_by(job, loss)
    return job.without(name)


def _failed(job: Job, member: Member, message: Failed) -> Job:
    standing = job.standing
    if standing is None or member.world != standing.id or message.generation != standing.generation:
        return job
    return job if _was_told_to_stop(job) else _record(job, member, status=message.status, ago_s=message.ago_s)


def _was_told_to_stop(job: Job) -> bool:
    """Whether the world is being left for another reason than a failure: what ends now says nothing."""
    return job.round is not None and job.round.draining and not job.failures


def _record(job: Job, member: Member, *, status: int | None, ago_s: float = 0.0) -> Job:
    """Note a worker's own end in the current world, once per member. The first one is the cause of the others, whoever is heard first."""
    if any(failure.member == member.name for failure in job.failures):
        return job
    failure = Failure(member.name, pod_of(member), status, at=job.now - ago_s)
    failures = tuple(sorted((*job.failures, failure), key=attrgetter("at")))
    trouble = job.trouble
    if trouble is None or (failures[0] is failure and trouble[1] == Cause.USER.value):
        words = f"a worker of {member.name} ended with status {status}" if status is not None else f"a worker of {member.name} ended"
        trouble = (words, Cause.USER.value)
    return replace(job, failures=failures, trouble=trouble)


def _finished(job: Job, member: Member, generation: int) -> Job:
    if member.generation != generation:
        return job
    job = job.change(member.name, phase=Phase.FINISHED)
    standing = job.standing
    if standing is None or generation != standing.generation or member.name not in standing.ranks:
        return job
    return replace(job, finished=job.finished | {member.name})


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
    """The job after the controller said who should be there. An older leader's word is not heard, nor an older word of the same leader."""
    if is_stale(job.expectation, expectation):
        return job
    learnt: tuple[Restart, ...] = ()
    if presented.is_far_from(job, expectation):
        job = _unlearnt(job)
    if job.expectation is None:
        learnt = tuple(job.own.values())
        known = replace(job, progress=progress.learnt(job, expectation), dated=_dated(job, expectation))
        job = replace(known, own={}, restarts=expectation.restarts)
    job = replace(
        job,
        expectation=expectation,
        expected=dict.fromkeys(expectation.members),
        leave_by={leaving.member: (job.now + leaving.by_s, leaving.cause) for leaving in expectation.leaving},
        generation=max(job.generation, expectation.floor),
    )
    job = told_of(job, RestartLog(expectation.restarts, expectation.open, expectation.booked_to))
    if expectation.closed and not job.closed:
        return replace(job, closed=expectation.closed, round=None)
    return taken_over(job, learnt) if learnt else job


def _unlearnt(job: Job) -> Job:
    """The job without what its members presented, which cannot be true. They are cut off, so that they present themselves anew."""
    job = replace(job, members={}, standing=None, generation=0, own={}, restarts={}, uncounted=(), round=None)
    return replace(job, trouble=None, failures=(), disrupted=(), hung="", started=frozenset(), finished=frozenset())


def is_stale(known: Expectation | None, word: Expectation) -> bool:
    """Whether a newer word than this has been heard. Of two processes that lead the same term the one that spoke last is believed."""
    if known is None or word.term != known.term:
        return known is not None and word.term < known.term
    return word.speaker == known.speaker and word.number < known.number


def _dated(job: Job, expectation: Expectation) -> window.Dates:
    """The restarts within the budget's window, as the job's status tells of them."""
    dates = (window.Dated(charge.cause, job.now - charge.age_s, charge.count) for charge in expectation.charged)
    return tuple(sorted(dates, key=attrgetter("at")))


def apply_exit_reports(job: Job) -> Job:
    """Takes into account what the controller has told of ends, as soon as it is clear what it means."""
    ended = job.expectation.ended if job.expectation is not None else ()
    if not ended:
        return job
    explained = dict(job.explained)
    for end in ended:
        if end_id(end) not in explained and _is_clear(job, end):
            job = _explain(job, end)
            explained[end_id(end)] = None
    if len(explained) == len(job.explained):
        return job
    return replace(job, explained=dict.fromkeys(list(explained)[-EXPLAINED_KEPT:]))


def end_id(end: Ended) -> str:
    return f"{end.pod_uid}/{end.run}"


def _is_clear(job: Job, end: Ended) -> bool:
    """Not while the connection of a pod that is over stands: it will break. Nor while members of a world that an earlier server sealed may
    still be missing for this reason.
    """
    if end.is_last and (member := _here(job, end)) is not None and member.broken_at is None:
        return False
    return job.is_settled or (job.standing is not None and not unknown_seats(job.standing))


def _explain(job: Job, end: Ended) -> Job:
    """The controller says why a container ended. Where its connection stands, or nothing is known of it, that was an earlier run than any
    that may be lost from here: it is over and done with. Where the whole pod is over, it is charged though nobody here ever knew it.
    """
    words = f"the container of {end.member} ended ({end.cause})"
    member = _here(job, end)
    had_seat = job.standing is not None and end.member in job.standing.ranks
    if member is not None and member.broken_at is not None:
        job = gone(job, end.member, cause=end.cause, words=words)
        return recount(job, end, words=words) if had_seat else _by_itself(job, end, words=words)
    if not had_seat and unknown_seats(job.standing) > len(job.disrupted):
        return disrupted_by(job, Loss(end.member, end.pod_uid, end.cause, words))
    if is_lost(job, end.pod_uid):
        return recount(job, end, words=words)
    return _by_itself(job, end, words=words) if member is None else job


def _here(job: Job, end: Ended) -> Member | None:
    """The member whose container is, or was, of the very pod that ended."""
    member = job.members.get(end.member)
    return member if member is not None and pod_of(member) == end.pod_uid else None


def _by_itself(job: Job, end: Ended, *, words: str) -> Job:
    is_charged = end.is_last and end.member not in job.leave_by and end.cause != Cause.DISRUPTION
    return alone(job, end, words=words) if is_charged else job


def pod_of(member: Member) -> str:
    """The uid of a member's pod, with which its incarnation begins."""
    return _pod(member.incarnation)


def _pod(incarnation: str) -> str:
    return incarnation.partition("/")[0]
