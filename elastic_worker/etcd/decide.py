"""Decide what one member does next: what it sees of the job, and the record of the world that it writes if it is its turn.

The engine decides (elastic_worker.etcd.hosting makes its state of the records). Every member asks it, with the same records. The write is
one transaction that fails if anything it rests on has changed, so one decision counts although each member has its own engine.

Waits are measured by how long this member itself has watched a fact hold; clocks of two hosts are never compared.
"""

import dataclasses
import math
import typing

from elastic_worker._engine.choose import target
from elastic_worker._engine.events import Tick
from elastic_worker._engine.in_place import RECEIVE_S
from elastic_worker._engine.messages.in_place import Change, Stage
from elastic_worker._engine.state.job import JobState
from elastic_worker._engine.state.membership import pod_of
from elastic_worker._engine.step import Wake, step
from elastic_worker._engine.views import view
from elastic_worker._engine.words import Cause
from elastic_worker.etcd import changes
from elastic_worker.etcd.change_records import FORM, HOLD, PLAIN, RESTART, RUN, STOP
from elastic_worker.etcd.group import Group, Rules, Standing, listed
from elastic_worker.etcd.hosting import job_of
from elastic_worker.etcd.records import MEMBERS, MOST_ENDS, PROGRESS, End, Records, Round, Seat, World, clipped
from elastic_worker.etcd.waits import Since, Waits

MOST_DELETED = 16
"""Records of members that have left, deleted with one write; etcd allows 128 comparisons in a transaction."""
RETURN_S = 5.0
"""For peers that did not reach etcd either, after all leases have ended there."""
TURN_S = 1.0
"""Seconds for the member whose turn it is to write; then it is the next one's turn."""
MOST_SUSPECTS = 8
"""Number of peers that a member looks after; each peer has as many that look after it."""
MOST_STEPS = 4
"""Stages of a change in process that one decision may pass through without a write."""
LAST_CALLS = 10
"""Longest wait of a world for newcomers that keep coming, as a multiple of last_call_s."""

FOREIGN = "the world under this rendezvous id is sealed with another token; is ELASTIC_TOKEN the same for all agents?"


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


@dataclasses.dataclass(frozen=True)
class Write:
    """The next state of the world. `unchanged` are further keys that must still have these revisions; `deleted` go with it."""

    world: World
    unchanged: typing.Tuple[typing.Tuple[str, int], ...] = ()
    deleted: typing.Tuple[typing.Tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Decision:
    """Sight and write of this member, and the time at which time alone may change something.

    job, since: the state of the engine, and the times since which awaited facts hold, for the next decision. suspects: peers that may be
    why the world broke, and have said nothing: this member should find out whether they live.
    """

    sight: Sight
    write: typing.Optional[Write]
    job: JobState
    since: Since
    look_again_at: typing.Optional[float]
    suspects: typing.Tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Step:
    """Next step of the group: nothing (`waiting` says for what), or somebody writes this."""

    waiting: str = ""
    write: typing.Optional[Write] = None
    writers: typing.Tuple[str, ...] = ()


def decide(records: Records, me: Me, rules: Rules, *, before: typing.Optional[Decision], now: float) -> Decision:
    """Return what this member sees and does. before: its last decision, since when it has watched the records."""
    waits, group = Waits(before.since if before is not None else {}, now), Group(records, rules)
    form_until = _form_until(group, waits)
    job = job_of(records, rules, before=before.job if before is not None else None, now=now, form_until=form_until)
    closed = _closed(group)
    if closed:
        return Decision(Sight(closed=closed), None, job, waits.since, None)
    returning = _returning(group, me, waits)
    if returning:
        sight = _in_change(_sight(job, me, waiting="waiting for {} to come back to etcd".format(listed(returning))), group)
        return Decision(sight, None, job, waits.since, waits.look_again_at)
    for _ in range(MOST_STEPS):
        after, effects = step(job, Tick(), now)
        found = _change(group, job, after, waits)
        has_moved = (after.in_place.stage, after.in_place.round) != (job.in_place.stage, job.in_place.round)
        if found.write is not None or found.waiting or not has_moved:
            break
        # The members may have answered already what this member begins now.
        job = job_of(records, rules, before=after, now=now, form_until=form_until)
    write = found.write if found.write is not None and _is_turn(found, me, waits) else None
    # The engine goes no further than the record: it takes the same step again until the record says so, or until something else happens.
    kept = after if found.write is None and not found.waiting else job
    moments = [effect.at for effect in effects if isinstance(effect, Wake)]
    moments += [waits.look_again_at] if waits.look_again_at is not None else []
    sight = _in_change(_sight(kept, me, waiting=found.waiting or _why_waiting(group, kept)), group)
    return Decision(sight, write, kept, waits.since, min(moments, default=None), _suspects(group, kept, me))


def _change(group: Group, job: JobState, after: JobState, waits: Waits) -> Step:
    """Return the record that the engine's step asks for; without one, nothing or the reason why it is not written yet."""
    records, world, now = group.records, group.world, after.membership.world
    if after.accounting.closed and world is not None:
        is_now = ("generation", "seats", "store", "reason", "cause")
        closed = World(**{name: getattr(world, name) for name in is_now}, closed=clipped(after.accounting.closed))
        return Step("", _sealed(group, after, closed, names=tuple(group.those(Standing.BACK))), _all_here(group))
    if now is not None and (world is None or now.generation != world.generation):
        if records.is_foreign and not any(member.entered for member in group.members.values()):
            return Step(FOREIGN)  # members that have trained here write over it; others would fight with agents that train
        chosen = tuple(name for name in now.by_rank if name is not None)
        survivors = [name for name in chosen if job.membership.survives(name)]
        waiting = _last_call(group, waits, chosen) if len(survivors) < group.rules.min else ""
        if waiting:
            return Step(waiting)
        return Step("a new world is being sealed", _sealed(group, after, _world(group, after), names=chosen), chosen)
    stage = changes.next_stage(group, job, after)
    if world is not None and stage != changes.recorded(group).stage:
        return _staged(group, job, after, stage, waits)
    is_aborted = after.in_place.stage is Stage.ABORT
    if world is None or world.round is not None or is_aborted or group.those(Standing.GONE, Standing.BACK, Standing.FAILED):
        return Step()  # the members of a broken world come without a call
    if not after.membership.is_draining:
        behind = "the controller knows of a later world than generation {}".format(world.generation)
        is_called = group.is_behind and not group.has_finished and target(after)
        return _call(group, after, Round(behind, Cause.PLAN.value)) if is_called else Step()
    called = after.membership.round
    assert called is not None
    if called.cause == Cause.HANG:
        # A member that was stopped itself may have missed that training went on.
        return _call(group, after, Round(clipped(called.reason), called.cause), unchanged=((PROGRESS, records.progress_written),))
    return _plan(group, job, after, waits)


def _plan(group: Group, job: JobState, after: JobState, waits: Waits, *, stage: str = RESTART) -> Step:
    """Return the call to a change that is wanted, once nobody else is expected to come."""
    called = after.membership.round
    assert called is not None
    wanted = target(job)
    going = [name for name in group.ranks if name not in wanted]
    waiting = _last_call(group, waits, wanted) if not going and not changes.is_broken(group) else ""
    if waiting:
        return Step(waiting)
    planned = tuple(group.ranks[name] for name in going if group.leaving(name) == Cause.PLAN)
    return _call(group, after, Round(clipped(called.reason), called.cause, planned), stage=stage)


def _staged(group: Group, job: JobState, after: JobState, stage: str, waits: Waits) -> Step:
    """Return the record with the next stage of a change in process. It rests on the records of all members of the world."""
    assert group.world is not None
    if stage == HOLD:
        return _plan(group, job, after, waits, stage=HOLD)
    called, change = after.membership.round, changes.written(group, after, stage=stage)
    world = dataclasses.replace(group.world, change=change)
    if stage == RESTART:
        assert called is not None
        planned = group.world.round.planned if group.world.round is not None else ()
        round = Round(clipped(called.reason), called.cause, planned)
        world = dataclasses.replace(world, round=round, change=changes.restarting(group, after))
    elif stage != STOP:
        heirs = tuple(range(len(group.world.seats))) if changes.recorded(group).stage == FORM else group.world.heirs
        world = dataclasses.replace(world, round=None, heirs=heirs)
    return Step("a change in process goes on", Write(world, _seats(group)), tuple(group.those(Standing.WORKING)))


def _seats(group: Group) -> typing.Tuple[typing.Tuple[str, int], ...]:
    """Return the records of all members of the world with their revisions."""
    present = group.records.members
    return tuple((MEMBERS + name, present[name].written) for name in group.ranks if name in present)


def _form_until(group: Group, waits: Waits) -> float:
    """Return when a world that is being formed in process counts as failed: some seconds after it was seen, and after the last news."""
    change, received = changes.recorded(group), changes.received(group)
    if change.stage != FORM:
        return math.inf
    until = waits.began(("forms", _generation(group), change.round)) + changes.form_s(group)
    if not received:
        return until
    return max(until, waits.began(("receives", _generation(group), change.round, received)) + RECEIVE_S)


def _why_waiting(group: Group, job: JobState) -> str:
    """Return why members at the barrier are in no world, if the engine itself says it in fewer words."""
    if job.is_done or job.membership.expectation is None:
        return ""
    if group.has_finished and group.those(Standing.WORKING):
        return "other members of generation {} are finishing their work".format(_generation(group))
    wanted = target(job)
    if not wanted:
        return _too_few(group)
    if group.world is not None and not job.membership.is_draining and set(wanted) == set(group.ranks):
        return "generation {} trains with {} members, and no more are taken in".format(group.world.generation, len(group.ranks))
    late = [name for name in wanted if group.standings.get(name) in (Standing.WORKING, Standing.FAILED)]
    if job.membership.is_draining and late:
        return "waiting for {} to come back from generation {}".format(listed(late), _generation(group))
    absent = group.absent()
    return "waiting for {}".format(listed(absent)) if absent else ""


def _suspects(group: Group, job: JobState, me: Me) -> typing.Tuple[str, ...]:
    """Return the next members by rank that say that they work, once somebody's workers have failed: so each is looked after.

    In a restart each may take its time. In a change in process, members look after those that they wait for.
    """
    is_called = group.world is None or (group.world.round is not None and job.in_place.stage is None)
    if is_called or not (changes.is_broken(group) or job.in_place.stage not in (None, Stage.RUN)):
        return ()
    own, size = group.ranks.get(me.name, 0), len(group.ranks)
    others = [name for name in group.those(Standing.WORKING) if name != me.name]
    return tuple(sorted(others, key=lambda name: (group.ranks[name] - own) % size)[:MOST_SUSPECTS])


def _returning(group: Group, me: Me, waits: Waits) -> typing.List[str]:
    """Return the members that may come back to this world: an absent etcd takes all leased records, and nobody was lost."""
    if group.world is None or (group.world.round is not None and not changes.is_in_process(group)):
        return []
    gone = [name for name in group.those(Standing.GONE) if name in me.unseen and name not in group.records.members]
    return gone if gone and not waits.held(("unseen", group.world.generation), RETURN_S) else []


def _closed(group: Group) -> str:
    if group.expected is not None and group.expected.closed:
        return group.expected.closed
    return group.world.closed if group.world is not None else ""


def _is_turn(step: Step, me: Me, waits: Waits) -> bool:
    """Return whether it is this member's turn: the first writer writes at once, the next one if those before it did not."""
    if me.name not in step.writers or step.write is None:
        return False
    world = step.write.world
    fact = ("turn", world.generation, step.write.unchanged, world.round is None, world.change.stage if world.change is not None else "")
    return waits.held(fact, step.writers.index(me.name) * TURN_S)


def _last_call(group: Group, waits: Waits, coming: typing.Sequence[str]) -> str:
    """Return for whom a job without a controller waits. With one, the engine waits for the members that it expects."""
    if group.expected is not None or len(coming) >= group.rules.max:
        return ""
    rules, generation = group.rules, _generation(group)
    is_calm = waits.held(("came", generation, frozenset(coming)), rules.last_call_s)
    is_late = waits.held(("enough", generation), rules.last_call_s * LAST_CALLS)
    return "" if is_calm or is_late else "waiting {:g} s for others that may come".format(rules.last_call_s)


def _generation(group: Group) -> int:
    return group.world.generation if group.world is not None else 0


def _too_few(group: Group) -> str:
    here = [name for name in group.candidates() if not group.leaving(name)]
    if group.rules.sizes:
        return "{} here, and no allowed size fits: {}".format(len(here), ", ".join(str(size) for size in group.rules.sizes))
    return "{} of at least {} members {} here".format(len(here), group.rules.min, "is" if len(here) == 1 else "are")


def _call(
    group: Group, after: JobState, round: Round, *, unchanged: typing.Tuple[typing.Tuple[str, int], ...] = (), stage: str = RESTART
) -> Step:
    """Return the record that calls the members of the world: to a change in process (HOLD), or back to the barrier."""
    assert group.world is not None
    change = group.world.change
    if stage == HOLD:
        change, unchanged = changes.written(group, after, stage=HOLD), _seats(group)
    elif change is not None:
        change = changes.restarting(group, after)
    world = dataclasses.replace(group.world, round=round, change=change)
    return Step("a new world forms: {}".format(round.reason), Write(world, unchanged), _awake(group))


def _awake(group: Group) -> typing.Tuple[str, ...]:
    return tuple(group.those(Standing.WORKING))


def _all_here(group: Group) -> typing.Tuple[str, ...]:
    return tuple(group.those(Standing.BACK)) or tuple(group.candidates())


def _world(group: Group, after: JobState) -> World:
    """Return the record of the world that the engine has sealed."""
    now, present = after.membership.world, group.records.members
    assert now is not None
    by_rank = [name for name in now.by_rank if name is not None]
    is_alive = after.in_place.stage is Stage.FORM
    change = changes.written(group, after, stage=FORM) if is_alive else changes.restarting(group, after)
    return World(
        generation=now.generation,
        seats=tuple(Seat(name, present[name].record.incarnation) for name in by_rank),
        store=now.store,
        reason=clipped(now.reason),
        cause=now.cause,
        heirs=tuple(rank for rank, name in enumerate(by_rank) if now.heirs is not None and name in now.heirs),
        change=change if change.round else None,
    )


def _sealed(group: Group, after: JobState, world: World, *, names: typing.Tuple[str, ...]) -> Write:
    """Return the write of this world with the job's account."""
    present, former = group.records.members, group.world
    seats = former.seats if former is not None else ()
    seat_of = {pod_of(seat.incarnation): seat for seat in seats}
    found = [(entry, seat_of[entry.pod] if entry.pod else seats[0]) for entry in after.accounting.known_restarts.values()]
    ends = tuple(End(entry.generation, seat.name, seat.incarnation, entry.cause, is_lost=entry.lost) for entry, seat in found)
    world = dataclasses.replace(
        world,
        restarts={cause: count for cause, count in after.accounting.restarts.items() if count},
        ends=(*(former.ends if former is not None else ()), *ends)[-MOST_ENDS:],
        fruitless=after.progress.fruitless,
        step=after.progress.step_at_restart,
    )
    left = sorted(name for name, member in present.items() if member.record.left and name not in names)
    rests_on = {MEMBERS + name: present[name].written for name in names}
    if world.change is not None and world.change.stage == FORM:
        rests_on.update(_seats(group))
    return Write(
        world,
        tuple(rests_on.items()),
        tuple((MEMBERS + name, present[name].written) for name in left[:MOST_DELETED]),
    )


def _sight(job: JobState, me: Me, *, waiting: str) -> Sight:
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
    )


def _in_change(sight: Sight, group: Group) -> Sight:
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
