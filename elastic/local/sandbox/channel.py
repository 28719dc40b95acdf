"""Talk to the holder over a Unix socket: one line of JSON each way, with file descriptors if the answer needs them."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from elastic.local.descriptors import readable
from elastic.local.sandbox import Launch, SandboxError

SOCKET = "holder.sock"
RUNNING = "running"
"""Value in place of a mode, for the mode of the holder that runs already."""
REPLY_S = 30.0


class HolderGone(Exception):
    """The holder has ended or closed the connection. Whether it did the last request is not known."""


@contextlib.contextmanager
def address_in(folder: Path, name: str = SOCKET) -> Iterator[str]:
    """Yield a socket's address through a descriptor of its folder, because the path itself may be too long for an address."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


class Channel:
    """A connection to the holder from an event loop. Requests may overlap; events go to subscribers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._seq = 0
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], list[int]]]] = {}
        self._ends: dict[int, asyncio.Future[tuple[int, str]]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._subscribers: list[Callable[[str], None]] = []
        self._sending = asyncio.Lock()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, folder: Path) -> "Channel":
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            with address_in(folder) as address:
                await asyncio.get_running_loop().sock_connect(connection, address)
        except OSError as error:
            connection.close()
            raise HolderGone(f"no holder answers in {folder}: {error.strerror}") from error
        channel = cls(connection)
        await channel._ask("follow")
        return channel

    def subscribe(self, ended: Callable[[str], None]) -> None:
        """Call `ended` with the id of every container run that ends."""
        self._subscribers.append(ended)

    async def close(self) -> None:
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        self._connection.close()

    async def gone(self) -> None:
        """Wait until the holder has gone."""
        await asyncio.wait([self._reader])

    async def describe(self) -> dict[str, Any]:
        return await self._ask("describe")

    async def create(self, pod: str, *, hostname: str) -> str:
        reply = await self._ask("create", pod=pod, hostname=hostname)
        return str(reply["ip"])

    async def destroy(self, pod: str) -> None:
        await self._ask("destroy", pod=pod)

    async def run(self, launch: Launch) -> None:
        await self._ask("run", launch=launch)

    async def signal(self, container: str, number: int, *, out_of_memory: bool = False) -> bool:
        """Signal a container, and return whether it runs. `out_of_memory` is noted as the reason for its end."""
        reply = await self._ask("signal", id=container, number=int(number), oom=out_of_memory)
        return bool(reply["sent"])

    async def tree(self, container: str) -> list[int]:
        """Return the host's pids of all processes in a container."""
        reply = await self._ask("tree", id=container)
        return list(reply["pids"])

    async def input(self, container: str) -> tuple[int, bool]:
        """Return a descriptor for the container's input, and whether this is its first client. Raise SandboxError if it takes no input."""
        reply, fds = await self._ask_for_fds("input", id=container)
        return fds[0], bool(reply["first"])

    async def end_input(self, container: str) -> None:
        """Close the holder's end of an input. A pipe ends once no process has a descriptor of it; a terminal does not."""
        await self._ask("end_input", id=container)

    async def dial(self, pod: str, *, port: int, inside: bool) -> socket.socket:
        _, fds = await self._ask_for_fds("dial", pod=pod, port=port, inside=inside)
        return socket.socket(fileno=fds[0])

    async def join(self, launch: Launch, streams: Sequence[int], *, terminal: bool) -> "asyncio.Future[tuple[int, str]]":
        """Start a process in a running container. The future gets its exit code, or why it could not start.

        Cancelling the future ends the process.
        """
        end: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        seq = self._seq + 1
        self._ends[seq] = end
        end.add_done_callback(lambda end: self._leave(seq) if end.cancelled() else None)
        try:
            await self._ask_for_fds("join", streams, launch=launch, terminal=terminal)
        except (SandboxError, HolderGone):
            self._ends.pop(seq, None)
            raise
        return end

    def _leave(self, seq: int) -> None:
        self._ends.pop(seq, None)

        async def tell() -> None:
            with contextlib.suppress(HolderGone, SandboxError):
                await self._ask("leave", join=seq)

        task = asyncio.get_running_loop().create_task(tell())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        reply, _ = await self._ask_for_fds(op, **fields)
        return reply

    async def _ask_for_fds(self, op: str, fds: Sequence[int] = (), **fields: Any) -> tuple[dict[str, Any], list[int]]:
        self._seq += 1
        seq = self._seq
        future: asyncio.Future[tuple[dict[str, Any], list[int]]] = asyncio.get_running_loop().create_future()
        self._waiting[seq] = future
        message = msgspec.json.encode({"seq": seq, "op": op, **fields}) + b"\n"
        try:
            if self._reader.done():
                raise HolderGone("the sandbox holder has gone")
            async with self._sending:
                await self._send(message, fds)
            async with asyncio.timeout(REPLY_S):
                reply, received = await future
        except (OSError, TimeoutError) as error:
            raise HolderGone(f"the sandbox holder does not answer: {error!r}") from error
        finally:
            self._waiting.pop(seq, None)
        if "refused" in reply:
            raise SandboxError(reply["refused"])
        if "error" in reply:
            raise SandboxError(f"the sandbox failed: {reply['error']}")
        return reply, received

    async def _send(self, message: bytes, fds: Sequence[int]) -> None:
        if fds:
            # Descriptors travel with the first byte. The rest follows as an ordinary stream.
            socket.send_fds(self._connection, [message[:1]], list(fds))
            message = message[1:]
        await asyncio.get_running_loop().sock_sendall(self._connection, message)

    async def _read(self) -> None:
        pending = bytearray()
        received: list[int] = []
        try:
            while data := await self._receive(received):
                pending += data
                *lines, rest = pending.split(b"\n")
                pending = bytearray(rest)
                for line in lines:
                    self._take(msgspec.json.decode(line), received)
        except OSError:
            pass
        finally:
            pending_futures: list[asyncio.Future[Any]] = [*self._waiting.values(), *self._ends.values()]
            for future in pending_futures:
                if not future.done():
                    future.set_exception(HolderGone("the sandbox holder has gone"))

    async def _receive(self, received: list[int]) -> bytes:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._connection, 1 << 16, 8)
            except BlockingIOError:
                await readable(self._connection.fileno())
                continue
            received += fds
            return data

    def _take(self, message: dict[str, Any], received: list[int]) -> None:
        if "ended" in message:
            for subscriber in self._subscribers:
                subscriber(message["ended"])
        elif "joined" in message:
            end = self._ends.pop(message["joined"], None)
            if end and not end.done():
                end.set_result((message["exit_code"], message["error"]))
        else:
            # A read may return several answers with descriptors of the last. Each answer says how many descriptors are its own.
            own, received[:] = received[: message["fds"]], received[message["fds"] :]
            future = self._waiting.get(message["reply"])
            if future and not future.done():
                future.set_result((message, own))
            else:
                for fd in own:
                    os.close(fd)


def ask(folder: Path, op: str, **fields: Any) -> tuple[dict[str, Any], list[int]]:
    """Ask once, without an event loop. Return the answer and its descriptors."""
    with address_in(folder) as address, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(REPLY_S)
        connection.connect(address)
        connection.sendall(msgspec.json.encode({"seq": 1, "op": op, **fields}) + b"\n")
        data, fds, _, _ = socket.recv_fds(connection, 1 << 20, 1)
        while not data.endswith(b"\n") and (more := connection.recv(1 << 20)):
            data += more
    reply = msgspec.json.decode(data)
    if "refused" in reply or "error" in reply:
        raise SandboxError(reply.get("refused") or reply["error"])
    return reply, list(fds)


def listen_inside(folder: Path, port: int) -> socket.socket:
    """Return a listening socket at the address at which pods find the control plane."""
    _, fds = ask(folder, "listen", port=port)
    return socket.socket(fileno=fds[0])
