"""A job's own question about its world: what it is answered, and what callers that read nothing can hold."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from elastic.membership.tokens import control_token, job_token
from elastic.membership.wire import Expectation, Held, Join, Restart, View
from elastic_training.rendezvous.server import brief_worlds
from elastic_training.rendezvous.server.access import Gate
from elastic_training.rendezvous.server.brief_worlds import LONGEST
from elastic_training.rendezvous.server.http import Face
from elastic_training.rendezvous.server.hub import Hub

KEY = b"k" * 32


class Wire:
    def send(self, view: View) -> None: ...

    def end(self, reason: str) -> None: ...

    def close(self) -> None: ...


@dataclass
class Site:
    hub: Hub
    client: "TestClient[Any, Any]"

    async def world_of(self, uid: str, *names: str) -> None:
        """Let these members form a world."""
        self.hub.expect(uid, Expectation(members=names, min=len(names), max=8192, floor=1))
        for name in names:
            self.hub.attach(uid, name=name, link=Wire(), message=Join(incarnation=f"{name[:40]}/1", held=None, store="a:1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def ask(self, uid: str, *, token: str = "") -> tuple[int, Any, int]:
        headers = {"Authorization": f"Bearer {token or job_token(KEY, uid)}"}
        async with self.client.get(f"/v1/jobs/{uid}/world", headers=headers) as response:
            body = await response.read()
            return response.status, await response.json(), len(body)

    async def ask_without_reading(self, uid: str) -> socket.socket:
        """Send the question on a connection whose receive buffer holds next to nothing."""
        caller = socket.socket()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        caller.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(caller, ("127.0.0.1", self.client.port))
        head = f"GET /v1/jobs/{uid}/world HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {job_token(KEY, uid)}\r\n\r\n"
        await loop.sock_sendall(caller, head.encode())
        return caller


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    clock = asyncio.get_running_loop().time
    hub = Hub(instance="s1", clock=clock)
    face = Face(hub=hub, gate=Gate(keys=lambda: [KEY], reviewer=None, accounts=()), clock=clock, metrics=lambda: (b"", ""))
    async with TestClient(TestServer(face.application())) as client:
        yield Site(hub, client)
        for job in hub.jobs():
            hub.forget(job.uid)


async def test_a_job_hears_generation_phase_size_and_names_of_its_world(site: Site) -> None:
    await site.world_of("j1", "w0", "w1")
    status, world, _ = await site.ask("j1")
    assert status == 200
    assert world == {"generation": 2, "phase": "running", "size": 2, "members": ["w0", "w1"], "truncated": False}
    assert (await site.ask("j2"))[0] == 404


async def test_a_job_hears_nothing_of_restarts_and_the_controller_hears_all(site: Site) -> None:
    """The restarts that one job's members had presented made each answer 13 MB long."""
    await site.world_of("j1", "w0")
    fat = tuple(Restart(id=f"{n:-<500}", generation=1, cause="disruption") for n in range(250))
    held = Held(id="w", generation=1, rank=0, size=1, unacknowledged_restarts=fat)
    site.hub.attach("j1", name="w0", link=Wire(), message=Join(incarnation="w0/2", held=held))
    await asyncio.sleep(0)
    assert (await site.ask("j1"))[2] < 200
    status, world, length = await site.ask("j1", token=control_token(KEY))
    assert (status, len(world["uncounted"])) == (200, 251)
    assert length > 100_000


async def test_the_answer_to_a_job_is_cut_and_says_so(site: Site) -> None:
    await site.world_of("j1", *(f"{n:x<250}" for n in range(1000)))
    status, world, length = await site.ask("j1")
    assert (status, world["size"], world["truncated"]) == (200, 1000, True)
    assert LONGEST - 1024 < length <= LONGEST
    assert world["members"] == [f"{n:x<250}" for n in range(len(world["members"]))]


NAMES = tuple(f"{n:x<250}" for n in range(300))
"""Names that make an answer too long for the buffers of a caller that reads nothing."""


async def test_one_answer_at_a_time_is_held_for_a_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred callers that read nothing held a hundred answers for 75 seconds, and the server ran out of memory."""
    monkeypatch.setattr(brief_worlds, "TAKEN_WITHIN_S", 600.0)
    monkeypatch.setattr(brief_worlds, "TURN_S", 0.01)
    await site.world_of("j1", *NAMES)
    await site.world_of("j2", "w0")
    caller = await site.ask_without_reading("j1")
    async with asyncio.timeout(60):
        while (await site.ask("j1"))[0] != 429:
            pass
        assert (await site.ask("j2"))[0] == 200, "a neighbour is answered meanwhile"
        assert [(await site.ask("j1"))[0] for _ in range(3)] == [429, 429, 429]
        assert (await site.ask("j1", token=control_token(KEY)))[0] == 200
        caller.close()
        while (await site.ask("j1"))[0] != 200:
            pass


async def test_a_caller_that_asks_again_at_once_is_answered(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells only later that the first answer was taken, and the second question was refused meanwhile."""
    await site.world_of("j1", "w0")
    looks = iter([True] * 3 + [False] + [True] * 3)
    monkeypatch.setattr(brief_worlds, "TURN_S", 60.0)
    monkeypatch.setattr(brief_worlds, "is_unsent", lambda transport: next(looks, False))
    assert [(await site.ask("j1"))[0] for _ in range(3)] == [200, 200, 200]


async def read_all(caller: socket.socket) -> None:
    while await asyncio.get_running_loop().sock_recv(caller, 1024):
        pass


async def test_a_caller_that_does_not_take_its_answer_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_worlds, "TAKEN_WITHIN_S", 0.05)
    await site.world_of("j1", *NAMES)
    caller = await site.ask_without_reading("j1")
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        await loop.sock_recv(caller, 1)
        while (await site.ask("j1"))[0] != 200:
            pass
        with pytest.raises(ConnectionError):
            await read_all(caller)
    caller.close()
