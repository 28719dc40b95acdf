"""Keeps the controller and the rendezvous server of one mind: says what changed, repeats it after a break, and hears of worlds."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from controller.deciding.actions import Budget, SetExpectation
from controller.watching.snapshot import World
from elastic.api.job import Rescale
from elastic.membership import wire

log = logging.getLogger(__name__)
SAY_AGAIN_S = 1.0


class Server(Protocol):
    """What this module needs of elastic.membership.client.RendezvousClient."""

    async def expect(self, job_uid: str, expectation: wire.Expectation) -> None: ...

    async def forget(self, job_uid: str) -> None: ...

    def worlds(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[wire.World]: ...


class RendezvousLink:
    def __init__(
        self, server: Server, *, errors: tuple[type[Exception], ...], clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.worlds: dict[str, World] = {}
        self._server = server
        self._errors = errors
        self._clock = clock
        self._name, self._said = secrets.token_hex(4), 0
        self._newest: dict[str, SetExpectation] = {}
        self._heard: dict[str, SetExpectation] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def tell(self, job_uid: str, told: SetExpectation) -> None:
        """Only what is new goes over the wire."""
        self._newest[job_uid] = told
        await self._bring(job_uid)

    async def forget(self, job_uid: str) -> None:
        if job_uid in self._newest or job_uid in self.worlds:
            # Not said again in any case, also when the server cannot hear this now.
            self._newest.pop(job_uid, None)
            self._heard.pop(job_uid, None)
            async with self._turn(job_uid):
                await self._guarded(self._server.forget(job_uid))
            self._turns.pop(job_uid, None)
            self.worlds.pop(job_uid, None)

    async def run(self, changed: Callable[[str], None]) -> None:
        """Listens until cancelled; `changed` hears the uid of each job whose world is another."""
        opened = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(opened))
            async for heard in self._server.worlds(on_open=opened.set):
                if heard.forgotten:
                    self.worlds.pop(heard.job, None)
                else:
                    self.worlds[heard.job] = _world(heard)
                changed(heard.job)

    async def _repeat(self, opened: asyncio.Event) -> None:
        """A server that was restarted knows no expectation: agents present their worlds, and this presents ours."""
        while True:
            await opened.wait()
            opened.clear()
            self._heard.clear()
            for job_uid in list(self._newest):
                try:
                    await self._bring(job_uid)
                except OSError as error:
                    log.info("expectations could not be repeated", extra={"uid": job_uid, "error": str(error)})
                    await asyncio.sleep(SAY_AGAIN_S)
                    opened.set()
                    break

    async def _bring(self, job_uid: str) -> None:
        """One request at a time for a job, and always the newest word: an older one that arrives later would undo it."""
        async with self._turn(job_uid):
            told = self._newest.get(job_uid)
            if told is None or self._heard.get(job_uid) == told:
                return
            # Whether it arrives is not known until it is answered.
            self._heard.pop(job_uid, None)
            self._said += 1
            word = msgspec.structs.replace(expectation(told, now=self._clock()), speaker=self._name, number=self._said)
            await self._guarded(self._server.expect(job_uid, word))
            self._heard[job_uid] = told

    def _turn(self, job_uid: str) -> asyncio.Lock:
        return self._turns.setdefault(job_uid, asyncio.Lock())

    async def _guarded(self, call: Awaitable[None]) -> None:
        try:
            await call
        except self._errors as error:
            raise ConnectionError(str(error)) from error


def expectation(told: SetExpectation, *, now: datetime) -> wire.Expectation:
    """Times become durations from now, because the clocks of two hosts are never compared."""
    return wire.Expectation(
        members=told.members,
        pending=told.pending,
        leaving=tuple(
            wire.Leaving(member=leave.member, by_s=max(0.0, (leave.by - now).total_seconds()), cause=leave.cause) for leave in told.leaving
        ),
        ended=tuple(
            wire.Ended(member=end.member, pod_uid=end.pod_uid, run=end.run, cause=end.cause.value, is_last=end.is_last)
            for end in told.ended
        ),
        finished=told.finished,
        restarts=dict(told.restarts),
        open=tuple(wire.Restart(**msgspec.structs.asdict(entry)) for entry in told.open),
        booked_to=told.booked_to,
        closed=told.closed,
        charged=tuple(
            wire.Charge(cause=charge.cause, age_s=max(0.0, (now - charge.at).total_seconds()), count=charge.count)
            for charge in told.charged
        ),
        fruitless=told.fruitless,
        step=told.step,
        min=told.least,
        max=told.most,
        sizes=told.sizes,
        budget=_budget(told.budget),
        grace_s=told.grace_s,
        floor=told.floor,
        term=told.term,
    )


def _budget(budget: Budget) -> wire.Budget:
    return wire.Budget(
        max_restarts=budget.max_restarts,
        by_cause=dict(budget.by_cause),
        window_s=budget.window_s,
        without_progress=budget.without_progress,
        hang_s=budget.hang_s,
    )


def _world(heard: wire.World) -> World:
    return World(
        generation=heard.generation,
        members=frozenset(seat.name for seat in heard.members),
        phase=heard.phase,
        reason=heard.reason,
        closed=heard.closed,
        uncounted=heard.uncounted,
        explained=heard.explained,
        fruitless=heard.fruitless,
        step=heard.step,
        rescale=None if heard.rescale is None else Rescale(**msgspec.structs.asdict(heard.rescale)),
    )
