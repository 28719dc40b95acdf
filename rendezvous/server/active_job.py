"""One job of the server: its state, the connections of its members, its timer, and the events that wait for the next decision."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Protocol

from elastic.membership.training import Report, ReportAnswer
from elastic.membership.wire import View
from elastic_training.rendezvous.engine.choose import leave_notice
from elastic_training.rendezvous.engine.events import Event
from elastic_training.rendezvous.engine.messages.in_place import Put
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.engine.views import view
from elastic_training.rendezvous.server.exchange import Exchange
from elastic_training.rendezvous.server.fault import FaultLadder
from elastic_training.rendezvous.server.metered import Rate
from elastic_training.rendezvous.server.story import Story
from elastic_training.rendezvous.server.trainer_status import A_SECOND, AT_ONCE, Told

GATHER_S_A_MEMBER = 0.00002
"""Seconds, for each member, that values of the exchange are gathered: one message per value to all would keep the server busy."""
OLD_REPORTS_SEEN = 2
"""Number of the oldest reports that are checked with each new one, so that reports of gone members do not stay."""


class Link(Protocol):
    """A member's connection, as the hub sees it."""

    def send(self, view: View) -> None:
        """Queue a view; never blocks, and a newer view may replace an unsent one."""

    def end(self, reason: str) -> None:
        """Tell the member that it was replaced, and close."""

    def close(self) -> None:
        """Close; the member may come back."""

    def give(self, exchange: Exchange) -> None:
        """Send the values of the exchange that this member lacks. This never blocks."""


class ActiveJob:
    """A job of this server."""

    __slots__ = (
        "asks",
        "exchange",
        "fault",
        "gives_soon",
        "inbox",
        "is_due",
        "job",
        "links",
        "reports",
        "status_rate",
        "story",
        "timer",
        "told",
        "touched",
        "wake_at",
    )

    def __init__(self, job: JobState) -> None:
        self.job = job
        self.links: dict[str, tuple[str, Link]] = {}
        self.reports: dict[str, tuple[Report, float]] = {}
        self.told = Told()
        self.status_rate: Rate | None = None
        self.inbox: list[Event] = []
        self.is_due = False
        """Whether a decision on the inbox is under way: at the end of this turn of the loop, or with the timer after a failed one."""
        self.story = Story()
        self.exchange = Exchange()
        self.gives_soon = False
        """Whether members are about to get values of the exchange."""
        self.fault = FaultLadder()
        self.asks = False
        """Whether the state was dropped, and the controller must send its expectation again."""
        self.timer: asyncio.TimerHandle | None = None
        self.wake_at = 0.0
        self.touched = job.now

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of the job."""
        return not self.job.membership.members and self.job.membership.expectation is None

    def note(self, event: Event, at: float, *, is_first: bool = False) -> None:
        """Put an event into the inbox, behind the others or before them."""
        self.story.note(event, at)
        self.inbox.insert(0 if is_first else len(self.inbox), event)

    def keep(self, report: Report, at: float) -> None:
        """Keep the newest report of a member, and drop old reports of members that are gone."""
        self.reports.pop(report.member, None)
        self.reports[report.member] = (report, at)
        for name in [name for name in itertools.islice(self.reports, OLD_REPORTS_SEEN) if name not in self.job.membership.members]:
            del self.reports[name]

    def may_report(self, clock: Callable[[], float]) -> bool:
        """Return whether the program of this job may report again now."""
        if self.status_rate is None:
            self.status_rate = Rate(clock, messages_per_s=A_SECOND, burst=AT_ONCE)
        return self.status_rate.allows_message()

    def answer(self, name: str, now: float) -> ReportAnswer:
        """Return the answer to a report of this member: what the rendezvous asks of it."""
        member = self.job.membership.members.get(name)
        if member is None:
            return ReportAnswer()
        seen = view(self.job, name)
        notice = leave_notice(self.job.membership, name, now=now)
        is_due = notice is not None and not (notice.when_replaced and notice.by <= now)
        left_s = max(0.0, round(notice.by - now, 3)) if notice is not None and is_due else None
        return ReportAnswer(stop=bool(seen.reform or seen.closed), reason=seen.reform or seen.closed, checkpoint_s=left_s)

    def put(self, name: str, incarnation: str, message: Put) -> bool:
        """Pass a value on to the members of the world. Return whether it is a value of the world's exchange, new or repeated."""
        if not self._is_linked(name, incarnation):
            return False
        if not self.exchange.put(self.job, name, message):
            return self.exchange.has(message)
        if not self.gives_soon:
            self.gives_soon = True
            asyncio.get_running_loop().call_later(GATHER_S_A_MEMBER * len(self.links), self._give)
        return True

    def _give(self) -> None:
        """Send the members of the world the values of the exchange that they lack."""
        self.gives_soon = False
        world = self.job.membership.world
        for member in world.ranks.keys() & self.links.keys() if world is not None else ():
            self.links[member][1].give(self.exchange)

    def refuse(self, name: str, incarnation: str, reason: str) -> None:
        """End the connection of a replaced incarnation, if it is still there."""
        if self._is_linked(name, incarnation):
            self.links.pop(name)[1].end(reason)

    def cut(self, name: str, incarnation: str) -> None:
        """Close the connection of this incarnation, if it is still there. A live member presents itself again."""
        if self._is_linked(name, incarnation):
            self.links.pop(name)[1].close()

    def cut_all(self) -> None:
        """Close all connections. Live members present themselves again with their whole state."""
        links, self.links = self.links, {}
        for _, link in links.values():
            link.close()

    def start_over(self, job: JobState) -> None:
        """Begin again with this state. All live members and the controller report what they know."""
        self.job, self.inbox, self.is_due, self.asks = job, [], False, True
        self.touched = job.now
        self.cut_all()

    def _is_linked(self, name: str, incarnation: str) -> bool:
        held = self.links.get(name)
        return held is not None and held[0] == incarnation
