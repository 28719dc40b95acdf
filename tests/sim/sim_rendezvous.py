"""The rendezvous server of the simulation, with the real hub and machine inside.

It can be restarted, which empties it, or be out of reach.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from sim_etcd import Etcds

from elastic.membership.wire import Expectation, WorldReport
from elastic_training.rendezvous.engine.events import Event
from elastic_training.rendezvous.engine.invariants import broken
from elastic_training.rendezvous.engine.state.job import JobState
from elastic_training.rendezvous.engine.step import Effect, step_all
from elastic_training.rendezvous.server.hub import ActiveJob, Hub

if TYPE_CHECKING:
    from sim_agent import Agent, Connection
    from sim_worlds import LivingWorlds

REACH_S = 0.01
CALL_S = 10.0
"""Seconds for which the controller waits for an answer."""
STEP_S = 2.0


class Unreachable(Exception):
    """The server did not answer."""


class SimHub(Hub):
    """A hub that may stand still, as a process that is stopped: what comes waits in the sockets, and timers are late.

    `faults` gets each invariant that a step broke, and each decision that raised: the hub itself survives them.
    """

    def __init__(self, instance: str, faults: list[str], *, watch: Callable[[JobState, JobState], None] | None = None) -> None:
        super().__init__(instance=instance, clock=asyncio.get_running_loop().time)
        self._faults, self._watch = faults, watch
        self.step_all = self._checked_step  # type: ignore[method-assign]
        self.runs = asyncio.Event()
        self.runs.set()
        self._late: list[Callable[[], object]] = []
        self._unread: list[Callable[[], object]] = []

    def _checked_step(self, job: JobState, events: Iterable[Event], now: float) -> tuple[JobState, tuple[Effect, ...]]:
        try:
            after, effects = step_all(job, events, now)
        except Exception as error:
            self._faults.append(f"a decision raised {error!r}")
            raise
        self._faults += broken(job, after)
        if self._watch is not None:
            self._watch(job, after)
        return after, effects

    def stand_still(self, seconds: float) -> None:
        if self.runs.is_set():
            self.runs.clear()
            asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        """Go on after standing still. The timers run first, as the worst case: they decide before any message is read."""
        self.runs.set()
        late, self._late = self._late, []
        unread, self._unread = self._unread, []
        for call in late:
            call()
        asyncio.get_running_loop().call_later(REACH_S, _run_all, unread)  # in order, as each connection keeps it

    def hears(self, call: Callable[[], object]) -> None:
        """Take a message from a connection, or keep it while the server stands still."""
        if self.runs.is_set():
            call()
        else:
            self._unread.append(call)

    def _decide(self, course: ActiveJob) -> None:
        if self.runs.is_set():
            super()._decide(course)
        else:
            self._late.append(partial(self._decide, course))

    def _tick(self, course: ActiveJob) -> None:
        if self.runs.is_set():
            super()._tick(course)
        else:
            self._late.append(partial(self._tick, course))

    def _pulse(self) -> None:
        if self.runs.is_set():
            super()._pulse()
        else:
            self._late.append(self._pulse)


class SimServer:
    """One installation's server over all its restarts."""

    def __init__(self, *, dies_when_closing: bool = False, hears_steps: bool = True) -> None:
        self.starts = self.cut_off = 0
        self.living: LivingWorlds | None = None
        """The worlds of workers whose processes live on, in lives that have such workers."""
        self.faults: list[str] = []
        """Faults of the engine, which no life may have."""
        self.dies_when_closing = dies_when_closing
        """Once, when it lets a group end, before its word is out."""
        self.hears_steps = hears_steps
        """Whether training programs report their steps."""
        self.step_s: Callable[[], float] = lambda: STEP_S
        """How long the next step of a world takes."""
        self.groups: dict[tuple[str, str], dict[str, Agent]] = {}
        """By job and world, the agents whose training processes have begun there."""
        self.steps: dict[str, int] = {}
        """The highest step of each job."""
        self.lost_steps: list[str] = []
        """Descriptions of the places at which training began below that step."""
        self.is_down = False
        self.isolated_until = -math.inf
        self.beside: frozenset[str] = frozenset()
        """The processes on the server's node, which reach it while the node is cut off."""
        self.links: list[Connection] = []
        self.etcds = Etcds()
        """Etcds in which jobs of that backend meet."""
        self.expected: dict[str, list[tuple[str, Expectation]]] = {}
        """Expectations of each job, with the process that sent them."""
        self.watchers: list[Callable[[WorldReport], None]] = []
        self._broken = asyncio.Event()
        self.hub = self._new_hub()

    def restart(self) -> None:
        """Start a new process, which knows nothing; every connection breaks."""
        self.hub = self._new_hub()
        self._break_all()

    def go_down(self) -> None:
        """Go out of reach. The server keeps its knowledge, but nobody can tell it anything."""
        self.is_down = True
        self.cut_off += len(self.links)
        self._break_all()

    def come_up(self) -> None:
        self.is_down = False

    def stand_still(self, seconds: float) -> None:
        """Stop the process for a while: no connection breaks, and nobody is answered."""
        self.hub.stand_still(seconds)

    def isolate(self, seconds: float, *, beside: Iterable[str] = ()) -> None:
        """Cut its node off: no connection breaks, nothing passes, and nobody gets a new one.

        Only members that are fewer than half of their job's may count as lost by that. `beside`: the agents and controllers on the same
        node. A caller that cuts off a controller keeps the API from it, too.
        """
        loop = asyncio.get_running_loop()
        if self.isolated_until > loop.time():
            return
        self.isolated_until, self.beside = loop.time() + seconds, frozenset(beside)
        of_job = Counter(link.agent.job_uid for link in self.links)
        silent = [link for link in self.links if link.agent.name not in self.beside]
        for job, number in Counter(link.agent.job_uid for link in silent).items():
            self.cut_off += number if 2 * number < of_job[job] else 0
        for link in silent:
            link.falls_silent(seconds)

    @property
    def is_isolated(self) -> bool:
        return asyncio.get_running_loop().time() < self.isolated_until

    @property
    def is_out_of_reach(self) -> bool:
        return self.is_down or self.is_isolated

    def silence(self, link: "Connection", seconds: float) -> None:
        """Hold up this connection without either side noticing. Messages arrive once it passes again."""
        self.cut_off += 1
        link.falls_silent(seconds)

    def _new_hub(self) -> SimHub:
        self.starts += 1
        return SimHub(f"s{self.starts}", self.faults, watch=self._see)

    def _see(self, before: JobState, after: JobState) -> None:
        if self.living is not None:
            self.living.see(before, after)

    def _break_all(self) -> None:
        links, self.links = self.links, []
        for link in links:
            link.breaks(self.hub)
        broken, self._broken = self._broken, asyncio.Event()
        broken.set()

    # --- what the controller's link calls ---

    async def expect(self, job_uid: str, expectation: Expectation, *, by: str) -> None:
        await self._reach(by)
        self.expected.setdefault(job_uid, []).append((by, expectation))
        if not self.hub.expect(job_uid, expectation):
            raise Unreachable("a newer leader has spoken")

    async def lead(self, term: int, *, by: str) -> None:
        await self._reach(by)
        if not self.hub.signs.led(term):
            raise Unreachable("a newer leader has spoken")

    async def forget(self, job_uid: str, *, by: str) -> int | None:
        await self._reach(by)
        return self.hub.forget(job_uid)

    async def worlds(self, on_open: Callable[[], None] | None = None, *, by: str) -> AsyncIterator[WorldReport]:
        while True:
            await asyncio.sleep(REACH_S)
            if self.is_down or self._is_kept_from(by):
                await asyncio.sleep(0.5)
                continue
            hub, broken, version = self.hub, self._broken, 0
            if on_open is not None:
                on_open()
            with hub.signs.listening(None):
                while not broken.is_set():
                    newest = hub.version
                    for world in hub.since(version):
                        if world.closed and self.dies_when_closing:
                            self.dies_when_closing = False
                            self.restart()
                            break
                        yield world
                    version = newest
                    await _either(hub.wait_newer(version), broken.wait())
                    if self._is_kept_from(by):
                        await asyncio.sleep(max(0.0, self.isolated_until - asyncio.get_running_loop().time()))

    def _is_kept_from(self, process: str) -> bool:
        return self.is_isolated and process not in self.beside

    async def _reach(self, by: str) -> None:
        await asyncio.sleep(REACH_S)
        if self._is_kept_from(by):
            await asyncio.sleep(CALL_S)
        if self.is_down:
            raise Unreachable("no connection")
        if self._is_kept_from(by):
            raise Unreachable("no answer")
        try:
            await asyncio.wait_for(self.hub.runs.wait(), CALL_S)
        except TimeoutError:
            raise Unreachable("no answer") from None


def _run_all(calls: Iterable[Callable[[], object]]) -> None:
    for call in calls:
        call()


async def _either(*waits: object) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]  # type: ignore[arg-type]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
