"""Send the rendezvous server the newest expectation of each job, without making a reconcile wait.

One request at a time, again after a failure and after the server was restarted. It says when a word was acknowledged; it decides nothing.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from elastic.etcd.place import EtcdPlace
from elastic.membership import wire
from elastic.membership.protocol import UnknownVersion
from elastic.runtime.fence import is_lapse
from elastic_training.controller.deciding.actions import SetExpectation

log = logging.getLogger(__name__)
AT_ONCE = 32
"""Requests in flight, so that a server that never answers costs a bounded number of connections."""
FIRST_BACK_OFF_S = 0.1
LONGEST_BACK_OFF_S = 10.0


class Membership(Protocol):
    """The rendezvous server, as far as a plan speaks to it."""

    def tell(self, job_uid: str, told: SetExpectation, *, is_awaited: bool) -> bool: ...

    def forget(self, job_uid: str, *, is_awaited: bool = False, place: EtcdPlace | None = None) -> None: ...

    def drop(self, job_uid: str) -> None: ...


class Listener(Protocol):
    """The part of elastic.membership.client.RendezvousClient that sends."""

    async def expect(self, job_uid: str, expectation: wire.Expectation) -> None: ...

    async def forget(self, job_uid: str) -> int | None:
        """Return the last step of the job."""
        ...


class Heard(Protocol):
    """Called when the server has acknowledged a job's newest expectation that a reconcile waits for, or has forgotten the job.

    last_step: of a forgotten job, if the server knew one.
    """

    def __call__(self, job_uid: str, *, is_forgotten: bool, last_step: int | None) -> None: ...


class Outbox:
    """`heard`: see Heard.

    `refused` gets a job's uid and why the server and this controller do not understand each other. `at_once`: how many requests may be in
    flight.
    """

    def __init__(
        self,
        server: Listener,
        *,
        encode: Callable[[SetExpectation], wire.Expectation],
        errors: tuple[type[Exception], ...],
        heard: Heard,
        refused: Callable[[str, str], None],
        at_once: int = AT_ONCE,
    ) -> None:
        self._server = server
        self._encode = encode
        self._errors: tuple[type[Exception], ...] = (*errors, OSError)
        self._on_heard = heard
        self._on_refused = refused
        self._name, self._sent = secrets.token_hex(4), 0
        self._newest: dict[str, SetExpectation | None] = {}
        """None: the job is to be forgotten."""
        self._heard: dict[str, SetExpectation] = {}
        self._awaited: set[str] = set()
        self._senders: dict[str, asyncio.Task[None]] = {}
        self._failing: set[str] = set()
        self._gate = asyncio.Semaphore(at_once)
        self._starts, self._again = 0, asyncio.Event()

    def __contains__(self, job_uid: str) -> bool:
        return job_uid in self._newest

    def tell(self, job_uid: str, told: SetExpectation, *, is_awaited: bool) -> bool:
        """Hands a job's expectation in; True if the server has acknowledged exactly this already."""
        self._newest[job_uid] = told
        if self._heard.get(job_uid) == told:
            return True
        if is_awaited:
            self._awaited.add(job_uid)
        self._send_soon(job_uid)
        return False

    def forget(self, job_uid: str) -> None:
        """Let the server forget the job, and do not send its expectation again."""
        self._newest[job_uid] = None
        self._heard.pop(job_uid, None)
        self._awaited.discard(job_uid)
        self._send_soon(job_uid)

    def repeat(self) -> None:
        """Send every expectation again: the server may be a new one, without expectations."""
        self._heard.clear()
        self._starts += 1
        self._wake()
        for job_uid in self._newest:
            self._send_soon(job_uid)

    def repeat_for(self, job_uid: str) -> None:
        """Send the newest message about this job again, because the server asks for it."""
        self._heard.pop(job_uid, None)
        self._wake()
        if job_uid in self._newest:
            self._send_soon(job_uid)

    async def close(self) -> None:
        senders = list(self._senders.values())
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)

    def _wake(self) -> None:
        """Let senders that wait after a failure try again now."""
        again, self._again = self._again, asyncio.Event()
        again.set()

    def _send_soon(self, job_uid: str) -> None:
        if job_uid not in self._senders:
            self._senders[job_uid] = sender = asyncio.create_task(self._send(job_uid))
            sender.add_done_callback(_log_what_broke)

    async def _send(self, job_uid: str) -> None:
        """Send one message after another until the newest has arrived. An older one that arrives later would undo it."""
        back_off_s = FIRST_BACK_OFF_S
        try:
            while not self._is_done(job_uid):
                if await self._bring(job_uid):
                    back_off_s = FIRST_BACK_OFF_S
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(back_off_s):
                        await self._again.wait()
                back_off_s = min(back_off_s * 2, LONGEST_BACK_OFF_S)
        finally:
            del self._senders[job_uid]
            self._failing.discard(job_uid)

    def _is_done(self, job_uid: str) -> bool:
        return job_uid not in self._newest or (self._newest[job_uid] is not None and self._heard.get(job_uid) == self._newest[job_uid])

    async def _bring(self, job_uid: str) -> bool:
        """Send one request. Return False if it failed."""
        async with self._gate:
            # Whether it arrives is not known until it is answered.
            self._heard.pop(job_uid, None)
            told, starts, last_step = self._newest[job_uid], self._starts, None
            self._sent += 1
            try:
                if told is None:
                    last_step = await self._server.forget(job_uid)
                else:
                    word = replace(self._encode(told), speaker=self._name, number=self._sent)
                    await self._server.expect(job_uid, word)
            except self._errors as error:
                self._report_failure(job_uid, error)
                if isinstance(error, UnknownVersion):
                    self._on_refused(job_uid, str(error))
                return False
        self._report_success(job_uid)
        if starts == self._starts:
            self._take_answer(job_uid, told, last_step)
        return True

    def _take_answer(self, job_uid: str, told: SetExpectation | None, last_step: int | None) -> None:
        is_newest = self._newest[job_uid] == told
        if told is not None:
            self._heard[job_uid] = told
        elif is_newest:
            del self._newest[job_uid]
        if is_newest and (told is None or job_uid in self._awaited):
            self._awaited.discard(job_uid)
            self._on_heard(job_uid, is_forgotten=told is None, last_step=last_step)

    def _report_failure(self, job_uid: str, error: Exception) -> None:
        """Log once until all succeed again: if one expectation cannot be sent, mostly none can."""
        level = logging.DEBUG if self._failing or is_lapse(error) else logging.WARNING
        self._failing.add(job_uid)
        log.log(level, "an expectation could not be delivered; trying again", extra={"uid": job_uid, "error": str(error)})

    def _report_success(self, job_uid: str) -> None:
        if job_uid in self._failing:
            self._failing.discard(job_uid)
            if not self._failing:
                log.info("the expectations were delivered", extra={"uid": job_uid})


def _log_what_broke(sender: "asyncio.Task[None]") -> None:
    if not sender.cancelled() and (error := sender.exception()) is not None:
        log.error("the task that sends expectations to the rendezvous server failed", exc_info=error)
