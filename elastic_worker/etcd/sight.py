"""Say what one member sees of the job: its place in the world, or why it waits, and what is asked of it. Pure."""

import dataclasses
import typing

from elastic_worker._engine.messages.in_place import Change, Stage
from elastic_worker._engine.state.job import JobState
from elastic_worker._engine.views import view
from elastic_worker.etcd import changes
from elastic_worker.etcd.change_records import PLAIN, RUN
from elastic_worker.etcd.group import Group
from elastic_worker.etcd.records import clipped


@dataclasses.dataclass(frozen=True)
class Me:
    """The member that decides. unseen: peers of its world whose records were gone when it began to watch."""

    name: str
    incarnation: str
    unseen: typing.FrozenSet[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Sight:
    """Knowledge of this member about itself; elastic_worker.agent.view describes the fields."""

    generation: int = 0
    rank: int = 0
    size: int = 0
    store: str = ""
    reform: str = ""
    waiting: str = ""
    finished: str = ""
    closed: str = ""
    leaving: str = ""
    peers_finished: bool = False
    provisional: bool = False
    change: typing.Optional[Change] = None
    nonce: str = ""
    watch: str = ""
    pace_s: float = 0.0


def sight_of(job: JobState, me: Me, *, waiting: str) -> Sight:
    """Return what a member sees of this state."""
    member = job.membership.members.get(me.name)
    if member is None or member.incarnation != me.incarnation:
        return Sight(waiting=clipped(waiting or "waiting for its own record"))
    seen = view(job, me.name)
    if not seen.generation:
        why = "{} is leaving ({})".format(me.name, seen.leaving) if seen.leaving else waiting or seen.waiting
        sight = Sight(waiting=clipped(why), finished=seen.finished, leaving=seen.leaving, reform=seen.reform)
        return dataclasses.replace(sight, provisional=seen.provisional, change=seen.change)
    return Sight(
        generation=seen.generation,
        rank=seen.rank,
        size=seen.size,
        store=seen.store,
        reform=seen.reform,
        leaving=seen.leaving,
        peers_finished=seen.peers_finished,
        change=seen.change,
        watch=seen.watch.value,
        pace_s=seen.pace_s,
    )


def in_change(sight: Sight, group: Group) -> Sight:
    """Return the sight with the change as its workers may hear it. They hear `plain` only once it is written, because it lasts.

    Until then they hear that they train, although the next change will restart them: they may still wait for that word.
    """
    if sight.change is None:
        return sight
    change, known = sight.change, changes.recorded(group)
    if change.stage is Stage.PLAIN and known.stage != PLAIN:
        runs = Change(stage=Stage.RUN, round=known.round, step=known.step)
        return dataclasses.replace(sight, change=runs if known.stage == RUN else None, nonce=known.nonce)
    return dataclasses.replace(sight, change=change, nonce=known.nonce)
