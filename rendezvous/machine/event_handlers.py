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
from rendezvous.machine.choose import unknown_ranks
from rendezvous.machine.restart_budget import is_lost, with_known_cause, with_lone_restart, with_loss, with_presented, with_recorded
from rendezvous.machine.state import Cause, CurrentWorld, Failure, Job, LeaveNotice, Loss, Member, Phase, ranks_of

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
            return job.change(name, notice=LeaveNotice(job.now + message.by_s, cause))
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
    if not any(loss.may_work and loss.member == name for loss in job.losses):
        return job
    return replace(job, losses=tuple(replace(loss, may_work=loss.may_work and loss.member != name) for loss in job.losses))


def _failed_before(job: Job, member: Member, *, held: Held, message: Join) -> Job:
    """A member at the barrier repeats why it came there: the server that heard it first may be gone."""
    world = job.world
    if world is None or held.generation != world.generation or not _may_hold(world, held, member.name):
        return job
    if _is_leaving_world(job) and not world.adopted:
        return job
    return _record(job, member, status=message.status, ago_s=message.failed_ago_s)


def _place(job: Job, member: Member, *, held: Held | None, barrier: Ready | None) -> Job:
    """Put a member that presented itself where it belongs: into the current world, to the barrier, or astray."""
    world = job.world
    generation = held.generation if held is not None else 0
    if world is not None and member.phase is not Phase.BOOTING and member.world_id == world.id and generation < world.generation:
        return job  # the world was sealed with it while it was away: its view tells it so
    if world is not None and held is not None and _may_hold(world, held, member.name):
        if world.by_rank[held.rank] is None:
            job = replace(job, world=world.with_member_at(held.rank, member.name))
        if member.phase is Phase.FINISHED:
            return job
        working = job.change(member.name, phase=Phase.RUNNING, world_id=world.id, generation=generation)
        if barrier is None:
            return working
        if not world.adopted:
            return _ready(working, working.members[member.name], barrier)
    phase = Phase.READY if barrier is not None else Phase.BOOTING
    return job.change(member.name, phase=phase, world_id="", generation=generation)


def _may_hold(world: CurrentWorld, held: Held, name: str) -> bool:
    """Whether what a member holds is a rank of this very world, and free or its own."""
    return held.id == world.id and held.rank < world.size and world.by_rank[held.rank] in (None, name)


def _adopt(job: Job, held: Held) -> Job:
    """Learn from what a member holds: never number a world below it, and after a restart take its world as the current one."""
    believed = presented.credible(job, held)
    job = with_presented(replace(job, generation=max(job.generation, held.generation)), believed)
    world = job.world
    if held.rank >= held.size or (world is not None and (not world.adopted or held.generation <= world.generation)):
        return job
    by_rank: tuple[str | None, ...] = (None,) * held.size
    world = CurrentWorld(
        id=held.id,
        generation=held.generation,
        by_rank=by_rank,
        store=held.store,
        reason="found running after a restart of the rendezvous server",
        cause=Cause.START.value,
        since=job.now,
        adopted=True,
        ranks=ranks_of(by_rank),
    )
    job = replace(job, world=world, unacknowledged_restarts=believed, trouble=None, failures=(), losses=(), hang_reason="")
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
    was_working = member.phase is Phase.RUNNING and job.world is not None and member.world_id == job.world.id
    if was_working and message.trouble:
        words = f"{member.name}: {message.trouble}"
        job = with_loss(job, Loss(member.name, pod_of(member), Cause.DISRUPTION.value, words))
    elif was_working and not (job.round is not None and job.round.draining) and not (job.world is not None and job.world.adopted):
        job = _record(job, member, status=None)  # of a world that an earlier server sealed: it may have been that one which called it
    return job.change(member.name, phase=Phase.READY, world_id="", generation=message.after, store=message.store or member.store)


def _leave(job: Job, member: Member, message: Leave) -> Job:
    notice = member.notice or job.notices.get(member.name)
    cause = notice.cause if notice is not None else ""
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
    if job.world is not None and job.world.ranks.get(name) is not None:
        loss = Loss(name, pod_of(member), cause or Cause.DISRUPTION.value, words, is_gone=True, unsure=not cause, may_work=not cause)
        job = with_loss(job, loss)
    return job.without(name)


def _failed(job: Job, member: Member, message: Failed) -> Job:
    world = job.world
    if world is None or member.world_id != world.id or message.generation != world.generation:
        return job
    return (
        job
        if _is_leaving_world(job)
        else _record(job, member, status=message.status, ago_s=message.ago_s, rank=message.rank, error=message.error)
    )


def _is_leaving_world(job: Job) -> bool:
    """Whether the world is being left for another reason than a failure: what ends now says nothing."""
    return job.round is not None and job.round.draining and not job.failures


def _record(job: Job, member: Member, *, status: int | None, ago_s: float = 0.0, rank: int | None = None, error: str = "") -> Job:
    """Note a worker's own end in the current world, once per member. The first one is the cause of the others, whoever is heard first."""
    if any(failure.member == member.name for failure in job.failures):
        return job
    failure = Failure(member.name, pod_of(member), status, at=job.now - ago_s, rank=rank, error=error)
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
    world = job.world
    if world is None or generation != world.generation or member.name not in world.ranks:
        return job
    return replace(job, finished=job.finished | {member.name})


def _started(job: Job, member: Member, generation: int) -> Job:
    world = job.world
    if world is None or member.world_id != world.id or generation != world.generation:
        return job
    started = job.started | {member.name}
    job = replace(job, started=started)
    if job.phases is not None and job.phases.started is None and started >= world.ranks.keys():
        job = replace(job, phases=replace(job.phases, started=job.now))
    return job


def lose(job: Job, *, name: str, incarnation: str) -> Job:
    """The connection of a member broke; it has a moment to come back."""
    member = job.members.get(name)
    if member is None or member.incarnation != incarnation or member.broken_at is not None:
        return job
    return job.change(name, broken_at=job.now)


def expect(job: Job, expectation: Expectation) -> Job:
    """The job with the controller's new expectation. An older leader's is ignored, and so is an older one of the same leader."""
    if is_stale(job.expectation, expectation):
        return job
    presented_before: tuple[Restart, ...] = ()
    if presented.is_far_from(job, expectation):
        job = _without_claims(job)
    if job.expectation is None:
        presented_before = tuple(job.known_restarts.values())
        known = replace(job, progress=progress.from_status(job, expectation), restart_dates=_dated(job, expectation))
        job = replace(known, known_restarts={}, restarts=expectation.restarts)
    job = replace(
        job,
        expectation=expectation,
        expected=dict.fromkeys(expectation.members),
        notices={entry.member: LeaveNotice(job.now + entry.by_s, entry.cause, entry.when_replaced) for entry in expectation.leaving},
        generation=max(job.generation, expectation.floor),
    )
    job = with_recorded(job, RestartLog(expectation.restarts, expectation.unsettled, expectation.settled_to))
    if expectation.closed and not job.closed:
        return replace(job, closed=expectation.closed, round=None)
    return with_presented(job, presented_before) if presented_before else job


def _without_claims(job: Job) -> Job:
    """The job without what its members presented, which cannot be true. They are cut off, so that they present themselves anew."""
    job = replace(job, members={}, world=None, generation=0, known_restarts={}, restarts={}, unacknowledged_restarts=(), round=None)
    return replace(job, trouble=None, failures=(), losses=(), hang_reason="", started=frozenset(), finished=frozenset())


def is_stale(known: Expectation | None, new: Expectation) -> bool:
    """Whether a newer expectation is known. Of two processes that lead the same term the one that spoke last is believed."""
    if known is None or new.term != known.term:
        return known is not None and new.term < known.term
    return new.speaker == known.speaker and new.number < known.number


def _dated(job: Job, expectation: Expectation) -> window.Dates:
    """The restarts within the budget's window, as the job's status tells of them."""
    dates = (window.Dated(charge.cause, job.now - charge.age_s, charge.count) for charge in expectation.charged)
    return tuple(sorted(dates, key=attrgetter("at")))


def apply_exit_reports(job: Job) -> Job:
    """Takes into account the ends that the controller reported, as soon as it is clear what they mean."""
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
    return job.is_settled or (job.world is not None and not unknown_ranks(job.world))


def _explain(job: Job, end: Ended) -> Job:
    """The controller says why a container ended. Where its connection stands, or nothing is known of it, that was an earlier run than any
    that may be lost from here: it is over and done with. Where the whole pod is over, it is charged though nobody here ever knew it.
    """
    words = f"the container of {end.member} ended ({end.cause})"
    member = _here(job, end)
    had_rank = job.world is not None and end.member in job.world.ranks
    if member is not None and member.broken_at is not None:
        job = gone(job, end.member, cause=end.cause, words=words)
        return with_known_cause(job, end, words=words) if had_rank else _by_itself(job, end, words=words)
    if not had_rank and unknown_ranks(job.world) > len(job.losses):
        return with_loss(job, Loss(end.member, end.pod_uid, end.cause, words))
    if is_lost(job, end.pod_uid):
        return with_known_cause(job, end, words=words)
    return _by_itself(job, end, words=words) if member is None else job


def _here(job: Job, end: Ended) -> Member | None:
    """The member whose container is, or was, of the very pod that ended."""
    member = job.members.get(end.member)
    return member if member is not None and pod_of(member) == end.pod_uid else None


def _by_itself(job: Job, end: Ended, *, words: str) -> Job:
    is_charged = end.is_last and end.member not in job.notices and end.cause != Cause.DISRUPTION
    return with_lone_restart(job, end, words=words) if is_charged else job


def pod_of(member: Member) -> str:
    """The uid of a member's pod, with which its incarnation begins."""
    return _pod(member.incarnation)


def _pod(incarnation: str) -> str:
    return incarnation.partition("/")[0]
