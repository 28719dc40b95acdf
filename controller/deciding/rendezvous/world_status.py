"""Write into a job's status what the rendezvous server, or the agents in an etcd, report about its world.

That is the restarts, the generation, the size and the newest rescale.
"""

import dataclasses
import re
from collections.abc import Sequence

from msgspec.structs import replace

from elastic.api.book import Leaving
from elastic.api.job import ElasticStatus, JobStatus
from elastic.api.words import Cause, ConditionType
from elastic.membership.phases import WorldPhase
from elastic_training.controller.deciding.actions import Plan
from elastic_training.controller.deciding.job_view import JobView
from elastic_training.controller.deciding.lifecycle import restart_accounting
from elastic_training.controller.deciding.lifecycle.conditions import holds
from elastic_training.controller.deciding.rendezvous import failing_saves, hangs, stragglers
from elastic_training.controller.facts.snapshot import Snapshot, WorldSeen

MOST_RANKS = 1024
WORKER_NAME = re.compile(r"-(worker|node-0)-[0-9]+$")
"""End of the names of workers, which are called nodes if a TrainJob owns the job."""


def recorded(view: JobView, known: ElasticStatus, *, leaving: Sequence[Leaving]) -> ElasticStatus:
    """Return the status with all that the rendezvous server says."""
    new = _with_world(view, replace(known, backend=view.backend.value), leaving)
    return restart_accounting.dated(view.job, known=known, new=new, now=view.snapshot.now)


def with_last_step(view: JobView) -> JobStatus:
    """Return the status of a job that ends or has ended, with its last step, which soon nobody else remembers.

    If a world works up to the job's end, the step is known once the rendezvous has forgotten the job.
    """
    known, world = view.status.elastic, view.snapshot.world
    highest = world.highest if world is not None and view.sees_members else None
    told = [step for step in (highest, view.snapshot.last_step) if step is not None]
    if known is None or not told:
        return view.status
    return replace(view.status, elastic=replace(known, step=max(*told, known.step or 0)))


def with_early_end(view: JobView, status: JobStatus) -> JobStatus:
    """Return the status of a job that has succeeded, with workers that ended with status 0 while others failed."""
    known, world = status.elastic, view.snapshot.world
    if known is None or known.ended_early or world is None or not view.sees_members:
        return status
    return replace(status, elastic=replace(known, ended_early=world.ended_early))


def record_restarts(view: JobView) -> Plan | None:
    """Write down the restarts that only the rendezvous server knows, before it forgets the job.

    Once the job says that it is suspended, lost workers go for that reason: a controller that died then had not told the server so.
    """
    known, world = view.status.elastic or ElasticStatus(), view.snapshot.world
    if not view.sees_members or world is None:
        return None
    if holds(view.status, ConditionType.SUSPENDED):
        restarts = tuple(one for one in world.unacknowledged_restarts if one.cause != Cause.DISRUPTION)
        world = dataclasses.replace(world, unacknowledged_restarts=restarts)
    view = dataclasses.replace(view, snapshot=dataclasses.replace(view.snapshot, world=world))
    if (elastic := recorded(view, known, leaving=known.leaving)).restarts == known.restarts:
        return None
    return Plan(status=replace(view.status, elastic=elastic))


def _with_world(view: JobView, status: ElasticStatus, leaving: Sequence[Leaving]) -> ElasticStatus:
    """Return the status with the leaving workers, the restarts, and the number, size and rescale of the newest world."""
    new, snapshot = replace(status, leaving=tuple(leaving)), view.snapshot
    if snapshot.world is None:
        return new
    new = failing_saves.recorded(stragglers.recorded(view.job, hangs.recorded(new, snapshot), snapshot), snapshot)
    new = _of_world(restart_accounting.with_reported_restarts(new, snapshot.world), snapshot, snapshot.world)
    return restart_accounting.settled(new, snapshot.pods, before=status)


def _of_world(status: ElasticStatus, snapshot: Snapshot, world: WorldSeen) -> ElasticStatus:
    status = replace(status, closed=world.closed or status.closed, ended_early=status.ended_early or world.ended_early)
    if world.fruitless is not None:
        status = replace(status, fruitless=world.fruitless, step=world.step)
    last = status.last_rescale
    if world.rescale is not None and last is not None and world.rescale.id == last.id:
        # Only we write the number of the group. If somebody has lowered it, or made it unreadable, the world's number is stored again.
        generation = max(status.generation, world.generation) if world.phase == WorldPhase.RUNNING else status.generation
        seen = replace(world.rescale, at=last.at, from_size=last.from_size, to_size=last.to_size)
        return replace(status, generation=generation, last_rescale=seen)
    if world.phase != WorldPhase.RUNNING or world.generation < status.generation:
        return status
    size = len(world.members)
    if world.generation == status.generation:
        # The members of a world that a restarted rendezvous server found running present themselves one after the other.
        return replace(status, world_size=size, ranks=_ranks(world)) if size > status.world_size else status
    if world.rescale is not None:
        status = replace(status, last_rescale=replace(world.rescale, at=snapshot.now, from_size=status.world_size, to_size=size))
    return replace(status, generation=world.generation, world_size=size, ranks=_ranks(world))


def _ranks(world: WorldSeen) -> str:
    """Return the workers' names by rank, cut to a length that fits most jobs. More names would crowd the status."""
    indexes = [name.rpartition("-")[2] if WORKER_NAME.search(name) else "" for name in world.ranked]
    return ",".join(indexes) if len(indexes) <= MOST_RANKS else ""
