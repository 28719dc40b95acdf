"""The controller's client of the rendezvous server: send expectations, forget jobs, read the stream of worlds.

And the autoscaler's, which reads the stream of progress.

One session. A stream reopens by itself and starts with the full state each time, so a lost change does not matter.
"""

import asyncio
import io
import logging
import random
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from elastic.membership import limits, protocol
from elastic.membership.phases import WorldPhase
from elastic.membership.protocol import UnknownVersion
from elastic.membership.training import Forgotten, Progress
from elastic.membership.wire import Expectation, World, unreadable

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 10.0
SILENCE_S = 25.0
FIRST_BACK_OFF_S = 0.05
LONGEST_BACK_OFF_S = 2.0
GOOD_BYE_S = 0.1
AT_ONCE = 256 * 1024
NOBODY = "?"
"""Stands for the job of a world whose job cannot be read either."""

_worlds = msgspec.json.Decoder(World)
_forgotten = msgspec.json.Decoder(Forgotten)
_progress = msgspec.json.Decoder(Progress)
_encode = msgspec.json.encode


class RendezvousError(Exception):
    """The server refused or could not be reached. `code` is the HTTP status, 0 without a connection."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"rendezvous server: {message}" + (f" ({code})" if code else ""))
        self.code = code


class RendezvousClient:
    """A controller's connection to one rendezvous server."""

    def __init__(self, url: str, token: Callable[[], Awaitable[str]], ca: str) -> None:
        self._url = url.rstrip("/")
        self._token = token
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
        """Send who should be in the job's world. Always the full state; sending it twice changes nothing."""
        await self._call("PUT", f"/v1/jobs/{job_uid}/expectation", _encode(expectation))

    async def forget(self, job_uid: str) -> int | None:
        """Forget a job that is over; returns its last step. An unknown job is no error."""
        answer = await self._call("DELETE", f"/v1/jobs/{job_uid}")
        try:
            return _forgotten.decode(answer).step if answer else None  # an older server answers nothing
        except ValueError:
            return None

    async def world(self, job_uid: str) -> World | None:
        """The job's world now, None for a job the server does not know."""
        try:
            return self._read(await self._call("GET", f"/v1/jobs/{job_uid}/world"))
        except RendezvousError as error:
            if error.code == 404:
                return None
            raise

    async def worlds(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[World]:
        """Every job's world, then each change, without end. After a disconnect it starts over with the full state.

        `on_open` is called each time a stream opens: the server may be a new one that knows no expectations yet.
        """
        async for line in self._stream("worlds", limits.WORLD_LINE, on_open):
            if (world := self._read(line)).job != NOBODY:
                yield world

    async def progress(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[Progress]:
        """Every job's progress, then each change, in the same way. What cannot be read is left out."""
        async for line in self._stream("progress", limits.PROGRESS_LINE, on_open):
            try:
                yield _progress.decode(line)
            except ValueError as error:
                if (job := _job_of(line)) not in self._unreadable:
                    log.warning("a job's progress cannot be read", extra={"uid": job, "error": str(error)})
                    self._unreadable.add(job)

    async def _stream(self, name: str, longest: int, on_open: Callable[[], None] | None) -> AsyncIterator[bytes]:
        """The lines of a stream, which is opened again whenever it breaks."""
        back_off_s = FIRST_BACK_OFF_S
        while True:
            try:
                async for line in self._opened(name, longest, on_open):
                    back_off_s = FIRST_BACK_OFF_S
                    yield line
            except (RendezvousError, UnknownVersion, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("a stream of the rendezvous server broke; opening it again", extra={"stream": name, "error": str(error)})
            await asyncio.sleep(back_off_s * random.uniform(0.5, 1.0))
            back_off_s = min(back_off_s * 2, LONGEST_BACK_OFF_S)

    async def _opened(self, name: str, longest: int, on_open: Callable[[], None] | None) -> AsyncIterator[bytes]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=SILENCE_S)
        async with self._open().get(f"{self._url}/v1/{name}", headers=await self._headers(), timeout=timeout, ssl=self._tls) as response:
            if response.status != 200:
                raise _refusal(response, await response.read())
            if (unknown := _unknown_version(response)) is not None:
                raise unknown
            if on_open is not None:
                on_open()
            async for line in _lines(response.content.iter_any(), longest):
                if line.strip():
                    yield line

    def _read(self, line: bytes) -> World:
        """Decode a world. An unreadable one affects only its own job and is logged once."""
        try:
            if len(line) > limits.WORLD_LINE:
                raise ValueError(f"its line has more than {limits.WORLD_LINE} bytes")
            world = _worlds.decode(line)
        except ValueError as error:
            world = unreadable(_job_of(line), str(error))
        if world.phase != WorldPhase.UNREADABLE:
            self._unreadable.discard(world.job)
        elif world.job not in self._unreadable:
            log.error("the rendezvous server's message about a job cannot be read", extra={"uid": world.job, "error": world.reason})
            self._unreadable.add(world.job)
        return world

    async def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        data = io.BytesIO(body) if body is not None and len(body) > AT_ONCE else body  # aiohttp sends a long one in chunks
        try:
            async with self._open().request(
                method, self._url + path, data=data, headers=await self._headers(), timeout=timeout, ssl=self._tls
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RendezvousError(0, f"{method} {path}: {error or type(error).__name__}") from error
        if response.status >= 300:
            raise _refusal(response, answer)
        if (unknown := _unknown_version(response)) is not None:
            raise unknown
        return answer

    async def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {await self._token()}", protocol.HEADER: protocol.VERSION}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session


def _refusal(response: aiohttp.ClientResponse, answer: bytes) -> Exception:
    words = answer[:500].decode(errors="replace")
    if response.status == protocol.UPGRADE_REQUIRED:
        return UnknownVersion(f"the rendezvous server refuses this controller: {words}")
    return _unknown_version(response) or RendezvousError(response.status, words)


def _unknown_version(response: aiohttp.ClientResponse) -> UnknownVersion | None:
    """A server of another major version may have taken the request for something else, and its answer cannot be read."""
    why = protocol.obstacle(response.headers.get(protocol.HEADER), peer="the rendezvous server", here="this controller")
    return UnknownVersion(why) if why else None


async def _lines(chunks: AsyncIterator[bytes], longest: int) -> AsyncIterator[bytes]:
    """The lines of a stream. Of a line that is too long only the beginning is kept: over the limit, and enough to find its job."""
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


def _job_of(line: bytes) -> str:
    """The job of a line that cannot be decoded."""
    found = re.match(rb'\s*\{\s*"job"\s*:\s*"([!#-\[\]-~]{1,253})"', line)
    return found.group(1).decode() if found else NOBODY
