"""Starts, adds and kills the nodes that one process plays, and keeps the roster of them current."""

import asyncio
import contextlib
import hashlib
from pathlib import Path

from elastic.local.agent import roster
from elastic.local.agent.control import Refused
from elastic.local.agent.fleet import Fleet
from elastic.local.agent.node import NodeFacts, machine_capacity
from elastic.local.agent.roster import Member
from elastic.local.files import Layout

HOST_IP = "127.0.0.1"
READY_S = 20.0
PLAYED_BY = "elastic-training/played-by"
"""Marks the nodes of one data folder, so that one which it no longer runs differs from those of others."""


class Nodes:
    """The nodes of a fleet, by name."""

    def __init__(self, group: asyncio.TaskGroup, fleet: Fleet, *, port: int, folder: Path, holder: str, grace_s: float) -> None:
        self._group = group
        self._fleet = fleet
        self._port = port
        self._grace_s = grace_s
        self._file = Layout(folder).roster
        self._played_by = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        self._roster = roster.read(self._file).for_holder(holder)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gpus = 0

    async def start(self, first: tuple[Member, ...]) -> None:
        """Those that the process was started with, except killed ones, and those that were added later."""
        self._keep(self._roster)
        members = self._roster.members(first)
        for member in members:
            self._run(member)
        names = [member.name for member in members]
        await self._fleet.retire_others([*names, *self._roster.killed], labels=f"{PLAYED_BY}={self._played_by}")
        await self._fleet.wait_for(names)

    async def add(self, member: Member) -> None:
        if member.name in self._tasks:
            raise Refused(f"node {member.name} already runs")
        self._keep(self._roster.with_member(Member(member.name, member.gpus, member.labels)))
        self._run(member)
        try:
            async with asyncio.timeout(READY_S):
                await self._fleet.wait_for([member.name])
        except TimeoutError:
            raise Refused(f"node {member.name} is not ready after {READY_S:.0f} s; see agents.log") from None

    async def kill(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        agent = self._fleet.agent(name)
        if task is None or agent is None:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise Refused(f"no node {name} runs here; nodes: {known}")
        self._keep(self._roster.without(name))
        await agent.vanish()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _run(self, member: Member) -> None:
        facts = NodeFacts(
            name=member.name,
            capacity=machine_capacity(member.gpus),
            host_ip=HOST_IP,
            port=self._port,
            labels={**member.labels, PLAYED_BY: self._played_by},
            sandbox=self._fleet.mode.value,
            gpus=self._numbers(member.gpus),
            grace_s=self._grace_s,
        )
        self._tasks[member.name] = self._group.create_task(self._fleet.run_node(facts), name=f"node {member.name}")

    def _numbers(self, count: int) -> tuple[int, ...]:
        """Each node has GPUs of its own as long as there are nodes; what a killed one had is not given to another."""
        first = self._gpus
        self._gpus += count
        return tuple(range(first, first + count))

    def _keep(self, changed: roster.Roster) -> None:
        self._roster = changed
        roster.write(self._file, changed)
