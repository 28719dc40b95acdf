"""A controller process of the simulation: the real parts, put together as controller.running.process does, without its sockets and threads.

It can be killed, stopped in good order, or made to stand still for a while, after which it goes on as if nothing had been.
"""

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry
from sim_api import Api
from sim_client import SimKube, Sky
from sim_etcd import EtcdReach
from sim_kopf import SimKopf
from sim_rendezvous import SimServer, Unreachable
from sim_time import now

from elastic.etcd.store import Away, StoreRefused
from elastic.membership.wire import Expectation, WorldReport
from elastic.runtime.election import Election, LeaseLost
from elastic.runtime.fence import FencedWriter
from elastic.runtime.terminating import ConsiderateWriter
from elastic.runtime.workqueue import WorkQueue
from elastic_training.controller.acting.apply import Applier
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.acting.fenced_link import FencedServer
from elastic_training.controller.acting.leading import give_signs
from elastic_training.controller.acting.link import RendezvousLink
from elastic_training.controller.acting.links import Links
from elastic_training.controller.acting.secrets import Secrets
from elastic_training.controller.facts.keys import Key
from elastic_training.controller.facts.settings import Rendezvous, Settings
from elastic_training.controller.facts.snapshot import KeyPair
from elastic_training.controller.running.metrics import Metrics
from elastic_training.controller.running.reconcile import Reconciler
from elastic_training.controller.watching.observe import Observer, resources_of

SETTINGS = Settings(rendezvous=Rendezvous(endpoint="rdzv:8443", ca="CA"))


class Controller:
    """One process from start to end. `on_call` may say that it dies before or after a request."""

    def __init__(
        self,
        api: Api,
        sky: Sky,
        server: SimServer,
        draw: random.Random,
        *,
        name: str,
        kinds: list[str],
        gang_scheduler: str = "",
        elects: bool = False,
        on_call: Callable[[str], bool] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.is_alive = True
        self.skew = timedelta()
        self.broken: BaseException | None = None
        self._on_call = on_call or (lambda moment: False)
        self.kube = SimKube(api, sky, draw, actor=name, on_call=self._may_end)
        self.queue: WorkQueue[Key] = WorkQueue(clock=loop.time)
        self.observer = Observer(self.kube, kinds=kinds, resources=resources_of(kinds, gang_scheduler=gang_scheduler))  # type: ignore[arg-type]
        self._stood_still_at: float | None = None
        self.stood_still = (math.inf, math.inf)
        """When it last stood still: from when, and until when."""
        lease = {"namespace": "system", "name": "lease", "me": name}
        self._election = Election(self.kube, **lease, clock=self._time, now=self._now) if elects else None  # type: ignore[arg-type]
        self._reach = reach = _Reach(server, self.kube.awake, name)
        etcds = EtcdReach(server.etcds, self.kube.awake, lambda: self.is_alive)
        self._membership = etcds.membership
        self._link = Links(
            RendezvousLink(FencedServer(reach, self._left_s) if elects else reach, errors=(Unreachable,), clock=self._now),
            RendezvousLink(FencedServer(etcds, self._left_s) if elects else etcds, errors=(Away, StoreRefused), clock=self._now),
            etcds,
        )
        self._reconciler = Reconciler(
            self.observer,
            self._applier(),
            self.queue,
            Secrets(self.kube),
            settings=replace(SETTINGS, gang_scheduler=gang_scheduler),
            new_keys=lambda: KeyPair(private="private", public="public"),
            worlds=self._link.worlds,
            has_forgotten=self._link.has_forgotten,
            last_steps=self._link.last_steps,
            token_for=lambda uid, role: f"{role} token of {uid}",
            metrics=Metrics(CollectorRegistry(), waiting=self.queue.__len__, sent={}),
            clock=loop.time,
            now=self._now,
        )
        self._kopf = [SimKopf(self.kube, feed, feed.resource, draw) for feed in self.observer.jobs.values()]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for part in (
            self.observer.run(self._reconciler.changed),
            self._link.run(self._reconciler.world_changed),
            self._work(),
            give_signs(self._reach.lead, self._election, errors=(Unreachable,), left=self._left_s),
            *self._watches(),
        ):
            task = asyncio.get_running_loop().create_task(part)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def _watches(self) -> list[Coroutine[Any, Any, None]]:
        return [kopf.run() for kopf in self._kopf]

    def look_again(self, key: Key) -> None:
        self._reconciler.changed(key)

    def kill(self) -> None:
        """End as by SIGKILL: give nothing back, and send nothing more."""
        self.is_alive = False
        self.kube.die()
        for task in self._tasks:
            task.cancel()

    def stop(self) -> None:
        """End as by SIGTERM: break off all work, and give the Lease back."""
        self.is_alive = False
        for task in self._tasks:
            task.cancel()

    async def finish(self) -> None:
        """End as by SIGTERM after the rounds that have begun."""
        await self._reconciler.finish(within_s=60.0)
        self.stop()

    def stand_still(self, seconds: float) -> None:
        """Stand still as by SIGSTOP, until a SIGCONT. The process sees no time pass meanwhile, and then all of it at once."""
        if self._stood_still_at is None:
            self._stood_still_at = asyncio.get_running_loop().time()
            self.stood_still = (self._stood_still_at, self._stood_still_at + seconds)
            self.kube.awake.clear()
            asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._stood_still_at = None
        self.kube.awake.set()

    def cut_off(self, seconds: float) -> None:
        """Keep the API from this process, which runs on; requests under way have no answer until then."""
        self.kube.reach.clear()
        asyncio.get_running_loop().call_later(seconds, self.kube.reach.set)

    @property
    def leads(self) -> bool:
        """Return whether the process holds the Lease."""
        return self._election is not None and self._left_s() > 0

    def _time(self) -> float:
        return self._stood_still_at if self._stood_still_at is not None else asyncio.get_running_loop().time()

    def _now(self) -> datetime:
        """Return the time by the clock of its machine, which may be wrong. The whole process uses this clock."""
        return now() + self.skew

    def _applier(self) -> Applier:
        writer = self.kube if self._election is None else FencedWriter(self.kube, self._left_s)
        kube = ConsiderateWriter(writer, clock=asyncio.get_running_loop().time)
        return Applier(kube, EventRecorder(kube), self._link)

    def _left_s(self) -> float:
        """Return the rest of the Lease by true time, because a process that stands still does not look at its clock."""
        if self._election is None:
            return math.inf
        return self._election.left_s() - (asyncio.get_running_loop().time() - self._time())

    async def _work(self) -> None:
        election = self._election
        if election is None:
            await self._reconciler.run(4)
            return

        async def work() -> None:
            self._reconciler.term = election.term
            await self._reconciler.run(4)

        with contextlib.suppress(LeaseLost):
            await election.lead(work)
        self.kill()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and self.is_alive:
            self.broken = task.exception()
            self.kill()

    def _may_end(self, moment: str) -> bool:
        if not self._on_call(moment):
            return False
        self.kill()
        return True


class _Reach:
    """The rendezvous server as a process reaches it that may stand still."""

    def __init__(self, server: SimServer, awake: asyncio.Event, name: str) -> None:
        self._server, self._awake, self._name = server, awake, name

    async def expect(self, job_uid: str, expectation: Expectation) -> None:
        await self._awake.wait()
        await self._server.expect(job_uid, expectation, by=self._name)

    async def forget(self, job_uid: str) -> int | None:
        await self._awake.wait()
        return await self._server.forget(job_uid, by=self._name)

    async def lead(self, term: int) -> None:
        await self._awake.wait()
        await self._server.lead(term, by=self._name)

    async def worlds(self, on_open: Callable[[], None] | None = None) -> AsyncIterator[WorldReport]:
        async for world in self._server.worlds(on_open, by=self._name):
            await self._awake.wait()
            yield world
