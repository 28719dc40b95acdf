"""Runs a program beside a container for `kubectl exec`, with its streams on the link that the client made."""

import asyncio
import contextlib
import fcntl
import json
import os
import struct
import termios
from collections.abc import Callable, Sequence
from typing import Any

from elastic.local.agent.links import RESIZE, STDERR, STDIN, STDOUT, Link, Streams, failure, outcome
from elastic.local.sandbox import Launch, SandboxError
from elastic.local.sandbox.channel import Channel, HolderGone

CHUNK = 32 * 1024


class _Ends:
    """The two ends of each stream: the program's, which are handed over and closed here, and ours."""

    def __init__(self, streams: Streams) -> None:
        self.terminal: int | None = None
        self.readers: dict[int, int] = {}
        self.writer: int | None = None
        self._theirs: list[int] = []
        if streams.terminal:
            ours, theirs = os.openpty()
            self.terminal = self.writer = ours
            self.readers = {STDOUT: ours}
            self._theirs = [theirs]
            self.program = (theirs, theirs, theirs)
            return
        stdin = self._input(streams.stdin)
        self.program = (stdin, self._output(STDOUT, streams.stdout), self._output(STDERR, streams.stderr))

    def _input(self, wanted: bool) -> int:
        if not wanted:
            theirs = os.open(os.devnull, os.O_RDONLY)
        else:
            theirs, self.writer = os.pipe()
        self._theirs.append(theirs)
        return theirs

    def _output(self, stream: int, wanted: bool) -> int:
        if not wanted:
            theirs = os.open(os.devnull, os.O_WRONLY)
        else:
            self.readers[stream], theirs = os.pipe()
        self._theirs.append(theirs)
        return theirs

    def hand_over(self) -> None:
        for descriptor in self._theirs:
            os.close(descriptor)

    def close_input(self) -> None:
        if self.writer is not None and self.terminal is None:
            os.close(self.writer)
            self.writer = None

    def close(self) -> None:
        ours = {*self.readers.values(), *([self.writer] if self.writer is not None else [])}
        for descriptor in ours:
            os.close(descriptor)


async def serve(link: Link, channel: Channel, launch: Launch, streams: Streams) -> None:
    """Runs the program to its end, or until the client goes away."""
    ends = _Ends(streams)
    try:
        try:
            end = await channel.join(launch, ends.program, terminal=streams.terminal)
        finally:
            ends.hand_over()
    except (SandboxError, HolderGone) as error:
        ends.close()
        await link.end(failure(str(error)))
        return
    listening = asyncio.create_task(_listen(link, ends))
    outputs = [asyncio.create_task(_pump(link, stream, source)) for stream, source in ends.readers.items()]
    try:
        waits: list[asyncio.Future[Any]] = [end, listening]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if end.done():
            # What it left running may keep its output open: the client decides how long to wait for that.
            waits = [asyncio.gather(*outputs), listening]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            # While another task still receives, closing would cut the connection instead of agreeing on its end.
            await _cancel(listening)
            code, words = end.result()
            await link.end(outcome(code, words))
    finally:
        await _cancel(listening, *outputs)
        ends.close()


async def _cancel(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(link: Link, stream: int, source: int) -> None:
    while True:
        try:
            data = await _when_readable(source)
        except OSError:
            # A terminal says so when its last user has gone.
            return
        if not data:
            return
        try:
            await link.send(stream, data)
        except ConnectionError:
            return


async def _when_readable(source: int) -> bytes:
    loop = asyncio.get_running_loop()
    await _ready(source, loop.add_reader, loop.remove_reader)
    return os.read(source, CHUNK)


async def _ready(descriptor: int, add: Callable[[int, Callable[[], None]], None], remove: Callable[[int], Any]) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle() -> None:
        if not ready.done():
            ready.set_result(None)

    add(descriptor, settle)
    try:
        await ready
    finally:
        remove(descriptor)


async def _listen(link: Link, ends: _Ends) -> None:
    async for stream, data in link.incoming():
        if stream == STDIN and data is None:
            ends.close_input()
        elif stream == STDIN and data and ends.writer is not None:
            await _write(ends.writer, data)
        elif stream == RESIZE and data and ends.terminal is not None:
            _resize(ends.terminal, data)


async def _write(target: int, data: bytes) -> None:
    """A program that does not read its input holds up nothing but its client."""
    os.set_blocking(target, False)
    with contextlib.suppress(BrokenPipeError):
        while data:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                await _ready(target, asyncio.get_running_loop().add_writer, asyncio.get_running_loop().remove_writer)


def _resize(terminal: int, data: bytes) -> None:
    # A client may send several sizes at once, one a line; the last one counts.
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError, struct.error):
        size = json.loads(data.split()[-1])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))


def command(launch: Launch, argv: Sequence[str]) -> Launch:
    """The same surroundings with another command line."""
    return Launch(id=launch.id, pod=launch.pod, argv=list(argv), env=launch.env, cwd=launch.cwd, log="", record="", hosts=launch.hosts)
