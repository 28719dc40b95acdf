"""Assemble the autoscaler, and run it until stopped."""

import asyncio
import logging
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from elastic.api.rights import METRICS_API
from elastic.kube.client import Kube
from elastic.membership.reading import reader
from elastic.runtime.cert_rotation import CertificateName
from elastic.runtime.election import Election, Terms
from elastic.runtime.process import Parts, wait_listed, write_ready
from elastic.runtime.web import ALL_ADDRESSES, serving, taken
from elastic_training.autoscale.acting.scaler import Scaler
from elastic_training.autoscale.deciding.round import Setting
from elastic_training.autoscale.running.book import Book
from elastic_training.autoscale.running.metrics import Metrics
from elastic_training.autoscale.running.options import Options
from elastic_training.autoscale.running.rounds import Rounds
from elastic_training.autoscale.watching.observer import Observer

if TYPE_CHECKING:
    from elastic_training.autoscale.serving.server import MetricsApi

log = logging.getLogger(__name__)
LEASE = "elastic-autoscaler"


class Process:
    def __init__(self, kube: Kube, options: Options) -> None:
        self._options = options
        self._is_ready = asyncio.Event()
        self._election = _election(kube, options) if options.leader_elect else None
        self._observer = Observer(kube, kinds=options.kinds, namespace=options.namespace)
        self.figures = Book(is_ready=self._is_ready.is_set)
        self._metrics = Metrics(CollectorRegistry(), self.figures, leads=self._leads, sent=kube.sent, cluster=self._observer.cluster)
        setting = Setting(grows=options.cluster_grows, sees_nodes=self._observer.sees_nodes)
        scaler = Scaler(kube, self._election.left_s if self._election is not None else None)
        self._api = _metrics_api(kube, options, self.figures, self._observer)
        self._rounds = Rounds(
            kube,
            self._observer,
            scaler,
            self.figures,
            self._metrics,
            setting=setting,
            leads=self._leads,
            pages_through_api=options.pages_through_api,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Works until stopped; raises when a part ends by itself, because all parts are needed."""
        options = self._options
        client = reader(options.rendezvous_url, token=options.rendezvous_token, ca=options.rendezvous_ca)
        async with serving(
            health_port=options.health_port,
            metrics_port=options.metrics_port,
            is_ready=self._is_ready.is_set,
            registry=self._metrics.registry,
        ):
            parts = [self._observer.run(self._rounds.changed, self._rounds.saw), self._rounds.decide(), self._work(), self._say_ready()]
            if client is not None:
                parts.append(self._rounds.listen(client))
            if self._api is not None:
                # Leader or not, and before anything is known: discovery of a registered group must not fail.
                parts.append(self._api.run())
            try:
                async with Parts(parts) as running:
                    await running.wait_for_end(stop)
            finally:
                if client is not None:
                    await client.close()

    async def _work(self) -> None:
        if self._election is None:
            await self._rounds.work()
        else:
            await self._election.lead(self._rounds.work)

    def _leads(self) -> bool:
        return self._election is None or self._election.is_held

    async def _say_ready(self) -> None:
        await wait_listed(self._observer, log, remedy="install kinds that are not served or change --enable-kinds")
        log.info("all caches are synced", extra={"jobs": len(self._observer.jobs())})
        self._is_ready.set()
        if self._options.ready_file is not None:
            write_ready(self._options.ready_file)
        await asyncio.Event().wait()


def _metrics_api(kube: Kube, options: Options, figures: Book, observer: Observer) -> "MetricsApi | None":
    if options.metrics_api_fd is None and not options.metrics_api_port:
        return None
    from elastic_training.autoscale.serving.server import BACKLOG, MetricsApi

    if options.metrics_api_fd is not None:
        opened = socket.socket(fileno=options.metrics_api_fd)
    else:
        try:
            opened = socket.create_server((ALL_ADDRESSES, options.metrics_api_port), backlog=BACKLOG)
        except OSError as error:
            raise taken("--metrics-api-port", options.metrics_api_port, error) from error
    place = CertificateName(namespace=options.lease_namespace, name=METRICS_API)
    return MetricsApi(kube, figures, observer.workers, opened, place, owner=METRICS_API, namespace=options.namespace)


def _election(kube: Kube, options: Options) -> Election:
    # The clock must count the time in which the machine sleeps. Not every system has such a clock.
    clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
    terms = Terms(duration_s=options.lease_duration_s)
    return Election(kube, namespace=options.lease_namespace, name=LEASE, me=options.identity, clock=clock, terms=terms)
