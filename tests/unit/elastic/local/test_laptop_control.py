"""The socket by which nodes are added and killed: it answers from the moment at which the agents say that they are ready."""

import asyncio
from pathlib import Path

import pytest

from elastic.local.agent import control
from elastic.local.agent.asking import NotDone, ask_agents
from elastic.local.agent.control import Add, Kill
from elastic.local.agent.roster import Member


async def test_it_answers_as_soon_as_it_is_opened(tmp_path: Path) -> None:
    """Once it opened in a task of its own, after the ready file was written: a node added right after `elastic up` was refused."""
    asked: list[str] = []

    async def add(member: Member) -> None:
        asked.append(f"add {member.name}")

    async def kill(name: str) -> None:
        asked.append(f"kill {name}")
        raise control.Refused(f"no node {name} runs here")

    (tmp_path / control.SOCKET).touch()  # a killed process leaves its own behind
    server = await control.listen(tmp_path, add, kill)
    # No await lies between the two: the connection is made before the event loop runs again.
    asking = asyncio.get_running_loop().run_in_executor(None, ask_agents, tmp_path, Add(name="spare"))
    async with server:
        await asking
        with pytest.raises(NotDone, match="no node gone runs here"):
            await asyncio.to_thread(ask_agents, tmp_path, Kill(name="gone"))
    assert asked == ["add spare", "kill gone"]
    assert (tmp_path / control.SOCKET).stat().st_mode & 0o777 == 0o600


async def test_one_that_asks_in_other_words_is_told_so_and_the_socket_serves_on(tmp_path: Path) -> None:
    async def nothing(_: object) -> None:
        raise AssertionError("nobody asked for that")

    server = await control.listen(tmp_path, nothing, nothing)
    async with server:
        with control.address_in(tmp_path, control.SOCKET) as address:
            reader, writer = await asyncio.open_unix_connection(address)
        writer.write(b'{"do": "dance"}\n')
        assert b"error" in await reader.readline()
        writer.close()
