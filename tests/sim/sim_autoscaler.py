"""The autoscaler of the simulation: the real caches, rounds and writer, put together as autoscale.running.process does, without sockets.

It hears the rendezvous server's stream of progress.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

from prometheus_client import CollectorRegistry
from sim_api import Api
from sim_client import SimKube, Sky
from sim_rendezvous import SimServer
from sim_time import now

from elastic.api.scaling import MANAGER
from elastic.membership.training import TrainingProgress
from elastic_training.autoscale.acting.scaler import Scaler
from elastic_training.autoscale.deciding.round import Setting
from elastic_training.autoscale.running.book import Book
from elastic_training.autoscale.running.metrics import Metrics
from elastic_training.autoscale.running.rounds import Rounds
from elastic_training.autoscale.watching.observer import Observer

AUTOSCALER = MANAGER
LEAST_GAP_S = 1.0


class Autoscaler:
    """One process from start to end; it leads."""

    def __init__(self, api: Api, sky: Sky, server: SimServer, draw: random.Random, *, kind: str) -> None:
        self.broken: BaseException | None = None
        self._kube: Any = SimKube(api, sky, draw, actor=AUTOSCALER)
        self._server = server
        self._observer = Observer(self._kube, kinds=[kind])
        self.book = Book(is_ready=lambda: True)
        self.metrics = Metrics(CollectorRegistry(), self.book, leads=lambda: True, sent={})
        self._rounds = Rounds(
            self._kube,
            self._observer,
            Scaler(self._kube, None),
            self.book,
            self.metrics,
            setting=Setting(),
            leads=lambda: True,
            clock=lambda: now().timestamp(),
            monotonic=asyncio.get_running_loop().time,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        client: Any = self
        rounds = self._rounds
        parts = (self._observer.run(rounds.changed, rounds.saw), rounds.decide(), rounds.work(), rounds.listen(client))
        for part in parts:
            task = asyncio.get_running_loop().create_task(part)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def kill(self) -> None:
        """End as by SIGKILL: nothing more is sent."""
        self._kube.die()
        for task in self._tasks:
            task.cancel()

    async def progress(self) -> AsyncIterator[TrainingProgress]:
        """Yield progress over all restarts of the server, as RendezvousClient does."""
        hub, version = self._server.hub, -1
        while True:
            if self._server.is_out_of_reach or hub is not self._server.hub:
                hub, version = self._server.hub, -1
            else:
                newest = hub.progress.version
                for progress in hub.progress_since(version):
                    yield progress
                version = newest
            await asyncio.sleep(LEAST_GAP_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.broken = task.exception()
            self.kill()
