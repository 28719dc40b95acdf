"""The control plane's client of the rendezvous server.

A controller sends expectations, lets the server forget jobs, and reads the stream of worlds. An autoscaler reads the stream of progress.
A stream reopens by itself and starts with the full state each time, so a lost change does not matter.
"""

import asyncio
import io
import logging
import random
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from elastic.membership import limits, protocol
from elastic.membership.phases import WorldPhase
from elastic.membership.protocol import UnknownVersion
from elastic.membership.training import Forgotten, TrainingProgress
from elastic.membership.wire import Decoder, Expectation, WorldReport, encode, unreadable
from elastic.membership.world_changes import ChangingWorlds, Misfit, WorldChange

log = logging.getLogger(__name__)

LONGEST_ANSWER = 64 * 1024 * 1024
"""Limit in bytes for an answer that is no stream."""
REQUEST_TIMEOUT_S = 10.0
SILENCE_S = 25.0
FIRST_BACK_OFF_S = 0.05
LONGEST_BACK_OFF_S = 2.0
GOOD_BYE_S = 0.1
AT_ONCE = 256 * 1024
Message = TypeVar("Message")
NOBODY = "?"
"""Job of a world whose job cannot be read."""

_worlds = Decoder[WorldReport](WorldReport)
_changes = Decoder[Any](WorldChange)
_forgotten = msgspec.json.Decoder(Forgotten)
_progress = msgspec.json.Decoder(TrainingProgress)


class RendezvousError(Exception):
    """The server refused or could not be reached. `code` is the HTTP status, 0 without a connection."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"rendezvous server: {message}" + (f" ({code})" if code else ""))
        self.code = code


class RendezvousClient:
    """A controller's connection to one rendezvous server."""

    def __init__(self, url: str, token: Callable[[], Awaitable[str]], ca: str, *, gives_signs: bool = False) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._gives_signs = gives_signs
        self._tls = ssl.create_default_context(cadata=ca)
        self._session: aiohttp.ClientSession | None = None
        self._unreadable: set[str] = set()
        """Jobs whose unreadable world is logged already."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
            await asyncio.sleep(GOOD_BYE_S)  # a TLS connection closes once the peer has answered, and aiohttp does not wait for that

    async def expect(self, job_uid: str, expectation: Expectation) -> None:
        """Send the members that the job's world should have. Always the full state; sending it twice changes nothing."""
        await self._call("PUT", f"/v1/jobs/{job_uid}/expectation", encode(expectation))

    async def lead(self, term: int) -> None:
        """Say that this controller holds the Lease in this term."""
        await self._call("PUT", f"/v1/leader/{term}")

    async def forget(self, job_uid: str) -> int | None:
        """Forget a job that has ended, and return its last step. An unknown job is no error."""
        answer = await self._call("DELETE", f"/v1/jobs/{job_uid}")
        try:
            return _forgotten.decode(answer).step if answer else None  # an older server answers nothing
        except ValueError:
            return None

    async def world(self, job_uid: str) -> WorldReport | None:
        """Return the job's world now; None if the server does not know the job."""
        try:
            return self._read(await self._call("GET", f"/v1/jobs/{job_uid}/world"))
        except RendezvousError as error:
            if error.code == 404:
                return None
            raise

    async def worlds(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[WorldReport]:
        """Yield every job's world, then each change, without end. After a disconnect it starts over with the full state.

        `on_open` is called each time a stream opens: the server may be a new one that knows no expectations yet.
        """
        read: Callable[[bytes], WorldReport | None] = self._read

        def opened(response: aiohttp.ClientResponse) -> None:
            nonlocal read
            changes = protocol.takes_changes(response.headers.get(protocol.HEADER))
            read = partial(self._read_change, ChangingWorlds()) if changes else self._read
            if on_open is not None:
                on_open()

        async for world in self._stream("worlds", max(limits.WORLD_LINE, limits.CHANGE_LINE), opened, lambda line: read(line)):
            yield world

    async def progress(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[TrainingProgress]:
        """Yield every job's progress, then each change, in the same way. Unreadable progress is left out."""

        def opened(response: aiohttp.ClientResponse) -> None:
            if on_open is not None:
                on_open()

        async for progress in self._stream("progress", limits.PROGRESS_LINE, opened, self._read_progress):
            yield progress

    async def _stream(
        self, name: str, longest: int, opened: Callable[[aiohttp.ClientResponse], None], read: Callable[[bytes], Message | None]
    ) -> AsyncIterator[Message]:
        """Yield the messages of a stream, which is opened again whenever it breaks."""
        back_off_s = FIRST_BACK_OFF_S
        while True:
            try:
                async for line in self._opened(name, longest, opened):
                    back_off_s = FIRST_BACK_OFF_S
                    if (message := read(line)) is not None:
                        yield message
            except (RendezvousError, UnknownVersion, Misfit, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("a stream of the rendezvous server broke; opening it again", extra={"stream": name, "error": str(error)})
                if isinstance(error, Misfit):
                    back_off_s = LONGEST_BACK_OFF_S  # a server that does not keep count would send everything again and again
            await asyncio.sleep(back_off_s * random.uniform(0.5, 1.0))
            back_off_s = min(back_off_s * 2, LONGEST_BACK_OFF_S)

    async def _opened(self, name: str, longest: int, opened: Callable[[aiohttp.ClientResponse], None] | None) -> AsyncIterator[bytes]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=SILENCE_S)
        async with self._open().get(
            f"{self._url}/v1/{name}", headers=await self._headers(), timeout=timeout, ssl=self._tls, allow_redirects=False
        ) as response:
            if response.status != 200:
                raise _refusal(response, await _whole(response))
            if (unknown := _unknown_version(response)) is not None:
                raise unknown
            if opened is not None:
                opened(response)
            async for line in _lines(response.content.iter_any(), longest):
                if line.strip():
                    yield line

    def _read(self, line: bytes) -> WorldReport | None:
        """Decode a world. An unreadable one affects only its own job and is logged once."""
        try:
            world = _decoded(line, _worlds, most=limits.WORLD_LINE)
        except ValueError as error:
            world = unreadable(_job_of(line), str(error))
        return self._noted(world)

    def _read_change(self, worlds: ChangingWorlds, line: bytes) -> WorldReport | None:
        """Decode a change, and return its job's world with it. Raises Misfit if lines are missing."""
        try:
            change = _decoded(line, _changes, most=limits.CHANGE_LINE)
        except ValueError as error:
            return self._noted(worlds.is_unreadable(_job_of(line), str(error)))
        world = worlds.take(change)
        return self._noted(world) if world is not None else None

    def _noted(self, world: WorldReport) -> WorldReport | None:
        """Log an unreadable world once, and leave it out if its job cannot be read either."""
        if world.phase != WorldPhase.UNREADABLE:
            self._unreadable.discard(world.job)
        elif world.job not in self._unreadable:
            log.error("the rendezvous server's message about a job cannot be read", extra={"uid": world.job, "error": world.reason})
            self._unreadable.add(world.job)
        return world if world.job != NOBODY else None

    def _read_progress(self, line: bytes) -> TrainingProgress | None:
        try:
            return _progress.decode(line)
        except ValueError as error:
            if (job := _job_of(line)) not in self._unreadable:
                log.warning("a job's progress cannot be read", extra={"uid": job, "error": str(error)})
                self._unreadable.add(job)
            return None

    async def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        data = io.BytesIO(body) if body is not None and len(body) > AT_ONCE else body  # aiohttp sends a long one in chunks
        try:
            async with self._open().request(
                method, self._url + path, data=data, headers=await self._headers(), timeout=timeout, ssl=self._tls, allow_redirects=False
            ) as response:
                answer = await _whole(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RendezvousError(0, f"{method} {path}: {error or type(error).__name__}") from error
        if response.status >= 300:
            raise _refusal(response, answer)
        if (unknown := _unknown_version(response)) is not None:
            raise unknown
        return answer

    async def _headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {await self._token()}", protocol.HEADER: protocol.VERSION}
        return headers | ({protocol.GIVES_SIGNS: "1"} if self._gives_signs else {})

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """Read an answer of at most LONGEST_ANSWER bytes."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > LONGEST_ANSWER:
            response.close()
            raise RendezvousError(0, f"its answer is longer than {LONGEST_ANSWER} bytes")
    return bytes(body)


def _refusal(response: aiohttp.ClientResponse, answer: bytes) -> Exception:
    words = answer[:500].decode(errors="replace")
    if response.status == protocol.UPGRADE_REQUIRED:
        return UnknownVersion(f"the rendezvous server refuses this controller: {words}")
    return _unknown_version(response) or RendezvousError(response.status, words)


def _unknown_version(response: aiohttp.ClientResponse) -> UnknownVersion | None:
    """Return why the answer cannot be read, if the server has another major version. It may have misread the request, too."""
    why = protocol.obstacle(response.headers.get(protocol.HEADER), peer="the rendezvous server", here="this controller")
    return UnknownVersion(why) if why else None


async def _lines(chunks: AsyncIterator[bytes], longest: int) -> AsyncIterator[bytes]:
    """Yield the lines of a stream. Only the beginning of a line that is too long is kept: over the limit, and enough to find its job."""
    parts: list[bytes] = []
    kept = 0
    async for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for end in whole:
            yield b"".join((*parts, end if kept <= longest else b""))
            parts, kept = [], 0
        if kept <= longest:
            parts.append(rest)
            kept += len(rest)


def _decoded(line: bytes, decoder: Decoder[Message], *, most: int) -> Message:
    if len(line) > most:
        raise ValueError(f"its line has more than {most} bytes")
    return decoder.decode(line)


def _job_of(line: bytes) -> str:
    """Return the job of a line that cannot be decoded."""
    found = re.match(rb'\s*\{\s*"job"\s*:\s*"([!#-\[\]-~]{1,253})"', line)
    return found.group(1).decode() if found else NOBODY
