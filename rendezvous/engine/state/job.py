"""Everything the engine knows about one job, in seven parts that each say one thing.

Its members, what their ends count for, how far training has come, the change in process, the watch over a standstill, the
paces of its ranks, and when what happened.
"""

from __future__ import annotations

from typing import Any

from ..messages.controller import Budget
from ..state.accounting import Accounting
from ..state.hang_watch import HangWatch
from ..state.in_place import InPlace
from ..state.membership import Membership, Round
from ..state.paces import Paces
from ..state.progress import Progress
from ..state.timings import Limits, Timings
from ..values import dataclass, field, replace


@dataclass(frozen=True)
class JobState:
    uid: str
    instance: str
    """The server's own random name, which is part of each world's id."""
    now: float
    timings: Timings
    limits: Limits = field(default_factory=Limits)
    membership: Membership = field(default_factory=Membership)
    accounting: Accounting = field(default_factory=Accounting)
    progress: Progress = field(default_factory=Progress)
    in_place: InPlace = field(default_factory=InPlace)
    hang_watch: HangWatch = field(default_factory=HangWatch)
    paces: Paces = field(default_factory=Paces)

    @property
    def budget(self) -> Budget:
        expectation = self.membership.expectation
        return expectation.budget if expectation is not None else Budget()

    @property
    def is_done(self) -> bool:
        """Return whether no further world follows because the work is done."""
        return self.progress.done_at is not None

    @property
    def is_settled(self) -> bool:
        """Return whether silence may count as absence.

        It may not while members of a world that an earlier server sealed may still be on their way back to this server.
        """
        group = self.membership
        if group.world is not None and not group.world.adopted:
            return True
        if group.world is None and group.expectation is not None and group.generation == 0:
            return True  # the job never had a world
        return self.now >= self.timings.up_since + self.limits.settle_s

    @property
    def may_tell_end(self) -> bool:
        """Return whether members may hear that the group has ended.

        They may not before the end is written down, because until then only they hold the facts that a new server must know.
        """
        expectation = self.membership.expectation
        return bool(self.accounting.closed) and expectation is not None and bool(expectation.closed)

    @property
    def changes_in_process(self) -> bool:
        """Return whether the world changes in process, or would at the next change. Newcomers then start in worlds of their own."""
        round = self.membership.round
        if self.is_done:
            return False
        return self.in_place.stage is not None if round is None or not round.draining else round.in_place

    def change(self, name: str, **changes: Any) -> JobState:
        """Return the same job with one member changed."""
        return replace(self, membership=self.membership.change(name, **changes))

    def with_round(self, round: Round | None) -> JobState:
        """Return the same job with this round, or without a round."""
        return replace(self, membership=replace(self.membership, round=round))
