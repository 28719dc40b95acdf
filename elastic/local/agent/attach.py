"""Serve `kubectl attach`: pass on a container's output from now until its end, and write to its input if its spec asks for one.

Both of its outputs go to one log, so both arrive as one stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from elastic.local.agent import logs
from elastic.local.agent.environment import Object
from elastic.local.agent.links import RESIZE, STDERR, STDIN, STDOUT, Link, Streams, outcome, resized
from elastic.local.descriptors import write
from elastic.local.sandbox import SandboxError
from elastic.local.sandbox.channel import Channel, HolderGone


class Typing:
    """A client's access to a container's input. The holder has the input itself, which outlives the client and this process."""

    def __init__(self, channel: Channel, container: Object, run_id: str) -> None:
        self._channel, self._run_id = channel, run_id
        self._takes_input = bool(container.get("stdin"))
        self._is_terminal = bool(container.get("tty"))
        self._is_for_one = bool(container.get("stdinOnce"))
        self._descriptor: int | None = None
        self.missed_nothing = False
        """Whether this client also sees earlier output: it is the first client of an input for one client."""

    async def begin(self, streams: Streams) -> None:
        if not (streams.stdin and self._takes_input):
            return
        # The holder refuses if the container or its input has just ended.
        with contextlib.suppress(SandboxError):
            self._descriptor, is_first = await self._channel.input(self._run_id)
            self.missed_nothing = is_first and self._is_for_one

    async def give(self, data: bytes) -> None:
        if self._descriptor is not None:
            await write(self._descriptor, data)

    def resize(self, data: bytes) -> None:
        if self._descriptor is not None and self._is_terminal:
            resized(self._descriptor, data)

    async def end(self) -> None:
        """Note that the client sends no more. This ends an input for a single client, but a terminal's end has to be typed."""
        if self._descriptor is None:
            return
        os.close(self._descriptor)
        self._descriptor = None
        if self._is_for_one and not self._is_terminal:
            with contextlib.suppress(HolderGone):
                await self._channel.end_input(self._run_id)


async def serve(link: Link, log: Path, streams: Streams, typing: Typing, *, running: Callable[[], bool]) -> None:
    """Serve a client until the container ends or the client goes."""
    await typing.begin(streams)

    async def tell() -> None:
        wanted = logs.Wanted(follow=True, tail_lines=None if typing.missed_nothing else 0)
        async for chunk in logs.read(log, wanted, running=running):
            if streams.stdout or streams.stderr:
                await link.send(STDOUT if streams.stdout else STDERR, chunk)

    telling, listening = asyncio.create_task(tell()), asyncio.create_task(_listen(link, typing))
    try:
        await asyncio.wait((telling, listening), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (telling, listening):
            if not task.done():
                task.cancel()
        await asyncio.gather(telling, listening, return_exceptions=True)
        await typing.end()
    if not telling.cancelled() and telling.exception() is None:
        await link.end(outcome(0, ""))


async def _listen(link: Link, typing: Typing) -> None:
    async for stream, data in link.incoming():
        if stream == STDIN and data is None:
            await typing.end()
        elif stream == STDIN and data:
            await typing.give(data)
        elif stream == RESIZE and data:
            typing.resize(data)
