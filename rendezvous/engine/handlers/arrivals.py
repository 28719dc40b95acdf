"""Handle a member that presents itself, alone or with the world that it holds.

The member is put into the world, to the barrier, or to the newcomers. A server that has just started also learns the world from it.
"""

from __future__ import annotations

from .. import in_place, presented, reach
from ..handlers.leaving_world import failed, gone_as_told, is_leaving_world, ready
from ..messages.in_place import Stage
from ..messages.member import Held, Join, Ready
from ..restart_budget import with_presented
from ..state import accounting, progress
from ..state.job import JobState
from ..state.membership import CurrentWorld, Member, MemberPhase, pod_of, ranks_of
from ..values import replace
from ..words import Cause

RETIRED_KEPT = 1024


def is_retired(job: JobState, name: str, incarnation: str) -> bool:
    """Return whether a newer incarnation has replaced this one."""
    return (name, incarnation) in job.membership.retired


def join(job: JobState, *, name: str, incarnation: str, message: Join) -> JobState:
    """Return the job with this member."""
    known = job.membership.members.get(name)
    if known is not None and known.incarnation != incarnation:
        job = _retire(job, known, by=incarnation)
        known = None
    held = message.held
    if held is not None:
        held = presented.placed_near(job, held)
        job = _adopt(job, held) if held.id else job
        job = _adopt_change(job, held, has_workers=message.workers > 0)
    if known is None:
        if held is None:
            job = replace(job, accounting=accounting.with_return(job.accounting, name))
        phase = MemberPhase.READY if message.ready else MemberPhase.BOOTING
        group = job.membership
        known = Member(name=name, incarnation=incarnation, phase=phase, heard_at=job.now, arrived=group.arrivals)
        silent = {other: at for other, at in group.silent.items() if other != name}
        job = replace(job, membership=replace(group, arrivals=group.arrivals + 1, silent=silent))
    step = message.step if message.ready else None
    # In a world that processes have yet to form, only Able says which step they hold. It follows.
    workers = message.workers if message.ready or job.in_place.stage is not None else 0
    member = replace(known, heard_at=job.now, broken_at=None, store=message.store or known.store, workers=workers, step=step)
    job = replace(job, membership=job.membership.with_member(member))
    after = held.generation if held is not None else 0
    barrier = None
    if message.ready:
        barrier = Ready(after=after, store=member.store, trouble=message.trouble)
        barrier = replace(barrier, alive=message.alive, step=message.step, round=message.round)
    if held is not None and message.failed:
        job = _failed_before(job, member, held=held, message=message)
    return _place(job, member, held=held, barrier=barrier, is_newcomer=message.provisional and message.alive)


def _failed_before(job: JobState, member: Member, *, held: Held, message: Join) -> JobState:
    """Record why a member is at the barrier. It repeats that, because the server that heard it first may be gone."""
    world = job.membership.world
    if world is None or held.generation != world.generation or not _may_hold(world, held, member.name):
        return job
    if is_leaving_world(job) and not world.adopted:
        return job
    return failed(job, member, status=message.status, ago_s=message.failed_ago_s)


def _place(job: JobState, member: Member, *, held: Held | None, barrier: Ready | None, is_newcomer: bool) -> JobState:
    """Put a member that presented itself where it belongs: into the current world, to the barrier, or astray.

    A newcomer's processes started in a world of their own. Its agent may have been in the current world before, and still names it.
    """
    group = job.membership
    world = group.world
    generation = held.generation if held is not None else 0
    if world is not None and member.phase is not MemberPhase.BOOTING and member.world_id == world.id and generation < world.generation:
        # The world was sealed with it while it was away: its view tells it so. It may answer the change that ends that world already.
        return ready(job, member, barrier) if barrier is not None and barrier.alive else job
    # If it comes back after the others gave it up in a change in process, nobody waits for its answer any more.
    is_given_up = job.in_place.stage is not None and any(loss.member == member.name for loss in job.accounting.losses)
    if world is not None and held is not None and not is_given_up and _may_hold(world, held, member.name):
        if world.by_rank[held.rank] is None:
            job = replace(job, membership=replace(group, world=world.with_member_at(held.rank, member.name)))
        if member.phase is MemberPhase.FINISHED:
            return job
        if is_newcomer:
            return _at_barrier(job, member)
        working = job.change(member.name, phase=MemberPhase.RUNNING, world_id=world.id, generation=generation)
        if barrier is None:
            return working
        if not world.adopted:
            return ready(working, working.membership.members[member.name], barrier)
    if is_newcomer or (barrier is not None and barrier.alive and (member.provisional or not generation)):
        return _at_barrier(job, member)
    if barrier is None or not barrier.alive:
        phase = MemberPhase.READY if barrier is not None else MemberPhase.BOOTING
        return job.change(member.name, phase=phase, world_id="", generation=generation, alive=False)
    if world is not None and generation == world.generation:
        return job.change(member.name, phase=MemberPhase.READY, world_id="", generation=generation, alive=True)
    # The others may have made its last step again, without it. Then equal steps would hide that the states differ.
    return job.change(member.name, phase=MemberPhase.BOOTING, world_id="", generation=generation, alive=False, workers=0, step=None)


def _at_barrier(job: JobState, newcomer: Member) -> JobState:
    """Return the job with a newcomer whose processes stand by. They hold the state of no world."""
    return job.change(newcomer.name, phase=MemberPhase.READY, world_id="", generation=0, step=None, alive=True, provisional=True)


def _may_hold(world: CurrentWorld, held: Held, name: str) -> bool:
    """Return whether the member may hold this rank: it is one of this world, and free or its own."""
    return held.id == world.id and held.rank < world.size and world.by_rank[held.rank] in (None, name)


def _adopt(job: JobState, held: Held) -> JobState:
    """Learn from what a member holds: never number a world below it, and after a restart take its world as the current one."""
    believed = presented.credible(job, held)
    group = job.membership
    job = replace(job, membership=replace(group, generation=max(group.generation, held.generation)))
    job = with_presented(job, believed)
    world = job.membership.world
    if world is not None and not world.adopted and held.generation > group.generation:
        return reach.succeeded(job)
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
    return replace(
        job,
        membership=job.membership.in_world(world),
        accounting=replace(job.accounting.in_new_world(), unacknowledged_restarts=believed),
        progress=progress.in_new_world(job.progress, now=job.now),
    )


def _adopt_change(job: JobState, held: Held, *, has_workers: bool) -> JobState:
    """Learn from what a member holds which changes in process there were, and that its world changes in process."""
    known, world = job.in_place, job.membership.world
    known = replace(known, round=max(known.round, held.round))
    if world is not None and world.adopted and held.id == world.id and held.round and has_workers and known.stage in (None, Stage.FORM):
        known = replace(known, stage=Stage.FORM, is_adopted=True, has_trained=True, until=job.now + in_place.RECEIVE_S)
    return replace(job, in_place=known)


def _retire(job: JobState, member: Member, *, by: str) -> JobState:
    """Retire an incarnation of which a newer one has come. It may not come back."""
    retired = (*job.membership.retired, (member.name, member.incarnation))[-RETIRED_KEPT:]
    if member.has_left and member.pod == pod_of(by):
        # Its container ended with 0 and was started again all the same (restartPolicy Always): so will the others be, and the work.
        job = replace(job, membership=replace(job.membership, finished=frozenset()))
    job = gone_as_told(job, member.name, words=f"{member.name} started anew")
    return replace(job, membership=replace(job.membership, retired=retired).without(member.name))
