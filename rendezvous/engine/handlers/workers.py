"""Put what members say about their workers in a change in process into the job."""

from __future__ import annotations

from ..handlers.training import stepped
from ..in_place import RECEIVE_S
from ..messages.bounds import clipped
from ..messages.in_place import Able, Complains, Formed, FromWorkers, Holds, Progressed, Put, Receives, Stage, Unable
from ..state import accounting
from ..state.job import JobState
from ..state.membership import LeftLoop, Member, MemberPhase
from ..values import replace
from ..words import UNFORMED


def hear(job: JobState, member: Member, message: FromWorkers) -> JobState:
    """Return the job after a member said something about its workers. A message about another round changes nothing."""
    if isinstance(message, Able):
        return _able(job, member, message)
    if isinstance(message, Unable):
        return job.change(member.name, workers=0, alive=False, left=_left(job, member, message))
    if isinstance(message, Progressed):
        return _progressed(job, message)
    if isinstance(message, Put):
        return job  # the hub passes it on; it decides nothing
    known = job.in_place
    if not _is_in_world(job, member):
        return job
    if isinstance(message, Complains):
        is_heard = known.is_adopted or (known.stands and message.round == known.world_round)
        return replace(job, accounting=accounting.with_alarm(job.accounting, member.name)) if is_heard else job
    if isinstance(message, Formed) and known.is_adopted and message.round <= known.round:
        known = replace(known, world_round=message.round)
    elif message.round != known.round:
        return job
    if isinstance(message, Holds):
        holds = {**known.holds, member.name: message.step}
        return replace(job, in_place=replace(known, holds=holds)) if known.stage is Stage.HOLD else job
    if known.stage is not Stage.FORM:
        return job
    if isinstance(message, Formed):
        return replace(job, in_place=replace(known, formed=known.formed | {member.name}))
    if isinstance(message, Receives):
        return replace(job, in_place=replace(known, until=max(known.until, job.now + RECEIVE_S)))
    if known.trouble:
        return job
    words = clipped(f"{member.name} {UNFORMED}: {message.words}")
    return replace(job, in_place=replace(known, trouble=words))


def _left(job: JobState, member: Member, message: Unable) -> LeftLoop | None:
    """Return the early end of a loop of the member. A new connection repeats the message, so the first one counts."""
    if member.left is not None or not message.early:
        return member.left
    return LeftLoop(job.now, message.rank, message.error)


def _able(job: JobState, member: Member, message: Able) -> JobState:
    """Note that the workers of a member wait at their first boundary."""
    world = job.membership.world
    is_first_world = world is not None and member.world_id == world.id and message.generation == world.generation
    if is_first_world and member.phase is MemberPhase.RUNNING:
        # Once the world changes in process, its members say this again only after a new connection, and hold a newer state by then.
        step = message.step if job.in_place.stage is None else member.step
        return job.change(member.name, workers=message.workers, step=step)
    if member.phase is MemberPhase.BOOTING and not member.generation and not message.generation:
        return job.change(member.name, phase=MemberPhase.READY, alive=True, provisional=True, workers=message.workers, step=None)
    return job


def _progressed(job: JobState, message: Progressed) -> JobState:
    """Take the first step of a world formed in process as the proof that forming worked."""
    world = job.membership.world
    if world is not None and message.generation == world.generation and job.in_place.stage is Stage.RUN:
        job = replace(job, in_place=replace(job.in_place, attempts=0))
    return stepped(job, message.generation, message.step)[0]


def _is_in_world(job: JobState, member: Member) -> bool:
    world = job.membership.world
    return world is not None and member.world_id == world.id and member.name in world.ranks
