"""Run a program in a container for `kubectl exec`, with its streams on the link that the client made."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from elastic.local.agent.links import RESIZE, STDERR, STDIN, STDOUT, Link, Streams, failure, outcome, resized
from elastic.local.descriptors import readable, write
from elastic.local.sandbox import Launch, SandboxError
from elastic.local.sandbox.channel import Channel, HolderGone

CHUNK = 32 * 1024


class _Ends:
    """The two ends of each stream: the program's, which are handed over and then closed here, and ours."""

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
    """Run the program until it ends, or until the client goes."""
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
            # Processes that the program left running may keep its output open. The client decides how long to wait for them.
            waits = [asyncio.gather(*outputs), listening]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            # If another task still received, closing would cut the connection before both sides agree on its end.
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
            await readable(source)
            data = os.read(source, CHUNK)
        except OSError:
            # A terminal reports an error when its last user has gone.
            return
        if not data:
            return
        try:
            await link.send(stream, data)
        except ConnectionError:
            return


async def _listen(link: Link, ends: _Ends) -> None:
    async for stream, data in link.incoming():
        if stream == STDIN and data is None:
            ends.close_input()
        elif stream == STDIN and data and ends.writer is not None:
            await write(ends.writer, data)
        elif stream == RESIZE and data and ends.terminal is not None:
            resized(ends.terminal, data)


def command(launch: Launch, argv: Sequence[str]) -> Launch:
    """Return the same launch with another command line."""
    return Launch(id=launch.id, pod=launch.pod, argv=list(argv), env=launch.env, cwd=launch.cwd, log="", record="", hosts=launch.hosts)
