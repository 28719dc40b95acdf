"""Read from the records where each member stands. Pure; the engine decides what follows (elastic_worker.etcd.hosting)."""

import dataclasses
import enum
import typing

from elastic_worker.etcd.records import Expected, Failed, Leaving, Member, Present, Records, Seat


class Standing(enum.Enum):
    """Standing of a seat's member."""

    WORKING = "working"
    FAILED = "failed"  # a worker of it ended by itself; it comes to the barrier
    BACK = "back"  # at the barrier
    FINISHED = "finished"  # its workers ended with 0
    GONE = "gone"


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules of the next world, and the waits for members, in seconds.

    last_call_s: without a controller, for a further newcomer. straggler_s: with one, for expected members that are not here.
    peers_s: after a worker's failure, for its peers to end by themselves: it may be that they were just finishing. drain_s: for a member
    to come to the barrier, beyond the grace of its workers. late_s: after the work is done, for members that could begin it again.
    max_restarts, without_progress: restarts that the program may cause, and those in a row without a further step; None for no limit.
    hang_s: training that has reported steps and reports no further one for so long hangs. lasted_s: a world of a job that never reports
    has got somewhere after so long. state_s: then its members have the state. first_step_s, pace_s: as in the engine's Budget.
    """

    min: int
    max: int
    sizes: typing.Tuple[int, ...] = ()
    grace_s: float = 30.0
    max_restarts: typing.Optional[int] = None
    needs_controller: bool = False
    last_call_s: float = 2.0
    straggler_s: float = 5.0
    peers_s: float = 1.0
    drain_s: float = 10.0
    late_s: float = 30.0
    without_progress: typing.Optional[int] = None
    hang_s: typing.Optional[float] = None
    lasted_s: float = 300.0
    state_s: float = 30.0
    first_step_s: float = 600.0
    pace_s: float = 0.0

    def under(self, expected: typing.Optional[Expected]) -> "Rules":
        """Return these rules, with what a controller says instead."""
        if expected is None:
            return self
        return dataclasses.replace(
            self,
            min=expected.min,
            max=expected.max,
            sizes=expected.sizes,
            grace_s=expected.grace_s,
            max_restarts=expected.max_restarts,
            without_progress=expected.without_progress,
            hang_s=expected.hang_s,
            state_s=expected.state_s,
            first_step_s=expected.first_step_s,
            pace_s=expected.pace_s,
        )


class Group:
    """The members of a job as the records show them."""

    def __init__(self, records: Records, rules: Rules) -> None:
        self.rules = rules.under(records.expected)
        self.records = records
        self.world = records.world
        self.expected = records.expected
        self.members = {name: present.record for name, present in records.members.items() if not present.record.left}
        self.expected_names = frozenset(records.expected.members) if records.expected is not None else frozenset()
        leaving = records.expected.leaving if records.expected is not None else ()
        self.notices: typing.Mapping[str, Leaving] = {one.member: one for one in leaving}
        seats = self.world.seats if self.world is not None else ()
        self.ranks = {seat.name: rank for rank, seat in enumerate(seats)}
        self.standings = {seat.name: self._standing_of(seat) for seat in seats}

    def _standing_of(self, seat: Seat) -> Standing:
        assert self.world is not None
        present = self.records.members.get(seat.name)
        if present is None or present.record.incarnation != seat.incarnation:
            return Standing.GONE
        member = present.record
        if member.finished == self.world.generation:
            return Standing.FINISHED
        if member.left:
            return Standing.GONE
        if member.after >= self.world.generation:
            return Standing.BACK
        has_failed = member.failed is not None and member.failed.generation == self.world.generation
        return Standing.FAILED if has_failed else Standing.WORKING

    def those(self, *standings: Standing) -> typing.List[str]:
        """Return the seats whose members stand so, by rank."""
        return [name for name, standing in self.standings.items() if standing in standings]

    def failure(self, name: str) -> typing.Optional[Failed]:
        """Return how a worker of this seat has failed in this world, whatever became of its agent since; None if none has."""
        assert self.world is not None
        seat = self.world.seats[self.ranks[name]]
        present = self.records.members.get(name)
        if present is None or present.record.incarnation != seat.incarnation:
            return None
        failed = present.record.failed
        return failed if failed is not None and failed.generation == self.world.generation else None

    def failed(self) -> typing.List[str]:
        """Return the seats with a failed worker, the first failure first; last, those that fell because another worker was gone."""
        found = [(name, failure) for name, failure in ((name, self.failure(name)) for name in self.ranks) if failure is not None]

        def place(item: typing.Tuple[str, Failed]) -> typing.Tuple[bool, int]:
            return item[1].follows, item[1].at or self.records.members[item[0]].written

        return [name for name, _ in sorted(found, key=place)]

    @property
    def has_finished(self) -> bool:
        """Return whether a member of the world is done: then nobody disturbs the others, which may still save a model."""
        if self.those(Standing.FINISHED):
            return True
        told = self.expected.finished if self.expected is not None else ()
        return any(name in self.ranks and self.standings[name] is Standing.GONE for name in told) or (self.world is None and bool(told))

    def leaving(self, name: str) -> str:
        """Return why a member must go; empty if it may stay."""
        if name in self.notices:
            return self.notices[name].cause or "plan"
        return "plan" if self.expected is not None and name not in self.expected_names else ""

    def newcomers(self) -> typing.List[Member]:
        """Return the members that wait at the barrier without a seat, the oldest first."""
        waiting = [present for name, present in self.records.members.items() if self._is_newcomer(name, present)]
        return [present.record for present in sorted(waiting, key=lambda present: (present.created, present.record.name))]

    def _is_newcomer(self, name: str, present: Present) -> bool:
        record = present.record
        if record.left or max(record.entered, record.finished) > record.after:
            return False
        if name not in self.ranks:
            return True
        assert self.world is not None
        return self.world.seats[self.ranks[name]].incarnation != record.incarnation

    def candidates(self) -> typing.List[str]:
        """Return the members that could be in the next world: survivors by rank, then newcomers by age."""
        return self.those(Standing.WORKING, Standing.FAILED, Standing.BACK) + [member.name for member in self.newcomers()]

    def absent(self) -> typing.List[str]:
        """Return the expected members that could be here and are not."""
        if self.expected is None:
            return []
        missing = self.expected_names - self.members.keys() - self.notices.keys() - set(self.expected.pending)
        return sorted(missing - set(self.expected.finished))

    @property
    def is_behind(self) -> bool:
        """Return whether this world was numbered without the controller's word, below a world that the controller has seen.

        The controller takes it for an older one, in which nothing counts.
        """
        return self.world is not None and self.expected is not None and self.world.generation < self.expected.floor

    def next_generation(self) -> int:
        """Return a number above every world that any member here knows."""
        known = [max(present.record.entered, present.record.after) for present in self.records.members.values()]
        known.append(self.world.generation if self.world is not None else 0)
        known.append(self.expected.floor if self.expected is not None else 0)
        return max(known) + 1


def listed(names: typing.Sequence[str]) -> str:
    """Return the names in words."""
    shown = list(names) if len(names) <= 4 else [*names[:3], "{} more".format(len(names) - 3)]
    return shown[0] if len(shown) == 1 else "{} and {}".format(", ".join(shown[:-1]), shown[-1])
