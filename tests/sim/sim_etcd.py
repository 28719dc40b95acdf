"""Simulate jobs that meet in an etcd of their user's.

It has the etcd, the agents with their real presence and decisions, and a controller's connection with the real follower. While an etcd is
away, it keeps all leases, like a restarting one, or lets them end, like one that stands still.
"""

import asyncio
import base64
import random
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from typing import Any

from etcd_agents import Link
from etcd_store import Body, FakeEtcd, InMemory
from sim_ends import Ended

from elastic.api.job import Object
from elastic.etcd.membership import EtcdMembership
from elastic.etcd.place import EtcdPlace
from elastic.etcd.store import Away
from elastic.membership.tokens import Role
from elastic.membership.wire import Expectation, WorldReport
from elastic_training.rendezvous.delivery import REFUSED, UNREACHABLE
from elastic_worker.agent.view import View
from elastic_worker.etcd.in_process import ChangingPresence
from elastic_worker.etcd.records import WORLD, Seal
from elastic_worker.etcd.records import World as Sealed
from elastic_worker.etcd.settings import Settings, read
from elastic_worker.settings import MEMBER, POD_IP, POD_UID, TOKEN

REACH_S = 0.01
AWAY_RETRY_S = 0.5


def token_of(job_uid: str) -> str:
    """Return a job's token, as the simulated controllers derive it."""
    return f"{Role.AGENT} token of {job_uid}"


class SimEtcd(FakeEtcd):
    """The records of one job. A change wakes the watches and the agents."""

    def __init__(self, job_uid: str) -> None:
        super().__init__()
        self.is_away = self.ends_leases = False
        self.agents: list[EtcdAgent] = []
        self.met: list[EtcdAgent] = []
        """All agents that ever came."""
        self._uid = job_uid
        self._changed = asyncio.Event()

    def world(self) -> Sealed | None:
        """Return the record of the world, or None."""
        key = self.keys.get(f"/elastic-training/{self._uid}/{WORLD}")
        record = Seal(token_of(self._uid), self._uid).open(WORLD, base64.b64decode(key.value)) if key is not None else None
        return record if isinstance(record, Sealed) else None

    def tick(self, seconds: float) -> None:
        if not self.is_away or self.ends_leases:
            self.advance(seconds)

    def changes(self, since: int) -> list[Body]:
        first = bisect_left(self.events, since, key=lambda event: event[0])
        return [event for _, event in self.events[first:]]

    async def wait_changed(self) -> None:
        await self._changed.wait()

    def _put(self, body: Body) -> Body:
        answer = super()._put(body)
        self._wake()
        return answer

    def _delete(self, name: str) -> None:
        super()._delete(name)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for agent in self.agents:
            agent.look_soon()


class Etcds:
    """The etcds of all jobs of a simulated life."""

    def __init__(self) -> None:
        self._by_job: dict[str, SimEtcd] = {}
        self.is_away = self.ends_leases = False
        self.cut_off = 0
        """Number of times that a living agent was cut off from its etcd."""

    def of(self, job_uid: str) -> SimEtcd:
        if job_uid not in self._by_job:
            self._by_job[job_uid] = SimEtcd(job_uid)
        return self._by_job[job_uid]

    def all(self) -> list[SimEtcd]:
        return list(self._by_job.values())

    def tick(self, seconds: float) -> None:
        for etcd in self.all():
            etcd.is_away, etcd.ends_leases = self.is_away, self.ends_leases
            etcd.tick(seconds)

    def go_away(self, seconds: float, *, ends_leases: bool = False) -> None:
        if not self.is_away:
            self.is_away, self.ends_leases = True, ends_leases
            asyncio.get_running_loop().call_later(seconds, self._come_back)

    def _come_back(self) -> None:
        self.is_away = False

    def compact(self) -> None:
        for etcd in self.all():
            etcd.compacted = etcd.revision

    def agents(self) -> "list[EtcdAgent]":
        return [agent for etcd in self.all() for agent in etcd.agents if not agent.is_over]

    def close(self) -> None:
        for etcd in self.all():
            for agent in list(etcd.agents):
                agent.stop(says_so=False)


class EtcdAgent:
    """torchrun's agent with the backend elastic-etcd, in one run of a container. `ended` gets its exit code if it ends by itself."""

    def __init__(self, settings: Settings, incarnation: str, etcds: Etcds, draw: random.Random, ended: Ended) -> None:
        self.is_over = self.is_ready = self.is_finishing = False
        self.entered: list[int] = []
        self._etcd, self._etcds, self._draw, self._ended = etcds.of(settings.job), etcds, draw, ended
        self._link = Link(self._etcd)
        self._is_cut = False
        self._presence = ChangingPresence(settings, on_signal=lambda number: None, clock=asyncio.get_running_loop().time, etcd=self._link)
        self._presence._process = incarnation
        self._name, self._away_s = settings.member, settings.away_s
        self._turn_at: asyncio.TimerHandle | None = None
        self._etcd.agents.append(self)
        self._etcd.met.append(self)

    def start(self) -> None:
        self._later(self._draw.uniform(0.1, 2.0), self._come, 0)

    def stop(self, *, says_so: bool) -> None:
        """End the process from outside."""
        if self in self._etcd.agents:
            self._etcd.agents.remove(self)
            if says_so and not self.is_over:
                self._follow_reach()
                self._presence._is_ending, self._presence._left = True, "received SIGTERM"
                self._presence._say_goodbye()
            self._presence.close()
        self.is_over = True

    def fail(self, *, generation: int | None = None) -> bool:
        """Let a worker process fail. Return False if none was running, or not in that generation."""
        if not self.is_working or generation not in (None, self._generation):
            return False
        self._presence.report_state("failed", generation=self._generation, status=1)
        self.look_soon()
        self._later(self._draw.uniform(0.05, 0.5), self._come, self._generation)
        return True

    def finish(self) -> None:
        """Let the training program finish its work."""
        if self.is_working:
            self.is_finishing = True
            self._presence.report_state("finished", generation=self._generation)
            self.look_soon()
            self._later(3.0, self._exit, 0)

    def cut_off(self, seconds: float) -> None:
        """Cut off only this agent from the etcd."""
        self._is_cut = True
        self._etcds.cut_off += 1
        self._later(seconds, self._reach_again)

    @property
    def is_working(self) -> bool:
        return bool(self.entered) and not (self.is_ready or self.is_over or self.is_finishing)

    def look_soon(self) -> None:
        self._turn_in(REACH_S)

    @property
    def _generation(self) -> int:
        return self.entered[-1] if self.entered else 0

    def _reach_again(self) -> None:
        self._is_cut = False

    def _follow_reach(self) -> None:
        self._link.is_cut = self._is_cut or self._etcds.is_away

    def _come(self, generation: int) -> None:
        """Come to the barrier."""
        if generation == self._generation and not self.is_over and not self.is_ready and not self.is_finishing:
            self.is_ready = True
            self._presence.announce_ready(after=generation, store=f"{self._name}:{generation}")
            self.look_soon()

    def _turn(self) -> None:
        self._turn_at = None
        if self.is_over:
            return
        self._follow_reach()
        is_well = self._presence._try()
        if self.is_ready and self._presence.away_s > self._away_s:
            self._exit(1, f"{UNREACHABLE}: no answer")
            return
        self._hear(self._presence.view)
        self._turn_in(max(REACH_S, self._presence._next_in_s()) if is_well else AWAY_RETRY_S)

    def _hear(self, view: View) -> None:
        if self.is_finishing:
            return
        if self._presence.refused or view.closed:
            self._later(0.2, self._exit, 1, f"{REFUSED}: this agent was replaced" if self._presence.refused else "")
        elif view.finished and self.is_ready:
            self._later(0.2, self._exit, 0)
        elif self.is_ready and view.generation > self._generation:
            self.is_ready = False
            self.entered.append(view.generation)
            self._presence.enter(view)
            self.look_soon()
        elif view.reform and self.is_working:
            self._later(self._draw.choice([0.05, 0.5, 3.0]), self._come, self._generation)

    def _exit(self, code: int, unmet: str = "") -> None:
        if not self.is_over:
            self.stop(says_so=False)
            self._ended(code, unmet=unmet)

    def _turn_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._turn_at is not None and self._turn_at.when() <= loop.time() + seconds:
            return
        if self._turn_at is not None:
            self._turn_at.cancel()
        self._turn_at = loop.call_later(seconds, self._turn)

    def _later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        asyncio.get_running_loop().call_later(seconds, call, *args)


def agent_of(pod: Object, env: dict[str, str], *, process: str, etcds: Etcds, draw: random.Random, ended: Ended) -> EtcdAgent:
    """Return the agent in a pod, as its environment asks for. `process` names its run."""
    name, uid, job_uid = pod["metadata"]["name"], pod["metadata"]["uid"], env["PET_RDZV_ID"]
    given = {MEMBER: name, POD_UID: uid, POD_IP: "10.0.0.1", TOKEN: token_of(job_uid)}
    options: dict[str, Any] = dict(item.split("=", 1) for item in env["PET_RDZV_CONF"].split(",") if item)
    least, _, most = env["PET_NNODES"].partition(":")
    settings = read(
        given, options, endpoint=env["PET_RDZV_ENDPOINT"], job=job_uid, nodes=(int(least), int(most or least)), local_address=None
    )
    return EtcdAgent(settings, process, etcds, draw, ended)


class _Way(InMemory):
    """One controller's connection to an etcd, while that controller reaches it."""

    def __init__(self, etcd: SimEtcd, is_there: Callable[[], bool]) -> None:
        super().__init__(etcd)
        self._is_there = is_there

    async def wait(self, since: int) -> None:
        assert isinstance(self.etcd, SimEtcd)
        if self.etcd.revision < since:
            await self.etcd.wait_changed()
        await asyncio.sleep(REACH_S)

    def _call(self, path: str, body: Body) -> Body:
        self.is_cut = not self._is_there()
        return super()._call(path, body)


class EtcdReach:
    """The etcds as seen by a controller process that may stand still or die. It replaces elastic.etcd.thread, in the simulation's loop."""

    def __init__(self, etcds: Etcds, awake: asyncio.Event, is_alive: Callable[[], bool]) -> None:
        self._etcds, self._awake, self._is_alive = etcds, awake, is_alive
        self._places: dict[str, EtcdPlace] = {}
        self._heard: asyncio.Queue[WorldReport] = asyncio.Queue()
        self.membership = EtcdMembership(
            visit=self._visit, token_for=token_of, emit=self._heard.put_nowait, clock=asyncio.get_running_loop().time, worked_s=lambda: 0.0
        )

    def meet_at(self, job_uid: str, place: EtcdPlace) -> None:
        self._places[job_uid] = place

    async def expect(self, job_uid: str, expectation: Expectation) -> None:
        await self._awake.wait()
        await self.membership.expect(job_uid, self._places[job_uid], expectation)

    async def forget(self, job_uid: str) -> int | None:
        await self._awake.wait()
        place = self._places.get(job_uid)
        step = await self.membership.forget(job_uid, place) if place is not None else None
        self._places.pop(job_uid, None)
        return step

    async def worlds(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[WorldReport]:
        if on_open is not None:
            on_open()
        try:
            while True:
                world = await self._heard.get()
                await self._awake.wait()
                yield world
        finally:
            await self.membership.close()

    async def _visit(self, place: EtcdPlace) -> _Way:
        await self._awake.wait()
        way = _Way(self._etcds.of(place.prefix.rstrip("/").rpartition("/")[2]), self._is_there)
        if not self._is_there():
            raise Away("connection refused")
        return way

    def _is_there(self) -> bool:
        return self._is_alive() and not self._etcds.is_away
