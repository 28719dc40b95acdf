"""torchrun's rendezvous handler, and its backend `elastic`, which meets at the rendezvous server.

The handler waits at the barrier, hosts the generation's store on rank 0, sends torchrun back to the barrier when the world changes, and
kills workers that do not stop. The rendezvous decides who is in the world and which restarts are charged to the job. If the workers change
worlds in process (in_process.py), torchrun notices nothing.
"""

import datetime
import logging
import os
import signal
import socket
import threading
import types
import typing

from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from elastic_worker import settings
from elastic_worker.agent import early_end, last_words, worker_stderr
from elastic_worker.agent.in_process import InProcess, transfer_secret
from elastic_worker.agent.looks import Looks
from elastic_worker.agent.presence import JOB_OVER, Presence
from elastic_worker.agent.store import AgentStore, Store, open_tcp_store, uses_libuv
from elastic_worker.agent.view import ChangingRendezvous, View
from elastic_worker.agent.workers import LocalWorkers
from elastic_worker.warm import readiness

log = logging.getLogger(__name__)

OnSignal = typing.Callable[[int], None]
Meeting = typing.Tuple[ChangingRendezvous, typing.Optional[InProcess]]
"""An agent's rendezvous, and its workers' changes of worlds in process if the rendezvous has them."""
BACKEND = "elastic"
STORE_TIMEOUT = datetime.timedelta(seconds=300)
STORE_CONNECT = datetime.timedelta(seconds=2)
STORE_ATTEMPTS = 8
AWAY_S = 600.0
DENIED_S = 15.0
POLL_S = 1.0
WORKERS_PORT = "elastic/workers_port"
ASTRAY = "a world was formed in which its living workers were not asked to change"
OUTSIDE = "a worker failed before it came into a world"


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    """Create the handler from torchrun's rendezvous options."""
    own = settings.read(os.environ, endpoint=parameters.endpoint, job=parameters.run_id, local_address=parameters.local_addr)
    away_s = float(parameters.get_as_int("server_away_timeout") or AWAY_S)

    def meeting(on_signal: OnSignal) -> Meeting:
        presence = Presence(own, on_signal=on_signal)

        def secret(generation: int, round: int) -> str:
            return transfer_secret(own.token, job=own.job, generation=generation, round=round)

        return presence, InProcess(presence, address=own.address, secret=secret)

    return ElasticHandler(meeting, backend=BACKEND, job=own.job, address=own.address, away_s=away_s)


class ElasticHandler(RendezvousHandler):
    """One agent's side of a rendezvous. The backends differ only in their presence."""

    def __init__(
        self, meeting: typing.Callable[[OnSignal], Meeting], *, backend: str, job: str, address: str, away_s: float = AWAY_S
    ) -> None:
        self._backend = backend
        self._job = job
        self._address = address
        self._away_s = away_s
        self._presence, self._in_process = meeting(self._on_signal)
        self._looks = Looks(self._presence)
        self._sets_nodes = settings.LIGHTNING_NODES not in os.environ
        self._is_started = False
        self._has_wake_fd = False
        self._is_terminating = threading.Event()
        self._generation = 0
        self._store = None  # type: typing.Optional[AgentStore]
        self._workers = None  # type: typing.Optional[LocalWorkers]
        self._stderr = worker_stderr.of_this_process()
        self._failure = None  # type: typing.Optional[last_words.Failure]
        self._astray = 0
        self._killed_late = 0

    # --- what torchrun calls ---

    def get_backend(self) -> str:
        return self._backend

    def get_run_id(self) -> str:
        return self._job

    @property
    def use_agent_store(self) -> bool:
        return uses_libuv(os.environ)

    def next_rendezvous(self) -> RendezvousInfo:
        self._start()
        trouble = self._leave_world()
        while True:
            own = open_tcp_store(self._address, 0, os.environ, is_master=True, timeout=STORE_TIMEOUT)
            self._presence.announce_ready(
                after=self._generation, store="{}:{}".format(self._address, own.port), trouble=trouble, killed=self._killed_late
            )
            view = self._wait_for_world()
            if view.provisional:
                return self._enter(View({"size": 1, "store": "{}:{}".format(self._address, own.port)}), own)
            self._generation = view.generation
            self._presence.enter(view)
            store = own if view.rank == 0 else self._connect(view)
            if store is not None:
                return self._enter(view, store)
            trouble = "the store of generation {} at {} could not be reached".format(view.generation, view.store)

    def num_nodes_waiting(self) -> int:
        workers = self._workers
        if workers is None:
            return 0
        if workers.is_rejoining:
            return 1
        view = self._presence.view
        workers.finish_deadlocked(view)
        reason = self._presence.refused or view.closed or view.reform
        if not reason and self._store is not None and self._store.broke:
            reason = "the world broke before its workers had started"
        if not reason and self._in_process is not None and self._in_process.is_astray(view):
            self._astray, reason = view.generation, ASTRAY
        if not reason:
            return 0
        log.info("going back to the rendezvous: %s", reason)
        if self._in_process is not None:
            self._in_process.stop()
        workers.rejoin(view.grace_s)
        return 1

    def is_closed(self) -> bool:
        return bool(self._presence.view.closed)

    def set_closed(self) -> None:
        """Leave the world. One agent cannot close a job's rendezvous for everyone."""
        self._presence.leave("torchrun closed the rendezvous")

    def shutdown(self) -> bool:
        if self._workers is not None:
            self._workers.end_with_torchrun()
        if self._store is not None:
            self._store.close()
        if self._is_started:
            self._presence.leave("finished" if self._workers is not None and self._workers.has_finished else "torchrun ended")
        if self._in_process is not None:
            self._in_process.close()
        self._looks.close()
        if self._has_wake_fd:
            signal.set_wakeup_fd(-1)
        self._presence.close()
        return True

    # --- the barrier ---

    def _start(self) -> None:
        if self._is_started:
            return
        self._is_started = True
        early_end.came()
        if threading.current_thread() is threading.main_thread():
            # torch handles SIGTERM only once workers run. Until then the default applies, and the kernel ignores that for PID 1.
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, _end_on_signal)
            signal.set_wakeup_fd(self._presence.wake_fd, warn_on_full_buffer=False)
            self._has_wake_fd = True
        readiness.wait_for_imports(os.environ)
        self._presence.start()
        self._looks.start()

    def _leave_world(self) -> str:
        """Leave the last world. Return the reason if its store was lost; empty after a rescale or a failed worker."""
        trouble = ASTRAY if self._astray else ""
        if self._store is not None:
            if self._store.broke:
                trouble = "the store of generation {} was lost".format(self._generation)
            self._store.close()
        workers = self._workers
        if workers is not None and trouble:
            workers.end()
        elif workers is not None:
            workers.close()
        if self._in_process is not None:
            self._in_process.end()
        self._looks.end()
        self._failure = workers.failure if workers is not None else None
        self._killed_late = workers.killed_late if workers is not None else 0
        if workers is not None:
            if not (workers.generation or workers.is_rejoining):
                last_words.write(os.environ, failure=self._failure)
                _end(OUTSIDE)  # torchrun would start the workers again and again, and the server counts only ends in a world
            self._generation = max(self._generation, workers.generation, self._astray)
        self._astray = 0
        self._store, self._workers = None, None
        return trouble

    def _wait_for_world(self) -> View:
        """Wait at the barrier until a new world includes this agent."""
        logged_reason = ""
        presence = self._presence
        while True:
            with presence.changed:
                presence.changed.wait_for(self._has_news, POLL_S)
            view = presence.view
            if presence.refused:
                words = self._unmet(last_words.REFUSED, "this agent was sent away: {}".format(presence.refused))
                _end(words, level=logging.INFO if presence.refused == JOB_OVER else logging.ERROR)
            if view.closed:
                last_words.write(os.environ, closed=view.closed, failure=self._failure)
                _end("the rendezvous is closed: {}".format(view.closed))
            if view.generation > self._generation or self._is_provisional(view):
                return view
            if view.finished:
                # RendezvousGracefulExitError would be the way, but torchrun 2.13 catches it and then fails because there is no result.
                log.warning("ending with status 0: %s", view.finished)
                raise SystemExit(0)
            if presence.denied and presence.away_s > DENIED_S:
                raise RendezvousConnectionError(self._unmet(last_words.REFUSED, presence.denied))
            if presence.away_s > self._away_s:
                words = "{} could not be reached for {:.0f} s".format(presence.peer, self._away_s)
                raise RendezvousConnectionError(self._unmet(last_words.UNREACHABLE, words))
            if view.waiting and view.waiting != logged_reason:
                logged_reason = view.waiting
                log.info("waiting at the rendezvous: %s", logged_reason)

    def _is_provisional(self, view: View) -> bool:
        """Return whether workers shall start in a world of their own, and change from there in process."""
        return view.provisional and not view.generation and self._in_process is not None and self._in_process.can_begin()

    def _unmet(self, why: str, words: str) -> str:
        """Say in the container's message why this agent ends at the barrier, and return the words."""
        last_words.write(os.environ, unmet=last_words.Unmet(why, words), failure=self._failure)
        return words

    def _has_news(self) -> bool:
        presence = self._presence
        view = presence.view
        has_world = view.generation > self._generation or self._is_provisional(view)
        return bool(presence.refused or view.closed or view.finished) or has_world

    def _connect(self, view: View) -> typing.Optional[Store]:
        """Connect to the store of this world, which rank 0 hosts; None if it cannot be reached."""
        host, _, port = view.store.rpartition(":")
        for _ in range(STORE_ATTEMPTS):
            try:
                store = open_tcp_store(host, int(port), os.environ, is_master=False, timeout=STORE_CONNECT)
                store.set_timeout(STORE_TIMEOUT)
                return store
            except (RuntimeError, ValueError) as error:
                log.warning("the store of generation %s at %s: %s", view.generation, view.store, error)
            if self._is_over(view.generation):
                return None
        return None

    def _enter(self, view: View, store: Store) -> RendezvousInfo:
        generation = view.generation
        self._store = AgentStore(store, rank=view.rank, size=view.size, is_over=lambda: self._is_over(generation))
        self._workers = LocalWorkers(
            self._presence,
            generation=generation,
            is_terminating=self._is_terminating,
            stderr=self._stderr,
            rank=view.rank,
            except_of=self._looks.threads,
        )
        self._workers.begin()
        self._looks.begin(self._workers)
        os.environ[settings.GENERATION] = str(generation)  # workers inherit this environment
        os.environ.pop(settings.WORLD, None)
        if self._in_process is not None:
            self._in_process.begin(self._workers, self._store)
        if self._sets_nodes:
            os.environ[settings.LIGHTNING_NODES] = str(view.size)
        log.info("generation %s: rank %s of %s, store at %s", generation, view.rank, view.size, view.store)
        return RendezvousInfo(self._store, view.rank, view.size, self._workers_store(view, self._store))  # type: ignore[arg-type]

    def _workers_store(self, view: View, store: AgentStore) -> RendezvousStoreInfo:
        """Return the address of the workers' store: the agents', or a store of rank 0's worker if this torch cannot share the agents'."""
        host, _, port = view.store.rpartition(":")
        if not self.use_agent_store:
            if view.rank == 0:
                with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
                    store.set(WORKERS_PORT, str(free.getsockname()[1]))
            port = store.get(WORKERS_PORT).decode() or port
        return RendezvousStoreInfo(host, int(port))

    def _is_over(self, generation: int) -> bool:
        """Return whether this world has ended, so that waiting for its members is pointless."""
        view = self._presence.view
        return bool(view.reform or view.closed or view.done or self._presence.refused) or view.generation not in (0, generation)

    def _on_signal(self, number: int) -> None:
        """Notify the rendezvous of a signal to this process. torch itself acts on the signal."""
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT) and not self._is_terminating.is_set():
            self._is_terminating.set()
            self._presence.leave("received {}".format(signal.Signals(number).name), by_signal=True)


def _end(why: str, *, level: int = logging.ERROR) -> typing.NoReturn:
    """End torchrun with status 1 and one line: its traceback would say nothing more."""
    log.log(level, "ending with status 1: %s", why)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the pod is deleted meanwhile, and torch would raise wherever this process then is
    raise SystemExit(1)


def _end_on_signal(number: int, frame: typing.Optional[types.FrameType]) -> None:
    raise SystemExit(128 + number)
