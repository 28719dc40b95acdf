"""Put the controller's parts together, and run them until stopped."""

import asyncio
import logging
import math
import socket
import ssl
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from elastic.api.trainer.modes import TRAINER_LEASE, Mode, holder_of_trainer
from elastic.etcd.store import Away, StoreRefused
from elastic.etcd.thread import EtcdThread
from elastic.etcd.visits import Own
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import SECRETS
from elastic.membership.client import RendezvousClient, RendezvousError
from elastic.membership.protocol import UnknownVersion
from elastic.membership.tokens import BadKey, Role, control_token, job_token, load_keys
from elastic.runtime.election import Election, Terms
from elastic.runtime.fence import FencedWriter
from elastic.runtime.process import Parts, wait_listed, write_ready
from elastic.runtime.signal_file import table_of
from elastic.runtime.terminating import ConsiderateWriter
from elastic.runtime.web import ALL_ADDRESSES, serving, taken
from elastic.runtime.workqueue import WorkQueue
from elastic.runtime.writers import Writer
from elastic_training.controller.acting.apply import Applier
from elastic_training.controller.acting.event_recorder import EventRecorder
from elastic_training.controller.acting.fenced_link import FencedServer
from elastic_training.controller.acting.leading import give_signs
from elastic_training.controller.acting.link import RendezvousLink, Server
from elastic_training.controller.acting.links import ETCD_AT_ONCE, Links
from elastic_training.controller.acting.secrets import Secrets, data_of
from elastic_training.controller.acting.table_warnings import warn_of_rows
from elastic_training.controller.facts.keys import Key
from elastic_training.controller.facts.settings import Rendezvous, Settings
from elastic_training.controller.running.metrics import Metrics
from elastic_training.controller.running.options import Options
from elastic_training.controller.running.reconcile import Reconciler
from elastic_training.controller.running.train_jobs import TrainJobs
from elastic_training.controller.running.trainer_turn import OtherLeases, TrainerTurn
from elastic_training.controller.watching.kopf_watch import KopfWatch
from elastic_training.controller.watching.observe import Observer, resources_of

if TYPE_CHECKING:
    from elastic_training.controller.webhook.door import Door

log = logging.getLogger(__name__)
LEASE = "elastic-controller"
FINISH_S = 1.0
"""Seconds for reconciles that run when the process gets a signal to end; another process takes over soon after."""
OWN = "own"
OWN_WAIT = ("python3", "-m", "elastic_worker.startup.resolve")
OWN_KUBECTL = ("python3", "-m", "elastic_worker.mpi.kubectl", "--install", "/opt/kube")


class Process:
    def __init__(self, kube: Kube, options: Options) -> None:
        self._kube = kube
        self._options = options
        self._queue: WorkQueue[Key] = WorkQueue(clock=time.monotonic)
        resources = resources_of(options.kinds, gang_scheduler=options.gang_scheduler)
        self._signals = table_of(options.signals)
        for problem in self._signals.problems:
            log.warning("a row of the table of signals is wrong", extra={"problem": problem})
        self._observer = Observer(kube, kinds=options.kinds, resources=resources, namespace=options.namespace, signals=self._signals.rows)
        self._is_ready = asyncio.Event()
        self._election = _election(kube, options) if options.leader_elect else None
        self._metrics = Metrics(CollectorRegistry(), waiting=self._queue.__len__, sent=kube.sent, leads=self._leads)
        self._key, self._ca = _installation(options.installation) if options.installation else (b"", "")
        self._rendezvous = self._client()
        self._trainer_election = self._election_of_trainer()
        self._train_jobs = self._keeper_of_train_jobs()
        self._door = _door(kube, options, self._train_jobs)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until stopped. Raise if a part ends by itself, because all parts are needed."""
        options = self._options
        client = self._rendezvous
        link = self._links(client) if client is not None else None
        jobs = KopfWatch(self._kube, self._observer.jobs, namespace=options.namespace)
        reconciler = self._reconciler(link)
        async with serving(
            health_port=options.health_port,
            metrics_port=options.metrics_port,
            is_ready=self._is_ready.is_set,
            registry=self._metrics.registry,
        ):
            parts = [
                self._observer.run(reconciler.changed),
                jobs.run(),
                self._reconcile(reconciler),
                self._say_ready(),
            ]
            if client is not None and link is not None:
                parts.append(link.run(reconciler.world_changed))
                errors = (RendezvousError, UnknownVersion)
                parts.append(give_signs(client.lead, self._election, errors=errors, left=self._left_s))
            if self._train_jobs is not None:
                parts.append(self._train_jobs.run())
            if self._signals.problems:
                parts.append(self._warn_of_signals())
            if self._door is not None:
                parts.append(self._door.run(self._metrics.judged))
            try:
                async with Parts(parts) as running:
                    await running.wait_for_end(stop)
                    await reconciler.finish(within_s=FINISH_S)
            finally:
                if client is not None:
                    await client.close()

    def _applier(self, link: Links | None) -> Applier:
        kube = ConsiderateWriter(self._writer())
        return Applier(kube, EventRecorder(kube), link)

    def _writer(self) -> Writer:
        return self._kube if self._election is None else FencedWriter(self._kube, self._election.left_s)

    async def _warn_of_signals(self) -> None:
        await warn_of_rows(
            EventRecorder(self._writer()),
            self._signals.problems,
            namespace=self._options.lease_namespace,
            leads=self._leads,
            now=lambda: datetime.now(UTC),
        )

    def _links(self, client: RendezvousClient) -> Links:
        thread = EtcdThread(
            token_for=lambda uid: job_token(self._key, uid),
            read_secret=self._read_secret,
            own=self._own_etcd(),
            follows_others=self._options.follows_user_etcd,
        )
        server = RendezvousLink(self._fenced(client), errors=(RendezvousError, UnknownVersion))
        etcd = RendezvousLink(self._fenced(thread), errors=(Away, StoreRefused), at_once=ETCD_AT_ONCE)
        return Links(server, etcd, thread)

    def _fenced(self, server: Server) -> Server:
        return server if self._election is None else FencedServer(server, self._election.left_s)

    def _own_etcd(self) -> Own | None:
        reach = self._options.etcd_url or self._options.etcd_endpoint
        if not reach:
            return None
        return Own(
            endpoints=members_of(reach),
            ca=self._ca,
            password_for=lambda uid: job_token(self._key, uid, Role.ETCD),
            is_eager=not self._options.etcd_on_demand,
        )

    async def _read_secret(self, namespace: str, name: str) -> dict[str, str]:
        """Return the login that a job's user has put there for its etcd."""
        try:
            return data_of(await self._kube.get(SECRETS, name, namespace=namespace))
        except KubeError as error:
            raise StoreRefused(f"Secret {name} cannot be read: {error.message}") from None

    def _reconciler(self, link: Links | None) -> Reconciler:
        return Reconciler(
            self._observer,
            self._applier(link),
            self._queue,
            Secrets(self._kube),
            settings=self._settings(),
            worlds=link.worlds if link is not None else {},
            has_forgotten=link.has_forgotten if link is not None else lambda uid: False,
            last_steps=link.last_steps if link is not None else {},
            token_for=lambda uid, role: job_token(self._key, uid, role) if self._key else "",
            metrics=self._metrics,
        )

    async def _reconcile(self, reconciler: Reconciler) -> None:
        """Work while this process holds the Lease. Every replica keeps its view."""
        election = self._election
        if election is None:
            await self._work(reconciler)
            return

        async def work() -> None:
            reconciler.term = election.term
            await self._work(reconciler)

        await election.lead(work)

    async def _work(self, reconciler: Reconciler) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reconciler.run(self._options.workers))
            if self._train_jobs is not None and self._trainer_election is not None:
                tasks.create_task(self._turn(self._trainer_election).run(self._train_jobs.work))
            elif self._train_jobs is not None:
                tasks.create_task(self._train_jobs.work())

    def _turn(self, election: Election) -> TrainerTurn:
        namespace = self._options.trainer_namespace
        others = OtherLeases(self._kube, namespace=namespace, clock=time.monotonic)
        return TrainerTurn(others, election, EventRecorder(self._writer()), namespace=namespace, now=lambda: datetime.now(UTC))

    def _keeper_of_train_jobs(self) -> TrainJobs | None:
        """Return the part that serves TrainJobs, which needs the runtimes of the whole cluster."""
        options, jobs = self._options, [self._observer.jobs[kind] for kind in ("PyTorchJob", "MPIJob") if kind in self._observer.jobs]
        if options.train_jobs is Mode.OFF or options.namespace is not None or "PyTorchJob" not in self._observer.jobs:
            return None
        progress = self._rendezvous.progress if self._rendezvous is not None else None
        fenced = self._writer() if self._trainer_election is None else FencedWriter(self._writer(), self._trainer_election.left_s)
        writer, scheduler, mode = ConsiderateWriter(fenced), options.gang_scheduler, options.train_jobs
        return TrainJobs(self._kube, writer, jobs, mode=mode, clock=time.monotonic, progress=progress, gang_scheduler=scheduler)

    def _election_of_trainer(self) -> Election | None:
        """Return the election for the Lease of Kubeflow Trainer's own controller. The holder serves all TrainJobs.

        All our replicas have one identity there. Their own Lease decides which of them works, and the next one need not wait for this one.
        """
        options = self._options
        if self._election is None or options.train_jobs is not Mode.INSTEAD or options.namespace is not None:
            return None
        return _election(
            self._kube, options, namespace=options.trainer_namespace, name=TRAINER_LEASE, me=holder_of_trainer(options.lease_namespace)
        )

    def _left_s(self) -> float:
        return math.inf if self._election is None else self._election.left_s()

    def _leads(self) -> bool:
        return self._election is None or self._election.is_held

    def _client(self) -> RendezvousClient | None:
        if not self._options.rendezvous_url:
            return None

        async def token() -> str:
            return control_token(self._key)

        return RendezvousClient(self._options.rendezvous_url, token=token, ca=self._ca, gives_signs=True)

    def _settings(self) -> Settings:
        options = self._options
        rendezvous = Rendezvous(endpoint=options.rendezvous_endpoint, ca=self._ca) if options.rendezvous_url else None
        return Settings(
            rendezvous=rendezvous,
            etcd=members_of(options.etcd_endpoint),
            worker_image=options.worker_image,
            gang_scheduler=options.gang_scheduler,
            cluster_domain=options.cluster_domain,
            init_image=options.worker_image if options.init_image == OWN else options.init_image,
            init_tries=options.init_tries,
            init_command=OWN_WAIT if options.init_image == OWN else (),
            kubectl_image=options.worker_image if options.kubectl_image == OWN else options.kubectl_image,
            kubectl_command=OWN_KUBECTL if options.kubectl_image == OWN else (),
            pace_window_s=options.straggler_window_s,
        )

    async def _say_ready(self) -> None:
        await wait_listed(self._observer, log, remedy="install kinds that are not served or change --gang-scheduler-name or --enable-kinds")
        log.info("all caches are synced", extra={"jobs": len(self._observer.job_keys())})
        if self._door is not None:
            await self._door.wait_open()
        self._is_ready.set()
        if self._options.ready_file is not None:
            write_ready(self._options.ready_file)
        await asyncio.Event().wait()


def _election(kube: Kube, options: Options, *, namespace: str = "", name: str = LEASE, me: str = "") -> Election:
    # The time that a machine sleeps must count too, but not every system has a clock that counts it.
    clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
    terms = Terms(duration_s=options.lease_duration_s)
    place = namespace or options.lease_namespace
    return Election(kube, namespace=place, name=name, me=me or options.identity, clock=clock, terms=terms)


def _door(kube: Kube, options: Options, train_jobs: TrainJobs | None) -> "Door | None":
    """Load the webhook only if it is wanted, because making certificates takes memory."""
    if options.webhook_fd is None and not options.webhook_port:
        return None
    from elastic.runtime.cert_rotation import CertificateName
    from elastic_training.controller.webhook.door import Door

    if options.webhook_fd is not None:
        opened = socket.socket(fileno=options.webhook_fd)
    else:
        try:
            opened = socket.create_server((ALL_ADDRESSES, options.webhook_port))
        except OSError as error:
            raise taken("--webhook-port", options.webhook_port, error) from error
    is_external = options.webhook_certificate == "secret"
    place = CertificateName(namespace=options.lease_namespace, name=options.webhook_name, is_external=is_external)
    if train_jobs is None:
        return Door(kube, place, opened, kinds=options.kinds, namespace=options.namespace)
    return Door(kube, place, opened, kinds=options.kinds, namespace=None, mode=options.train_jobs, look_up=train_jobs.look_up)


def members_of(words: str) -> tuple[str, ...]:
    """Return HOST:PORT of each member of an etcd."""
    return tuple(member.strip() for member in words.split(",") if member.strip())


def _installation(folder: Path) -> tuple[bytes, str]:
    """Return the key of all tokens, and the certificate by which the rendezvous server is known."""
    key, path = load_keys(folder)[0], folder / "ca.crt"
    try:
        ca = path.read_text()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=ca)
    except (OSError, ValueError) as error:
        raise BadKey(f"{path} cannot be read as a certificate ({error}); point --installation at the installation's folder") from error
    return key, ca
