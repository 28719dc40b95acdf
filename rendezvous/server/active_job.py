"""One job of the server: its state, the connections of its members, its timer, and the events that wait for the next decision."""

import asyncio
from typing import Protocol

from elastic.membership.in_place import Put
from elastic.membership.training import Report
from elastic.membership.wire import View
from rendezvous.machine import Event, Job
from rendezvous.server.exchange import Exchange
from rendezvous.server.fault import FaultLadder
from rendezvous.server.story import Story

GATHER_S_A_MEMBER = 0.00002
"""Seconds, for each member, that values of the exchange are gathered: one message per value to all would keep the server busy."""


class Link(Protocol):
    """A member's connection, as the hub sees it."""

    def send(self, view: View) -> None:
        """Queue a view; never blocks, and a newer view may replace an unsent one."""

    def end(self, reason: str) -> None:
        """Tell the member that it was replaced, and close."""

    def close(self) -> None:
        """Close; the member may come back."""

    def give(self, exchange: Exchange) -> None:
        """Send what the exchange has that this member lacks; never blocks."""


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
        "story",
        "timer",
        "touched",
        "wake_at",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self.links: dict[str, tuple[str, Link]] = {}
        self.reports: dict[str, tuple[Report, float]] = {}
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
        """Send the members of the world what they lack of the exchange."""
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

    def start_over(self, job: Job) -> None:
        """Begin again with this state. All live members and the controller report what they know."""
        self.job, self.inbox, self.is_due, self.asks = job, [], False, True
        self.touched = job.now
        self.cut_all()

    def _is_linked(self, name: str, incarnation: str) -> bool:
        held = self.links.get(name)
        return held is not None and held[0] == incarnation
