"""Keep the processes that judge: a few, each with one review at a time.

If a process takes too long, it is ended and another one started in its place, and the review is refused in words. Addresses take turns, so
that an address with many reviews does not delay the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec

from elastic.api.errors import Problem
from elastic.api.trainer.modes import Mode
from elastic.kube.errors import KubeError
from elastic_training.controller.deciding.trainjobs.admission import RuntimeSight
from elastic_training.controller.webhook.answers import Subject, refused
from elastic_training.controller.webhook.judge import LENGTH, LIMIT_S, Asked, Judged, Said, Unreadable, Wanted

log = logging.getLogger(__name__)

SIZE = 2
START_S = 30.0
AGAIN_S = 0.5
ENDS_WITHIN_S = 1.0
MOST_START_AGAIN_S = 30.0
WAIT_S = 0.9
"""An API server waits three seconds for its answer: of what waits longer than this, the time for judging would be cut."""
LOOK_UP_S = 0.5
"""Seconds until a TrainJob is judged without its runtime."""
MOST_WAITING = 256
MOST_SAID = 1024 * 1024


LookUp = Callable[[str, str, str], Awaitable[RuntimeSight]]
"""Find the runtime of this kind, namespace and name."""


class Busy(Exception):
    """Nobody is free to judge."""


class NoReview(Exception):
    """The body is no AdmissionReview."""


@dataclass(frozen=True, slots=True)
class Verdict:
    subject: Subject
    allowed: bool
    problems: str
    body: bytes
    """The AdmissionReview to answer with."""


class _Died(Exception):
    """The process has ended, or must be ended. `subject` is the request that it was judging, if it had reported one."""

    def __init__(self, subject: Subject | None, why: str) -> None:
        super().__init__(why)
        self.subject = subject


@dataclass(frozen=True, slots=True)
class _Asking:
    body: bytes
    begun: asyncio.Event
    answer: asyncio.Future[Verdict | Exception]

    def settle(self, answer: Verdict | Exception) -> None:
        if not self.answer.done():  # who asked may have gone
            self.answer.set_result(answer)


class Turns:
    """The reviews that wait. Addresses take turns, and the reviews of one address stay in order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[str, deque[_Asking]] = {}
        self._some = asyncio.Event()

    def add(self, address: str, asking: _Asking) -> None:
        """Add a review. Raises Busy if too many wait, of this address or in all."""
        own = self._waiting.get(address, ())
        if len(own) >= self._most // 2 or sum(map(len, self._waiting.values())) >= self._most:
            raise Busy
        self._waiting.setdefault(address, deque()).append(asking)
        self._some.set()

    async def next(self) -> _Asking:
        while True:
            await self._some.wait()
            while self._waiting:
                address = next(iter(self._waiting))
                asking, left = self._waiting[address].popleft(), self._waiting.pop(address)
                if left:
                    self._waiting[address] = left
                if not asking.answer.done():
                    return asking
            self._some.clear()


class Judges:
    """Judges reviews while `running`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        look_up: LookUp | None = None,
        size: int = SIZE,
        limit_s: float = LIMIT_S,
        wait_s: float = WAIT_S,
    ) -> None:
        self._command = command
        self._look_up = look_up
        self._size = size
        self._limit_s = limit_s
        self._wait_s = wait_s
        self._turns = Turns(MOST_WAITING)
        self._is_ready = asyncio.Event()

    async def wait_ready(self) -> None:
        """Return once the first process can judge. Reviews that come before wait for it."""
        await self._is_ready.wait()

    async def judge(self, body: bytes, *, address: str) -> Verdict:
        """Have a review judged. Raises Busy or NoReview."""
        asking = _Asking(body, asyncio.Event(), asyncio.get_running_loop().create_future())
        self._turns.add(address, asking)
        try:
            async with asyncio.timeout(self._wait_s):
                await asking.begun.wait()
            answer = await asking.answer
        except TimeoutError:
            raise Busy from None
        finally:
            asking.answer.cancel()  # no caller waits for it any more
        if isinstance(answer, Exception):
            raise answer
        return answer

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the processes, which may take a while, and end them with the block."""
        tasks = [asyncio.create_task(self._work()) for _ in range(self._size)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        """Start a process, let it judge reviews until it dies, and start the next."""
        again_s, asking = AGAIN_S, None
        while True:
            try:
                async with self._process() as process:
                    await self._begun(process)
                    self._is_ready.set()
                    again_s = AGAIN_S
                    while True:
                        asking = asking or await self._turns.next()
                        if process.returncode is not None:
                            raise _Died(None, "it ended between two reviews")  # the next process answers this review
                        current, asking = asking, None
                        await self._answer(current, process)
            except (_Died, OSError) as error:
                log.warning("a process that judges jobs ended; starting another", extra={"why": str(error)})
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, MOST_START_AGAIN_S)

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[Process]:
        process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE)
        try:
            yield process
        finally:
            assert process.stdout is not None
            if process.stdout.at_eof():  # it is about to end; a signal now would take its exit status from asyncio
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), ENDS_WITHIN_S)
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _begun(self, process: Process) -> None:
        try:
            async with asyncio.timeout(START_S):
                await _heard(process, None)
        except TimeoutError:
            raise _Died(None, f"it did not start within {START_S:.0f} s") from None

    async def _answer(self, asking: _Asking, process: Process) -> None:
        asking.begun.set()
        try:
            asking.settle(await self._verdict(asking.body, process))
        except NoReview as error:
            asking.settle(error)
        except _Died as died:
            asking.settle(Busy() if died.subject is None else _unjudged(died.subject, str(died)))
            raise

    async def _verdict(self, body: bytes, process: Process) -> Verdict:
        subject: Subject | None = None
        try:
            async with asyncio.timeout(self._limit_s):
                await _tell(process, body)
                match await _heard(process, None):
                    case Asked(subject):
                        said = await _heard(process, subject)
                        if isinstance(said, Wanted):
                            await _tell(process, msgspec.json.encode(await self._looked_up(said)))
                            said = await _heard(process, subject)
                    case said:
                        pass
        except TimeoutError:
            raise _Died(subject, f"it took more than {self._limit_s:g} s") from None
        match said:
            case Judged() if subject is not None:
                return Verdict(subject, said.allowed, said.problems, bytes(said.body))
            case Unreadable(why):
                raise NoReview(why)
        raise _Died(subject, f"it said {said} instead of a judgement")

    async def _looked_up(self, wanted: Wanted) -> RuntimeSight:
        """Return the runtime, or an empty answer if it cannot be read in time."""
        if self._look_up is None:
            return RuntimeSight()
        try:
            async with asyncio.timeout(LOOK_UP_S):
                return await self._look_up(wanted.kind, wanted.namespace, wanted.name)
        except (KubeError, aiohttp.ClientError, TimeoutError, OSError) as error:
            log.info("a TrainJob is judged without its runtime", extra={"runtime": wanted.name, "error": repr(error)})
            return RuntimeSight()


def command(*, kinds: Collection[str], namespace: str | None, mode: Mode = Mode.OFF) -> list[str]:
    """Return the command that starts a process which judges these kinds, and TrainJobs by this mode."""
    options = ["--kinds", ",".join(kinds), "--trainjobs", mode, *(() if namespace is None else ("--namespace", namespace))]
    return [sys.executable, "-P", "-m", "elastic_training.controller.webhook.judge", *options]


def _unjudged(subject: Subject, why: str) -> Verdict:
    message = f"the job could not be judged: {why}; make it smaller, or try again if it is small"
    given = refused(subject, [Problem((), message)])
    return Verdict(subject, False, message, msgspec.json.encode(given))


async def _tell(process: Process, body: bytes) -> None:
    assert process.stdin is not None
    process.stdin.writelines((LENGTH.pack(len(body)), body))
    with contextlib.suppress(ConnectionError):  # the process has ended; the missing answer will show that
        await process.stdin.drain()


async def _heard(process: Process, subject: Subject | None) -> Said:
    assert process.stdout is not None
    try:
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        if length > MOST_SAID:
            raise _Died(subject, "its answer is too long")
        said: Said = msgspec.json.decode(await process.stdout.readexactly(length), type=Said)
    except asyncio.IncompleteReadError:
        raise _Died(subject, "the process that judged it ended") from None
    return said
