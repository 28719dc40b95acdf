"""A member that may join its own job says whatever it likes. The job next to it does not notice."""

import asyncio
import contextlib
import json
import random
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rendezvous_members import Member, expecting, members
from torch_agents import Server, serving, wait_until

from elastic.membership.limits import MEMBER_MESSAGE
from elastic.membership.tokens import job_token
from elastic.membership.wire import MAX_HELD, WorldReport

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MOST_HOSTILE_S = 120.0
MANY = 300
"""Number of messages before each change of the neighbour."""
MOST_GROWTH_KB = 256 * 1024


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


class Hostile:
    """Connections with the valid token of the job `hostile`, each of which says something of its own."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._draw = random.Random(seed)
        self.said = 0
        self.end = threading.Event()

    async def run(self) -> None:
        """Attack until the end is set."""
        until = time.monotonic() + MOST_HOSTILE_S
        headers = {"Authorization": f"Bearer {job_token(self._server.key, 'hostile')}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            await asyncio.gather(*(self._attack(session, until) for _ in range(8)))
        await asyncio.sleep(0.25)  # aiohttp does not wait for the good-byes of its TLS connections

    async def _attack(self, session: aiohttp.ClientSession, until: float) -> None:
        tls = ssl.create_default_context(cadata=self._server.ca)
        base = f"https://127.0.0.1:{self._server.port}/v1/jobs/hostile"
        while not self.end.is_set() and time.monotonic() < until:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                if self._draw.random() < 0.3:
                    report = {"member": self._name(), "generation": self._number(), "step": self._number()}
                    async with session.post(f"{base}/report", data=json.dumps(report), ssl=tls) as answer:
                        assert answer.status in (200, 400), await answer.text()
                    self.said += 1
                    continue
                async with session.ws_connect(f"{base}/members/{self._name()}", ssl=tls, timeout=aiohttp.ClientWSTimeout(ws_close=1)) as ws:  # type: ignore[call-arg]
                    await ws.send_str(json.dumps(self._join()))
                    for _ in range(self._draw.choice([1, 5, 50])):
                        await ws.send_str(self._message())
                        self.said += 1
                    await asyncio.sleep(self._draw.choice([0, 0.2]))

    def _name(self) -> str:
        return self._draw.choice(["w0", "w1", f"w{self._draw.randrange(10**9)}"])

    def _number(self) -> int:
        return self._draw.choice([0, 1, 2, 9_999, 10_001, 2**31, 2**52, 2**53 - 1])

    def _join(self) -> dict[str, Any]:
        draw, generation = self._draw, min(2**52, self._number())
        prefix = "i" * draw.choice([10, 400])
        uncounted = [
            {"id": f"{prefix}{draw.randrange(10**12)}", "generation": self._number(), "cause": draw.choice(["plan", "user", "x" * 60])}
            for _ in range(draw.choice([0, MAX_HELD]))
        ]
        held = {"id": f"{generation}-s", "generation": generation, "rank": 0, "size": draw.choice([1, 8192]), "uncounted": uncounted}
        return {
            "t": "join",
            "incarnation": f"p/{draw.randrange(5)}",
            "held": held,
            "ready": draw.random() < 0.5,
            "trouble": "\u2603" * 1000,
        }

    def _message(self) -> str:
        draw, number = self._draw, self._number()
        return draw.choice(
            [
                json.dumps(self._join()),
                json.dumps({"t": "notice", "by_s": draw.random() * 1e7, "cause": f"c{draw.randrange(10**9)}"}),
                json.dumps({"t": "ready", "after": number, "trouble": "\u0001" * 1024}),
                json.dumps({"t": "failed", "generation": number, "ago_s": 3e7}),
                json.dumps({"t": draw.choice(["started", "finished"]), "generation": number}),
                json.dumps({"t": "leave", "reason": "\U0001f600" * 1024}),
                "[" * 50_000,
                draw.randbytes(500).decode("latin-1"),
                "x" * (MEMBER_MESSAGE + 1),
            ]
        )


def resident_kb(server: Server) -> int:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def test_a_hostile_member_does_not_touch_the_other_job(server: Server) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    hostile, heard, opened = Hostile(server, seed), list[WorldReport](), list[float]()
    ended = threading.Event()

    async def listen() -> None:
        async with server.client() as client:

            async def take() -> None:
                async for world in client.worlds(on_open=lambda: opened.append(time.monotonic())):
                    heard.append(world)

            task = asyncio.create_task(take())
            await asyncio.to_thread(ended.wait)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    server.expect("hostile", expecting(2))
    server.expect("well", expecting(3, min=3))
    listener = threading.Thread(target=lambda: asyncio.run(listen()))
    attacker = threading.Thread(target=lambda: asyncio.run(hostile.run()))
    with members(server, "well", 3) as group:
        wait_until(lambda: all(member.generation == 1 for member in group), what="a world of 3")
        before_kb = resident_kb(server)
        listener.start()
        attacker.start()
        try:
            wait_until(lambda: hostile.said > MANY, what="the attack is under way")
            assert [member.generation for member in group] == [1, 1, 1], "the neighbour's world is untouched"
            slowest_s = 0.0
            for generation, count in ((2, 2), (3, 3), (4, 2)):
                until = hostile.said + MANY
                wait_until(lambda until=until: hostile.said >= until, what="the attack goes on")  # type: ignore[misc]
                server.expect("well", expecting(count, min=count, floor=generation - 1))
                slowest_s = max(slowest_s, scaled_s(group, generation, count))
            assert attacker.is_alive()
            wait_until(lambda: any(world.job == "well" and world.generation == 4 for world in heard), what="the controller hears of it")
        finally:
            hostile.end.set()
            attacker.join(60)
            ended.set()
            listener.join(10)
        assert not attacker.is_alive()
    world = server.world("well")
    assert world is not None
    assert (world.generation, world.restarts.get("disruption", 0)) == (4, 0)
    print(f"{hostile.said} messages, slowest scale {slowest_s:.2f} s, {resident_kb(server) - before_kb} kB more, worlds heard {len(heard)}")
    assert len(opened) == 1, "the stream of worlds never broke"
    assert resident_kb(server) - before_kb < MOST_GROWTH_KB


def scaled_s(group: list[Member], generation: int, count: int) -> float:
    return wait_until(
        lambda: sum(member.generation == generation for member in group) >= count,
        what=lambda: f"generation {generation} of {count}: {[member.generation for member in group]}",
    )
