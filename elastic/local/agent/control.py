"""Serve the control socket in the data folder, which adds a node to the running cluster or lets it vanish: one line of JSON each way."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from elastic.local.agent.roster import Member
from elastic.local.sandbox.channel import address_in

log = logging.getLogger(__name__)

SOCKET = "agents.sock"
MOST_REQUEST = 64 * 1024
REQUEST_S = 5.0


class Refused(Exception):
    """The request cannot be carried out; the message is for the caller."""


class Add(Member, frozen=True, tag_field="do", tag="add"):
    """Adds a node."""


class Kill(msgspec.Struct, frozen=True, tag_field="do", tag="kill"):
    """Removes a node without notice."""

    name: str


async def listen(folder: Path, add: Callable[[Member], Awaitable[None]], kill: Callable[[str], Awaitable[None]]) -> asyncio.Server:
    """Answer requests from now on, until the server is closed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                line = await reader.readline()
            request = msgspec.json.decode(line, type=Add | Kill)
            match request:
                case Add():
                    await add(request)
                case Kill():
                    await kill(request.name)
            reply: dict[str, object] = {"ok": True}
        except (Refused, msgspec.DecodeError, TimeoutError, ValueError) as error:
            reply = {"error": str(error) or "no request came"}
        with contextlib.suppress(ConnectionError):
            writer.write(msgspec.json.encode(reply) + b"\n")
            await writer.drain()
            writer.close()

    path = folder / SOCKET
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    try:
        with address_in(folder, SOCKET) as address:
            listening.bind(address)
        path.chmod(0o600)
        return await asyncio.start_unix_server(answer, sock=listening, limit=MOST_REQUEST)
    except BaseException:
        listening.close()
        raise
