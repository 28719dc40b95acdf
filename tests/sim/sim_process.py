"""A controller process of the simulation: the real parts, put together as controller.process does, without its sockets and threads."""

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta

from prometheus_client import CollectorRegistry
from sim_api import Api
from sim_client import SimKube, Sky
from sim_rendezvous import SimServer, Unreachable
from sim_time import now

from controller.apply import Applier
from controller.election import Election
from controller.keys import Key
from controller.link import RendezvousLink
from controller.metrics import Metrics
from controller.observe import OTHER_RESOURCES, Observer
from controller.reconcile import Reconciler
from controller.settings import Rendezvous, Settings
from controller.tell import Teller
from controller.workqueue import WorkQueue
from elastic.kube.resources import PLUGIN_POD_GROUPS, VOLCANO_POD_GROUPS

WATCHED = tuple(r for r in OTHER_RESOURCES if r not in (PLUGIN_POD_GROUPS, VOLCANO_POD_GROUPS))
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
        elects: bool = False,
        on_call: Callable[[str], bool] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.skew = timedelta()
        self.broken: BaseException | None = None
        self._on_call = on_call or (lambda moment: False)
        self.kube = SimKube(api, sky, draw, actor=name, on_call=self._may_end)
        self.queue: WorkQueue[Key] = WorkQueue(clock=loop.time)
        self.observer = Observer(self.kube, kinds=kinds, resources=WATCHED)  # type: ignore[arg-type]
        self._link = RendezvousLink(server, errors=(Unreachable,), clock=now)
        self._reconciler = Reconciler(
            self.observer,
            Applier(self.kube, Teller(self.kube), self._link),  # type: ignore[arg-type]
            self.queue,
            settings=SETTINGS,
            worlds=self._link.worlds,
            token_for=lambda uid: f"token of {uid}",
            metrics=Metrics(CollectorRegistry(), waiting=self.queue.__len__, sent={}),
            clock=loop.time,
            now=lambda: now() + self.skew,
        )
        self._elects = elects
        self._tasks: list[asyncio.Task[None]] = []
        self.is_alive = True

    def start(self) -> None:
        for part in (self.observer.run(self.queue.add), self._link.run(self._reconciler.world_changed), self._work()):
            task = asyncio.get_running_loop().create_task(part)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def kill(self) -> None:
        """As by SIGKILL: nothing is given back, and nothing more is sent."""
        self.is_alive = False
        self.kube.die()
        for task in self._tasks:
            task.cancel()

    async def _work(self) -> None:
        if not self._elects:
            await self._reconciler.run(4)
            return
        election = Election(self.kube, namespace="system", name="lease", me=self.name, clock=asyncio.get_running_loop().time)  # type: ignore[arg-type]
        await election.win()
        self._reconciler.term = election.term
        work = asyncio.create_task(self._reconciler.run(4))
        hold = asyncio.create_task(election.hold())
        try:
            await asyncio.wait([work, hold], return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            hold.cancel()
        if work.done() and not work.cancelled():
            work.result()
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
