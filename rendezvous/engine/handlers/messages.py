"""Put messages of members and of training into the job. The module rounds decides whether a round follows.

A message speaks for the incarnation of its connection. A message that arrives late, twice, or for a former world changes nothing.
"""

from __future__ import annotations

from .. import failing_saves, hang, stragglers
from ..choose import leave_notice
from ..handlers.arrivals import join
from ..handlers.leaving_world import failed, gone, is_leaving_world, ready, with_loss
from ..handlers.workers import hear
from ..messages.bounds import clipped
from ..messages.doing import Doings
from ..messages.member import Beat, Failed, Finished, FromMember, Join, Leave, Ready, Started
from ..messages.pace import Paces
from ..messages.saves import Saves
from ..state.accounting import Loss
from ..state.job import JobState
from ..state.membership import Member, MemberPhase
from ..values import replace
from ..words import Cause


def apply_message(job: JobState, *, name: str, incarnation: str, message: FromMember) -> JobState:
    """Return the job after a member said something."""
    if isinstance(message, Join):
        return join(job, name=name, incarnation=incarnation, message=message)
    member = job.membership.members.get(name)
    if member is None or member.incarnation != incarnation:
        return job
    job = job.change(name, heard_at=job.now)
    if isinstance(message, Beat):
        return job
    if isinstance(message, Ready):
        return ready(job, job.membership.members[name], message)
    if isinstance(message, Leave):
        return _leave(job, member, message)
    if isinstance(message, Failed):
        return _failed(job, member, message)
    if isinstance(message, Started):
        return _started(job, member, message.generation, is_warm=message.warm)
    if isinstance(message, Finished):
        return _finished(job, member, message.generation)
    if isinstance(message, Doings):
        return hang.heard(job, name, message)
    if isinstance(message, Paces):
        return stragglers.heard(job, name, message)
    if isinstance(message, Saves):
        return failing_saves.heard(job, name, message)
    return hear(job, job.membership.members[name], message)


def lose(job: JobState, *, name: str, incarnation: str) -> JobState:
    """Note that the connection of a member broke; it has a moment to come back."""
    member = job.membership.members.get(name)
    if member is None or member.incarnation != incarnation or member.broken_at is not None:
        return job
    return job.change(name, broken_at=job.now)


def _leave(job: JobState, member: Member, message: Leave) -> JobState:
    notice = leave_notice(job.membership, member.name, now=job.now)
    cause = notice.cause if notice is not None else ""
    if message.by_signal:
        cause = cause or Cause.DISRUPTION.value
    words = f"{member.name} left: {message.reason}" if message.reason else f"{member.name} left"
    if member.phase is MemberPhase.FINISHED:
        return job.change(member.name, has_left=True)
    return gone(job, member.name, cause=cause, words=words)


def _failed(job: JobState, member: Member, message: Failed) -> JobState:
    world = job.membership.world
    if world is None or message.generation != world.generation:
        return job
    if member.alive:
        return job.change(member.name, alive=False)  # its processes came to the barrier, and end there
    if member.world_id != world.id:
        return job
    if is_leaving_world(job):
        return job
    if message.by_library:
        words = f"the training library ended a worker of {member.name}: {message.error or 'it could not follow its world'}"
        return with_loss(job, Loss(member.name, member.pod, Cause.DISRUPTION.value, clipped(words), by_library=True))
    return failed(
        job,
        member,
        status=message.status,
        ago_s=message.ago_s,
        rank=message.rank,
        error=message.error,
        is_replaced=message.replaced,
        cause=Cause.OUT_OF_MEMORY if message.out_of_memory else Cause.USER,
    )


def _finished(job: JobState, member: Member, generation: int) -> JobState:
    if member.generation != generation:
        return job
    job = job.change(member.name, phase=MemberPhase.FINISHED)
    group = job.membership
    if group.world is None or generation != group.world.generation or member.name not in group.world.ranks:
        return job
    known = replace(job.progress, moved_at=job.now)
    return replace(job, membership=replace(group, finished=group.finished | {member.name}), progress=known)


def _started(job: JobState, member: Member, generation: int, *, is_warm: bool) -> JobState:
    group, phases = job.membership, job.timings.phases
    if group.world is None or member.world_id != group.world.id or generation != group.world.generation:
        return job
    started = group.started | {member.name}
    warm = group.warm | {member.name} if is_warm else group.warm
    job = replace(job, membership=replace(group, started=started, warm=warm))
    if phases is not None and phases.started is None and started >= group.world.ranks.keys():
        job = replace(job, timings=replace(job.timings, phases=replace(phases, started=job.now)))
    return job
