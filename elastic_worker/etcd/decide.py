"""Decide what one member does next, from the records under the job's prefix. Pure: every member decides the same from the same records.

A member sees itself in a world, at the barrier, or done (Sight). If the world must change, the member whose turn it is writes the next
one (Write), by one transaction that fails if anything it rests on has changed. Waits are measured by how long this member itself has
watched a fact hold; clocks of two hosts are never compared.
"""

import dataclasses
import signal
import typing

from elastic_worker.etcd.charges import HANG, OUT_OF_MEMORY, USER, cause_of, charged, ends_of
from elastic_worker.etcd.group import DISRUPTION, PLAN, Group, Rules, Standing, listed
from elastic_worker.etcd.records import MEMBERS, MOST_ENDS, PROGRESS, Records, Round, Seat, World, clipped

MOST_DELETED = 16
"""Records of members that have left, deleted with one write; etcd allows 128 comparisons in a transaction."""
RETURN_S = 5.0
"""For peers that did not reach etcd either, after all leases have ended there."""
TURN_S = 1.0
"""Seconds for the member whose turn it is to write; then it is the next one's turn."""
MOST_SUSPECTS = 8
"""Number of peers that a member looks after; each peer has as many that look after it."""
LAST_CALLS = 10
"""Longest wait of a world for newcomers that keep coming, as a multiple of last_call_s."""
START = "start"
OF_FAILURES = (USER, OUT_OF_MEMORY)
DONE = "the training has ended: its other workers are done, and nobody is taken in any more"

FOREIGN = "the world under this rendezvous id is sealed with another token; is ELASTIC_TOKEN the same for all agents?"

Fact = typing.Tuple[typing.Any, ...]
Since = typing.Mapping[Fact, float]


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


@dataclasses.dataclass(frozen=True)
class Write:
    """The next state of the world. `unchanged` are further keys that must still have these revisions; `deleted` go with it."""

    world: World
    unchanged: typing.Tuple[typing.Tuple[str, int], ...] = ()
    deleted: typing.Tuple[typing.Tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Decision:
    """Sight and write of this member, the times since which awaited facts hold, and the time at which time alone may change something.

    suspects: peers that may be why the world broke, and have said nothing: this member should find out whether they live.
    """

    sight: Sight
    write: typing.Optional[Write]
    since: Since
    look_again_at: typing.Optional[float]
    suspects: typing.Tuple[str, ...] = ()


class Waits:
    """How long facts have held, as one member has watched them. A fact that a decision does not ask about is forgotten."""

    def __init__(self, since: Since, now: float) -> None:
        self._before = since
        self._now = now
        self.since = {}  # type: typing.Dict[Fact, float]
        self.look_again_at = None  # type: typing.Optional[float]

    def held(self, fact: Fact, seconds: float) -> bool:
        """Whether this fact, which holds now, has held for so long."""
        began = self.since[fact] = self._before.get(fact, self._now)
        if self._now >= began + seconds:
            return True
        at = began + seconds
        self.look_again_at = at if self.look_again_at is None else min(at, self.look_again_at)
        return False


@dataclasses.dataclass(frozen=True)
class Step:
    """Next step of the group: nothing (`waiting` says for what), or somebody writes this."""

    waiting: str = ""
    write: typing.Optional[Write] = None
    writers: typing.Tuple[str, ...] = ()


def decide(records: Records, me: Me, rules: Rules, *, since: Since, now: float) -> Decision:
    """Return what this member sees and does, given since when it has watched which facts."""
    waits = Waits(since, now)
    group = Group(records, rules, has_aged=_has_aged(records, waits), has_lasted=_has_lasted(records, rules, waits))
    closed = _closed(group)
    if closed:
        return Decision(Sight(closed=closed), None, waits.since, None)
    returning = _returning(group, me, waits)
    if returning:
        step = Step("waiting for {} to come back to etcd".format(listed(returning)))
        return Decision(_sight(group, me, None, step), None, waits.since, waits.look_again_at)
    if _is_done(group, waits):
        return Decision(_sight(group, me, None, Step(DONE)), None, waits.since, waits.look_again_at)
    over = _over(group, waits)
    step = _change(group, waits) if over is None else _form(group, waits, over)
    write = step.write if step.write is not None and _is_turn(step, me, waits) else None
    return Decision(_sight(group, me, over, step), write, waits.since, waits.look_again_at, _suspects(group, me))


def _suspects(group: Group, me: Me) -> typing.Tuple[str, ...]:
    """Once somebody's workers have failed, those who say that they work: the next ones by rank, so that everybody is looked after."""
    if group.world is None or group.world.round is not None or not group.those(Standing.FAILED, Standing.BACK):
        return ()
    own, size = group.ranks.get(me.name, 0), len(group.ranks)
    others = [name for name in group.those(Standing.WORKING) if name != me.name]
    return tuple(sorted(others, key=lambda name: (group.ranks[name] - own) % size)[:MOST_SUSPECTS])


def _returning(group: Group, me: Me, waits: Waits) -> typing.List[str]:
    """Return the members that may come back to this world: an absent etcd takes all leased records, and nobody was lost."""
    if group.world is None or group.world.round is not None:
        return []
    gone = [name for name in group.those(Standing.GONE) if name in me.unseen and name not in group.records.members]
    return gone if gone and not waits.held(("unseen", group.world.generation), RETURN_S) else []


def _has_aged(records: Records, waits: Waits) -> bool:
    """Whether its members have the state of training, for all that is known; it matters only where a controller asks some to leave."""
    world, expected = records.world, records.expected
    if world is None or records.progress is not None or expected is None:
        return False
    return waits.held(("stands", world.generation), expected.state_s)


def _has_lasted(records: Records, rules: Rules, waits: Waits) -> bool:
    world, known = records.world, rules.under(records.expected)
    return world is not None and known.without_progress is not None and waits.held(("lasts", world.generation), known.lasted_s)


def _closed(group: Group) -> str:
    if group.expected is not None and group.expected.closed:
        return group.expected.closed
    return group.world.closed if group.world is not None else ""


def _is_turn(step: Step, me: Me, waits: Waits) -> bool:
    """Whether it is this member's turn: the first writer writes at once, the next one if those before it did not."""
    if me.name not in step.writers or step.write is None:
        return False
    fact = ("turn", step.write.world.generation, step.write.unchanged, step.write.world.round is None)
    return waits.held(fact, step.writers.index(me.name) * TURN_S)


# --- whether the world stands


def _over(group: Group, waits: Waits) -> typing.Optional[Round]:
    """Why the current world must be left; None while it stands."""
    world = group.world
    if world is None:
        return Round("the first members have come", START)
    works_on = bool(group.those(Standing.WORKING))
    if group.has_finished and works_on and world.round is None:
        return None
    if world.round is not None:
        return world.round
    broken = _broken(group)
    may_finish = broken is not None and broken.cause in OF_FAILURES and works_on
    if may_finish and not waits.held(("failed", world.generation), group.rules.peers_s):
        return None
    return broken


def _broken(group: Group) -> typing.Optional[Round]:
    """Return what broke the world. A member lost to something else than its workers comes before failed workers: it made them fail."""
    assert group.world is not None
    lost = [name for name in group.those(Standing.GONE) if group.failure(name) is None]
    if lost:
        return Round(_left(group, lost[0]) or "{} was lost".format(lost[0]), group.leaving(lost[0]) or DISRUPTION)
    troubled = [name for name in group.those(Standing.BACK) if group.members[name].trouble]
    if troubled:
        return Round("{}: {}".format(troubled[0], group.members[troubled[0]].trouble), DISRUPTION)
    for first in group.failed():
        failure = group.failure(first)
        status = failure.status if failure is not None else None
        words = "a worker of {} ended{}".format(first, "" if status is None else " " + _with_status(status))
        cause = cause_of(group, first)
        return Round(words + (", because the memory of its container was used up" if cause == OUT_OF_MEMORY else ""), cause)
    back = group.those(Standing.BACK)
    return Round("{} came back".format(back[0]), DISRUPTION) if back else None


def _with_status(status: int) -> str:
    """How a process ended. Above 128 it is the number of a signal that counts."""
    try:
        return "with status {}, {}".format(status, signal.Signals(status - 128).name)
    except ValueError:
        return "with status {}".format(status)


def _left(group: Group, name: str) -> str:
    present = group.records.members.get(name)
    return "{} left: {}".format(name, present.record.left) if present is not None and present.record.left else ""


# --- a world that stands


def _change(group: Group, waits: Waits) -> Step:
    """Whether members of a world that stands are asked back, so that others can join or must go, or to number it above those before."""
    world, rules = group.world, group.rules
    assert world is not None
    if group.has_finished:
        return Step("other members of generation {} are finishing their work".format(world.generation))
    if _broken(group) is not None:
        return Step("waiting {:g} s for the peers of a failed worker".format(rules.peers_s))  # a planned change now would hide the failure
    if _hangs(group, waits):
        # A member that was stopped itself may have missed that training went on.
        still = ((PROGRESS, group.records.progress_written),)
        return _call(group, Round("training reported no further step for {:g} s".format(rules.hang_s or 0.0), HANG), unchanged=still)
    wanted = group.target()
    if not wanted or (set(wanted) == set(group.ranks) and not group.is_behind):
        return Step("generation {} trains with {} members, and no more are taken in".format(world.generation, len(world.seats)))
    going = [name for name in group.ranks if name not in wanted]
    coming = [name for name in wanted if name not in group.ranks]
    if going:
        cause = next((group.leaving(name) for name in going if group.leaving(name)), PLAN)
        planned = tuple(group.ranks[name] for name in going if group.leaving(name) == PLAN)
        return _call(group, Round(clipped("{} must go ({})".format(listed(going), cause)), cause, planned))
    calm = _waiting_for(group, waits, coming) if len(wanted) < rules.max else ""
    if calm:
        return Step(calm)
    behind = "the controller knows of a later world than generation {}".format(world.generation)
    return _call(group, Round(clipped("{} joined".format(listed(coming)) if coming else behind), PLAN))


def _hangs(group: Group, waits: Waits) -> bool:
    """Whether training, which has reported steps, reports no further one although all members work."""
    world, progress, limit = group.world, group.records.progress, group.rules.hang_s
    if world is None or progress is None or limit is None:
        return False
    if any(group.standings[name] is not Standing.WORKING or group.members[name].entered < world.generation for name in group.ranks):
        return False
    moved = progress.in_world if progress.generation == world.generation else None
    return waits.held(("still", world.generation, moved), limit)


def _waiting_for(group: Group, waits: Waits, coming: typing.Sequence[str]) -> str:
    """Say who else is waited for: expected members if there is a controller, else the last call."""
    rules, generation = group.rules, group.world.generation if group.world is not None else 0
    if group.expected is not None:
        absent = group.absent()
        if absent and not waits.held(("enough", generation), rules.straggler_s):
            return "waiting for {}".format(listed(absent))
        return ""
    is_calm = waits.held(("came", generation, frozenset(coming)), rules.last_call_s)
    is_late = waits.held(("enough", generation), rules.last_call_s * LAST_CALLS)
    return "" if is_calm or is_late else "waiting {:g} s for others that may come".format(rules.last_call_s)


def _call(group: Group, round: Round, *, unchanged: typing.Tuple[typing.Tuple[str, int], ...] = ()) -> Step:
    assert group.world is not None
    write = Write(dataclasses.replace(group.world, round=round), unchanged)
    return Step("a new world forms: {}".format(round.reason), write, _awake(group))


def _awake(group: Group) -> typing.Tuple[str, ...]:
    return tuple(group.those(Standing.WORKING))


# --- a world that is to be formed


def _form(group: Group, waits: Waits, over: Round) -> Step:
    """Seal the next world once everybody who must be waited for is there."""
    if group.rules.needs_controller and group.expected is None:
        return Step("waiting for the controller to say who is expected")
    if group.records.is_foreign and not any(member.entered for member in group.members.values()):
        return Step(FOREIGN)  # those who have trained here write over it; others would fight with agents that train
    chosen = group.target()
    late = [name for name in chosen if group.standings.get(name) in (Standing.WORKING, Standing.FAILED)]
    if late:
        if not waits.held(("over", _generation(group)), group.rules.grace_s + group.rules.drain_s):
            return Step("waiting for {} to come back from generation {}".format(listed(late), _generation(group)))
        chosen = group.target(without=late)
    if not chosen:
        return Step(_too_few(group))
    survivors = [name for name in chosen if name in group.those(Standing.BACK)]
    if len(chosen) < group.rules.max and len(survivors) < group.rules.min:
        waiting = _waiting_for(group, waits, chosen)
        if waiting:
            return Step(waiting)
    write = _seal(group, over, group.by_rank(chosen))
    return Step("a new world is being sealed", write, chosen)


def _generation(group: Group) -> int:
    return group.world.generation if group.world is not None else 0


def _too_few(group: Group) -> str:
    here = [name for name in group.candidates() if not group.leaving(name)]
    if group.rules.sizes:
        return "{} here, and no allowed size fits: {}".format(len(here), ", ".join(str(size) for size in group.rules.sizes))
    return "{} of at least {} members {} here".format(len(here), group.rules.min, "is" if len(here) == 1 else "are")


def _is_done(group: Group, waits: Waits) -> bool:
    """Whether the work is done: somebody has finished, and those who were interrupted cannot form a world."""
    if not group.has_finished or group.those(Standing.WORKING):
        return False
    if not group.those(Standing.BACK, Standing.FAILED):
        return True
    if group.target():
        return False
    return not group.absent() or waits.held(("may come", _generation(group)), group.rules.late_s)


def _seal(group: Group, over: Round, by_rank: typing.Tuple[str, ...]) -> Write:
    ends = ends_of(group)
    account = charged(group, ends)
    if over.cause in OF_FAILURES:
        over = next((Round("{} had to leave ({})".format(*taken), taken[1]) for taken in group.taken_away().items()), over)
    present = group.records.members
    holders = group.state_holders()
    seats = tuple(Seat(name, present[name].record.incarnation) for name in by_rank)
    reason = "{}; {} {}".format(over.reason, len(seats), "member" if len(seats) == 1 else "members")
    world = World(
        generation=group.next_generation(),
        seats=seats,
        store=present[by_rank[0]].record.store,
        reason=clipped(reason),
        cause=over.cause,
        restarts=account.restarts,
        ends=(*(group.world.ends if group.world is not None else ()), *ends)[-MOST_ENDS:],
        fruitless=account.fruitless,
        step=account.step,
        heirs=tuple(rank for rank, name in enumerate(by_rank) if name in holders),
    )
    if account.spent and group.world is not None:
        words = clipped("{}, and {}".format(over.reason, account.spent))
        is_now = ("generation", "seats", "store", "reason", "cause")
        world = dataclasses.replace(world, closed=words, **{name: getattr(group.world, name) for name in is_now})
    left = sorted(name for name, member in present.items() if member.record.left and name not in by_rank)
    return Write(
        world,
        tuple((MEMBERS + name, present[name].written) for name in by_rank),
        tuple((MEMBERS + name, present[name].written) for name in left[:MOST_DELETED]),
    )


# --- what one member sees


def _sight(group: Group, me: Me, over: typing.Optional[Round], step: Step) -> Sight:
    world, leaving = group.world, group.leaving(me.name)
    seat = world.seats[group.ranks[me.name]] if world is not None and me.name in group.ranks else None
    if world is None or seat is None or seat.incarnation != me.incarnation or group.standings[me.name] in (Standing.BACK, Standing.GONE):
        why = "{} is leaving ({})".format(me.name, leaving) if leaving and step.write is None else step.waiting
        return Sight(waiting=clipped(why), finished=step.waiting if step.waiting == DONE else "", leaving=leaving)
    others = [standing for name, standing in group.standings.items() if name != me.name]
    return Sight(
        generation=world.generation,
        rank=group.ranks[me.name],
        size=len(world.seats),
        store=world.store,
        reform=clipped(over.reason) if over is not None and group.standings[me.name] is not Standing.FINISHED else "",
        leaving=leaving,
        peers_finished=bool(others) and all(standing is Standing.FINISHED for standing in others),
    )
