"""Start, add and kill the nodes that one process plays, and keep their roster current."""

import asyncio
import contextlib
import hashlib
import logging
from pathlib import Path

from elastic.api.errors import shown
from elastic.api.names import DNS_1123_SUBDOMAIN, LONGEST_OBJECT
from elastic.kube.errors import KubeError
from elastic.kube.nodes import those_there
from elastic.local.agent import roster
from elastic.local.agent.control import Refused
from elastic.local.agent.fleet import Fleet
from elastic.local.agent.node import NodeFacts, machine_capacity
from elastic.local.agent.roster import PLAYED_BY, Member
from elastic.local.files import Layout

log = logging.getLogger(__name__)
HOST_IP = "127.0.0.1"
NOT_TAKEN = (400, 422)
"""Status codes with which the API server refuses an invalid node."""
READY_S = 20.0


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
        self._refusals: dict[str, str] = {}
        self._gpus = 0

    async def start(self, first: tuple[Member, ...]) -> None:
        """Start the nodes that were given to the process, except killed ones, and the nodes that were added later."""
        self._keep(self._roster)
        members = self._roster.members(first)
        for member in members:
            self._run(member)
        names = [member.name for member in members]
        await self._fleet.retire_others([*names, *self._roster.killed], labels=f"{PLAYED_BY}={self._played_by}")
        for name in names:
            try:
                await self._registered(name)
            except Refused as error:
                # An earlier release kept nodes in the roster that the API server had refused.
                log.error("%s; it is left out and removed from the roster", error)
                self._keep(self._roster.without(name))

    async def add(self, member: Member) -> None:
        if member.name in self._tasks:
            raise Refused(f"node {member.name} already runs")
        if not DNS_1123_SUBDOMAIN.match(member.name) or len(member.name) > LONGEST_OBJECT:
            raise Refused(
                f"name is {shown(member.name)}; use lower-case letters, digits, - and ., and begin and end with a letter or digit"
            )
        self._check_room()
        task = self._run(member)
        try:
            async with asyncio.timeout(READY_S):
                await self._registered(member.name)
        except TimeoutError:
            raise Refused(f"node {member.name} is not ready after {READY_S:.0f} s; see agents.log") from None
        finally:
            if self._tasks.get(member.name) is task:
                self._keep(self._roster.with_member(Member(member.name, member.gpus, member.labels)))

    async def kill(self, name: str) -> None:
        """Simulate the loss of the machine. The node may be not ready yet, or refused by the API server meanwhile."""
        task = self._tasks.get(name)
        if task is None:
            raise Refused(f"no node {name} runs here{those_there(name, self._tasks)}")
        self._check_room()
        del self._tasks[name]
        self._keep(self._roster.without(name))
        self._refusals.pop(name, None)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await self._fleet.vanish(name)

    def _run(self, member: Member) -> asyncio.Task[None]:
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
        task = self._tasks[member.name] = self._group.create_task(self._play(facts), name=f"node {member.name}")
        return task

    async def _play(self, facts: NodeFacts) -> None:
        """Run a node. If the API server refuses it, note that, because a refused node must not end the others."""
        try:
            await self._fleet.run_node(facts)
        except KubeError as error:
            if error.code not in NOT_TAKEN:
                raise
            self._refusals[facts.name] = error.message

    async def _registered(self, name: str) -> None:
        """Wait until the node is ready in the API."""
        task, waiting = self._tasks[name], asyncio.create_task(self._fleet.wait_for([name]))
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if (refusal := self._refusals.pop(name, None)) is not None:
            del self._tasks[name]
            raise Refused(f"node {name} is refused: {refusal}")
        if self._tasks.get(name) is not task:
            raise Refused(f"node {name} was killed before it was ready")

    def _numbers(self, count: int) -> tuple[int, ...]:
        """Return new numbers for a node's GPUs. The GPUs of a killed node are not given to another."""
        first = self._gpus
        self._gpus += count
        return tuple(range(first, first + count))

    def _check_room(self) -> None:
        """Check that the disk has room, because a node that cannot write its folder ends this process."""
        try:
            roster.write(self._file, self._roster)
        except OSError as error:
            raise Refused(f"{self._file} cannot be written: {error.strerror}; make room on the disk, and try again") from error

    def _keep(self, changed: roster.Roster) -> None:
        self._roster = changed
        roster.write(self._file, changed)
