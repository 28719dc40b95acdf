"""Put the dashboard's parts together and run them until stopped."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from dataclasses import replace
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from elastic.kube import connect
from elastic.kube.access import without_certificate
from elastic.kube.client import Kube
from elastic.membership import training
from elastic.membership.client import RendezvousClient
from elastic.membership.reading import reader
from elastic.runtime.process import Parts, wait_listed, write_ready
from elastic.runtime.signal_file import table_of
from elastic.runtime.web import serving, taken
from elastic_training.dashboard.history.book import Book
from elastic_training.dashboard.history.store import HistoryStore
from elastic_training.dashboard.running.metrics import ProgressCollector
from elastic_training.dashboard.running.options import Options
from elastic_training.dashboard.serving.changes import Reclaims
from elastic_training.dashboard.serving.guard import Guard
from elastic_training.dashboard.serving.news import NODES, News
from elastic_training.dashboard.serving.server import BACKLOG, Server, ServingSettings
from elastic_training.dashboard.serving.sessions import ClusterSessions, LaptopSessions, Sessions
from elastic_training.dashboard.serving.stream import Streams
from elastic_training.dashboard.serving.views import Views
from elastic_training.dashboard.watching.observer import Observer

log = logging.getLogger(__name__)
CERTIFICATE_LOOK_S = 60.0
HISTORY = "history.db"


class Process:
    def __init__(self, kube: Kube, options: Options) -> None:
        self._kube, self._options = kube, options
        self._is_ready = asyncio.Event()
        self._news = News()
        self._observer = Observer(kube, kinds=options.kinds, namespace=options.namespace, table=table_of(options.signals).rows)
        self._book = Book(job_of_uid=self._observer.job_of_uid)
        self._store = HistoryStore(options.laptop / HISTORY, self._book) if options.laptop is not None else None
        views = Views(self._observer, self._book)
        self._registry = CollectorRegistry()
        self._registry.register(ProgressCollector(self._observer, views))
        self._streams = Streams(self._observer, self._book, views, self._news)
        self._observer.job_changed = self._job_changed
        self._observer.job_gone = self._job_gone
        self._observer.nodes_changed = partial(self._news.tell, NODES)
        self._tls = _tls(options.tls)
        self._server = Server(
            observer=self._observer,
            views=views,
            streams=self._streams,
            sessions=_sessions(kube, options),
            guard=Guard(options.hosts),
            reclaims=Reclaims(options.reclaim_command),
            settings=ServingSettings(
                allows_changes=options.allow_changes,
                is_secure=self._tls is not None or options.tls_elsewhere,
                command_options=options.command_options,
            ),
            is_ready=self._is_ready.is_set,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Works until stopped; raises when a part ends by itself, because all parts are needed."""
        options = self._options
        client = reader(options.rendezvous_url, token=options.rendezvous_token, ca=options.rendezvous_ca)
        health = serving(
            health_port=options.health_port,
            metrics_port=options.metrics_port,
            is_ready=self._is_ready.is_set,
            registry=self._registry,
        )
        async with health, self._server.serving(_opened(options), self._tls):
            parts = [self._observer.run(), self._say_ready(), self._renew_certificate()]
            if self._store is not None:
                await self._store.load()
                parts.append(self._store.keep())
            if client is not None:
                parts.append(self._listen(client))
            try:
                async with Parts(parts) as running:
                    await running.wait_for_end(stop)
            finally:
                if client is not None:
                    await client.close()

    def _job_changed(self, uid: str) -> None:
        self._book.see(uid)
        self._news.tell(uid)

    def _job_gone(self, uid: str) -> None:
        self._book.drop(uid)
        self._streams.forget(uid)
        self._news.tell(uid)

    async def _listen(self, client: RendezvousClient) -> None:
        """Take in the news of the rendezvous server about all jobs."""
        async for progress in client.progress():
            self._heard(progress)

    def _heard(self, progress: training.TrainingProgress) -> None:
        self._book.hear(progress)
        self._news.tell(progress.job)

    async def _say_ready(self) -> None:
        await wait_listed(self._observer, log, remedy="install kinds that are not served or change --enable-kinds")
        self._book.drop_all_but(job.uid for job in self._observer.jobs())
        log.info("jobs and pods are seen", extra={"jobs": len(list(self._observer.jobs()))})
        self._is_ready.set()
        if self._options.ready_file is not None:
            write_ready(self._options.ready_file)
        await asyncio.Event().wait()

    async def _renew_certificate(self) -> None:
        """Read the certificate again: its writer renews it in time, and new connections see the new one."""
        while True:
            await asyncio.sleep(CERTIFICATE_LOOK_S)
            if self._tls is not None and self._options.tls is not None:
                try:
                    _load(self._tls, self._options.tls)
                except (OSError, ssl.SSLError) as error:
                    log.warning("the certificate cannot be read; the former one is served", extra={"error": str(error)})


def _sessions(kube: Kube, options: Options) -> Sessions:
    if options.laptop is not None and options.user_kubeconfig is not None:
        options.laptop.mkdir(parents=True, exist_ok=True, mode=0o700)
        return LaptopSessions(options.laptop, connect(options.user_kubeconfig, agent="elastic-dashboard/user"))
    access = kube.access if options.kubeconfig is None else replace(kube.access, tls=without_certificate(options.kubeconfig))
    return ClusterSessions(access)


def _opened(options: Options) -> socket.socket:
    if options.listen_fd is not None:
        return socket.socket(fileno=options.listen_fd)
    host, port = options.address
    try:
        return socket.create_server((host, port), backlog=BACKLOG, family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise taken("--listen", port, error) from error


def _tls(folder: Path | None) -> ssl.SSLContext | None:
    if folder is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, folder)
    return context


def _load(context: ssl.SSLContext, folder: Path) -> None:
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
