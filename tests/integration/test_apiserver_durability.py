"""Kill the API server under load: every acknowledged write is still there, and versions never go back."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from api_process import CONFIG_MAPS, MERGE, ApiProcess, Client, config_map

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROUNDS, WRITERS = 10, 8
LOST = (aiohttp.ClientError, ConnectionError, asyncio.TimeoutError)


@dataclass
class Belief:
    """The knowledge of one writer: the last acknowledged value of its object, and the values that it may have by now."""

    name: str
    acknowledged: str | None = None
    possible: set[str | None] = field(default_factory=lambda: {None})
    revision: int = 0

    def confirm(self, value: str | None, version: str) -> None:
        self.acknowledged, self.possible = value, {value}
        self.revision = max(self.revision, int(version))


async def write_on(client: Client, belief: Belief, dice: random.Random) -> None:
    """Create, change and delete one object until the server is gone."""
    step = 0
    with contextlib.suppress(*LOST):
        while True:
            step += 1
            value = f"{belief.revision}-{step}"
            if belief.acknowledged is None:
                belief.possible.add(value)
                status, body = await client.ask("POST", CONFIG_MAPS, config_map(belief.name, value=value))
                assert status == 201, body
                belief.confirm(value, body["metadata"]["resourceVersion"])
            elif dice.random() < 0.2:
                belief.possible.add(None)
                status, body = await client.ask("DELETE", f"{CONFIG_MAPS}/{belief.name}")
                assert status == 200, body
                belief.confirm(None, "0")
            else:
                belief.possible.add(value)
                status, body = await client.ask("PATCH", f"{CONFIG_MAPS}/{belief.name}", {"data": {"value": value}}, media=MERGE)
                assert status == 200, body
                belief.confirm(value, body["metadata"]["resourceVersion"])


async def check(client: Client, beliefs: list[Belief], newest: int) -> int:
    """Compare the beliefs with the restarted server, update them, and return its version."""
    status, found = await client.ask("GET", CONFIG_MAPS)
    assert status == 200
    version = int(found["metadata"]["resourceVersion"])
    assert version >= newest, "the version went back"
    values = {o["metadata"]["name"]: o["data"]["value"] for o in found["items"] if o["metadata"]["name"].startswith("writer-")}
    for b in beliefs:
        assert values.get(b.name) in b.possible, f"{b.name}: acknowledged {b.acknowledged}, found {values.get(b.name)}"
        b.acknowledged = values.get(b.name)
        b.possible = {b.acknowledged}
    return version


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed_under_load(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    server = ApiProcess(tmp_path)
    beliefs = [Belief(f"writer-{i}") for i in range(WRITERS)]
    newest = 0
    try:
        for _ in range(ROUNDS):
            server.start()
            async with server.client() as client:
                newest = await check(client, beliefs, newest)
                writers = [asyncio.create_task(write_on(client, b, dice)) for b in beliefs]
                await asyncio.sleep(dice.uniform(0.05, 0.5))
                server.kill()
                await asyncio.gather(*writers)
                newest = max([newest, *(b.revision for b in beliefs)])
        server.start()
        async with server.client() as client:
            await check(client, beliefs, newest)
        assert newest > ROUNDS * WRITERS, "the writers hardly wrote"
    finally:
        server.stop()


async def test_a_watch_from_before_a_restart_is_told_to_list_again(tmp_path: Path) -> None:
    server = ApiProcess(tmp_path)
    server.start()
    try:
        async with server.client() as client:
            version = (await client.make(CONFIG_MAPS, config_map("a")))["metadata"]["resourceVersion"]
            await client.make(CONFIG_MAPS, config_map("b"))
        server.kill()
        server.start()
        async with (
            server.client() as client,
            client.session.get(CONFIG_MAPS, params={"watch": "true", "resourceVersion": version}) as answer,
        ):
            text = await answer.text()
        assert '"code":410' in text
        assert '"type":"ERROR"' in text
    finally:
        server.stop()
