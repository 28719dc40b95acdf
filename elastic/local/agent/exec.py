"""Runs a program beside a container for `kubectl exec`, and carries its streams over a WebSocket in the way Kubernetes names
`v4.channel.k8s.io` and `v5.channel.k8s.io`: the first byte of a message says which stream it belongs to.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import struct
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import WSMsgType, web

from elastic.local.sandbox import Launch, SandboxError
from elastic.local.sandbox.channel import Channel, HolderGone

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CHUNK = 32 * 1024
HEARTBEAT_S = 30.0


@dataclass(frozen=True, slots=True)
class Streams:
    """Which streams the client asked for."""

    stdin: bool
    stdout: bool
    stderr: bool
    terminal: bool


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


async def serve(socket: web.WebSocketResponse, channel: Channel, launch: Launch, streams: Streams) -> None:
    """Runs the program to its end, or until the client goes away."""
    ends = _Ends(streams)
    try:
        try:
            end = await channel.join(launch, ends.program, terminal=streams.terminal)
        finally:
            ends.hand_over()
    except (SandboxError, HolderGone) as error:
        ends.close()
        await _tell_end(socket, failure(str(error)))
        return
    listening = asyncio.create_task(_listen(socket, ends))
    outputs = [asyncio.create_task(_pump(socket, stream, source)) for stream, source in ends.readers.items()]
    try:
        waits: list[asyncio.Future[Any]] = [end, listening]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if end.done():
            await asyncio.gather(*outputs, return_exceptions=True)
            # While another task still receives, closing would cut the connection instead of agreeing on its end.
            await _cancel(listening)
            code, words = end.result()
            await _tell_end(socket, outcome(code, words))
    finally:
        await _cancel(listening, *outputs)
        ends.close()


async def _cancel(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def outcome(code: int, words: str) -> dict[str, object]:
    if words:
        return failure(words)
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def failure(words: str) -> dict[str, object]:
    return {"metadata": {}, "status": "Failure", "message": words, "reason": "InternalError", "code": 500}


async def _tell_end(socket: web.WebSocketResponse, status: dict[str, object]) -> None:
    with contextlib.suppress(ConnectionError):
        await socket.send_bytes(bytes([ERROR]) + json.dumps(status).encode())
        await socket.close()


async def _pump(socket: web.WebSocketResponse, stream: int, source: int) -> None:
    while True:
        try:
            data = await _when_readable(source)
        except OSError:
            # A terminal says so when its last user has gone.
            return
        if not data:
            return
        try:
            await socket.send_bytes(bytes([stream]) + data)
        except ConnectionError:
            return


async def _when_readable(source: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(source, settle)
    try:
        await ready
    finally:
        loop.remove_reader(source)
    return os.read(source, CHUNK)


async def _listen(socket: web.WebSocketResponse, ends: _Ends) -> None:
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        stream, data = message.data[0], message.data[1:]
        if stream == STDIN and ends.writer is not None:
            await _write(ends.writer, data)
        elif stream == RESIZE and ends.terminal is not None:
            _resize(ends.terminal, data)
        elif stream == CLOSE and data[:1] == bytes([STDIN]):
            ends.close_input()


async def _write(target: int, data: bytes) -> None:
    # A program that does not read its input must not hold up the loop.
    with contextlib.suppress(BrokenPipeError):
        while data:
            written = await asyncio.to_thread(os.write, target, data)
            data = data[written:]


def _resize(terminal: int, data: bytes) -> None:
    with contextlib.suppress(ValueError, KeyError):
        size = json.loads(data)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))


def command(launch: Launch, argv: Sequence[str]) -> Launch:
    """The same surroundings with another command line."""
    return Launch(id=launch.id, pod=launch.pod, argv=list(argv), env=launch.env, cwd=launch.cwd, log="", record="", hosts=launch.hosts)
