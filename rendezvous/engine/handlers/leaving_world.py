"""Handle a member that stops working in the current world: it comes to the barrier, its worker ends, or it is gone.

The end is only recorded. Its cause and its charge are decided when the world is given up.
"""

from __future__ import annotations

from typing import Any

from ..choose import leave_notice
from ..messages.member import Ready
from ..messages.saves import Saves
from ..state import accounting
from ..state.accounting import Loss, PendingFailure
from ..state.job import JobState
from ..state.membership import Member, MemberPhase
from ..values import replace
from ..words import Cause


def with_loss(job: JobState, loss: Loss) -> JobState:
    """Record that the current world lost a member for a reason other than its own worker's failure."""
    return replace(job, accounting=accounting.with_loss(job.accounting, loss))


def ready(job: JobState, member: Member, message: Ready) -> JobState:
    """Put the member at the barrier.

    If it worked and nobody called it, its worker has ended. If its processes live, it answers a change in process. An answer to another
    change than the present one, or from a former world, changes nothing.
    """
    group = job.membership
    world = group.world
    # In a world that an earlier server sealed, that server may have called it.
    is_uncalled = world is not None and not world.adopted and not group.is_draining
    is_answer = message.alive and group.round is not None and group.round.in_place and message.round == job.in_place.round
    if member.phase is MemberPhase.RUNNING and message.after < member.generation and not is_answer:
        return job  # it left an older world than the one it was sealed into since
    is_of_world = world is not None and member.generation == world.generation and member.name in world.ranks
    # Processes that started in a world of their own have the state of no world, even if their agent was in the current one before.
    is_newcomer = message.alive and (member.provisional or not (member.generation or message.after))
    if message.alive and not is_newcomer and not (is_of_world and is_answer):
        return job
    was_working = member.phase is MemberPhase.RUNNING and world is not None and member.world_id == world.id
    if was_working and message.trouble:
        words = f"{member.name}: {message.trouble}"
        job = with_loss(job, Loss(member.name, member.pod, Cause.DISRUPTION.value, words))
    elif is_uncalled and was_working:
        job = failed(job, member, status=None)
    round = job.membership.round
    if message.killed and was_working and round is not None:
        job = job.with_round(replace(round, killed=round.killed + message.killed))
    store = message.store or member.store
    # A member that answers may have missed the view of its newest world, and then names the world before.
    generation, step = max(message.after, member.generation) if is_answer and is_of_world else message.after, message.step
    if is_newcomer:
        generation, step = 0, None
    state: dict[str, Any] = {"alive": message.alive, "step": step, "provisional": is_newcomer}
    if not message.alive:
        state["saves"] = Saves()  # other processes take the places of those that failed to save
    return job.change(member.name, phase=MemberPhase.READY, world_id="", generation=generation, store=store, **state)


def failed(
    job: JobState,
    member: Member,
    *,
    status: int | None,
    ago_s: float = 0.0,
    rank: int | None = None,
    error: str = "",
    is_replaced: bool = False,
    cause: Cause = Cause.USER,
) -> JobState:
    """Record that a worker of the member ended by itself in the current world."""
    at = job.now - ago_s
    failure = PendingFailure(member.name, member.pod, status, at=at, rank=rank, error=error, is_replaced=is_replaced, cause=cause)
    return replace(job, accounting=accounting.with_failure(job.accounting, failure))


def is_leaving_world(job: JobState) -> bool:
    """Return whether the world is being left for another reason than a failure, so that the end of a process says nothing.

    In a change in process no process is asked to end.
    """
    round = job.membership.round
    return round is not None and round.draining and not round.in_place and not job.accounting.failures


def gone_as_told(job: JobState, name: str, *, words: str) -> JobState:
    """Drop a member that is no longer here, for the announced cause if it had to leave."""
    notice = leave_notice(job.membership, name, now=job.now)
    return gone(job, name, cause=notice.cause if notice is not None else "", words=words)


def gone(job: JobState, name: str, *, cause: str = "", words: str) -> JobState:
    """Drop a member that is no longer here.

    A member that had finished stays known, because its end was no loss. Without a cause, the end is taken for a disruption
    until the controller says how the container ended.
    """
    group = job.membership
    member = group.members[name]
    if member.phase is MemberPhase.FINISHED:
        return job
    if group.world is not None and name in group.world.ranks:
        loss = Loss(name, member.pod, cause or Cause.DISRUPTION.value, words, is_gone=True, unsure=not cause, may_work=not cause)
        job = with_loss(job, loss)
    return replace(job, membership=job.membership.without(name))
