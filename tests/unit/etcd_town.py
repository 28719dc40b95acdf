"""An etcd, deciding agents (etcd_agents) and a controller that follows their job, in virtual time."""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar

from etcd_agents import Job as Agents
from etcd_store import JOB, PREFIX, TOKEN, InMemory

from elastic.etcd.membership import EtcdMembership
from elastic.etcd.place import EtcdPlace
from elastic.etcd.store import Store
from elastic.membership import wire

sys.path.append(str(Path(__file__).parents[1] / "sim"))
from sim_time import run

PLACE = EtcdPlace(endpoints=("etcd:2379",), prefix=PREFIX)


class Town:
    """Agents, an etcd, and a controller that follows the job."""

    all: ClassVar[list["Town"]] = []

    def __init__(self, **rules: Any) -> None:
        self.all.append(self)
        self.job = Agents(**rules)
        self.way = InMemory(self.job.etcd)
        self.worlds: list[wire.WorldReport] = []
        self.membership = EtcdMembership(
            visit=self.visit, token_for=lambda uid: TOKEN, emit=self.worlds.append, clock=self.now, worked_s=lambda: 0.0
        )

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def visit(self, place: EtcdPlace) -> Store:
        return self.way

    @property
    def world(self) -> wire.WorldReport:
        return self.worlds[-1]

    async def expect(self, *members: str, **fields: Any) -> None:
        await self.membership.expect(JOB, PLACE, wire.Expectation(members=members, **{"min": 1, "max": 3, **fields}))

    async def live(self, seconds: float) -> None:
        """Let agents and etcd live on in the same time."""
        until = self.now() + seconds
        while self.now() < until:
            self.job.etcd.advance(0.1)
            self.job.turn(1)
            self.job.come_all()
            await asyncio.sleep(0.1)


def play(story: Coroutine[Any, Any, None]) -> None:
    try:
        run(story)
    finally:
        for town in Town.all:
            town.job.close()
        Town.all.clear()
