"""torchrun's rendezvous backend `elastic`: the world is what the rendezvous server says.

The handler waits at the barrier, hosts the generation's store where it is rank 0, brings torchrun back to the barrier when the world
changes, and ends workers that do not stop. Who is in the world, and who pays for a restart, is decided by the server.
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
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from elastic_worker import settings
from elastic_worker.presence import Presence, View
from elastic_worker.store import AgentStore, Store, open_tcp_store, uses_libuv
from elastic_worker.work import Work

log = logging.getLogger(__name__)

BACKEND = "elastic"
STORE_TIMEOUT = datetime.timedelta(seconds=300)
STORE_CONNECT = datetime.timedelta(seconds=2)
STORE_ATTEMPTS = 8
SERVER_AWAY_S = 600.0
DENIED_S = 15.0
LOOK_S = 1.0
WORKERS_PORT = "elastic/workers_port"


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    """What torchrun calls with its rendezvous options."""
    told = settings.read(os.environ, endpoint=parameters.endpoint, job=parameters.run_id, local_address=parameters.local_addr)
    away_s = parameters.get_as_int("server_away_timeout") or SERVER_AWAY_S
    return ElasticHandler(told, away_s=float(away_s))


class ElasticHandler(RendezvousHandler):
    """One agent's side of the rendezvous."""

    def __init__(self, told: settings.Settings, *, away_s: float = SERVER_AWAY_S) -> None:
        self._settings = told
        self._away_s = away_s
        self._presence = Presence(told, on_signal=self._heard_signal)
        self._is_started = False
        self._has_wake_fd = False
        self._is_terminating = threading.Event()
        self._generation = 0
        self._store = None  # type: typing.Optional[AgentStore]
        self._work = None  # type: typing.Optional[Work]

    # --- what torchrun calls ---

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._settings.job

    @property
    def use_agent_store(self) -> bool:
        return uses_libuv(os.environ)

    def next_rendezvous(self) -> RendezvousInfo:
        self._start()
        trouble = self._leave_world()
        while True:
            own = open_tcp_store(self._settings.address, 0, os.environ, is_master=True, timeout=STORE_TIMEOUT)
            self._presence.stand_at_barrier(after=self._generation, store="{}:{}".format(self._settings.address, own.port), trouble=trouble)
            view = self._wait_for_world()
            self._generation = view.generation
            self._presence.enter(view)
            store = own if view.rank == 0 else self._connect(view)
            if store is not None:
                return self._enter(view, store)
            trouble = "the store of generation {} at {} could not be reached".format(view.generation, view.store)

    def num_nodes_waiting(self) -> int:
        work = self._work
        if work is None:
            return 0
        if work.is_asked_back:
            return 1
        view = self._presence.view
        work.finish_stuck(view)
        reason = self._presence.refused or view.closed or view.reform
        if not reason and self._store is not None and self._store.broke:
            reason = "the world broke before its workers had started"
        if not reason:
            return 0
        log.info("going back to the rendezvous: %s", reason)
        work.ask_back(view.grace_s)
        return 1

    def is_closed(self) -> bool:
        return bool(self._presence.view.closed)

    def set_closed(self) -> None:
        """Closing a job's world for everybody is the server's decision; an agent can only leave it."""
        self._presence.leave("torchrun closed the rendezvous")

    def shutdown(self) -> bool:
        if self._work is not None:
            self._work.end()
        if self._store is not None:
            self._store.close()
        if self._is_started:
            self._presence.leave("finished" if self._work is not None and self._work.has_finished else "torchrun ended")
        if self._has_wake_fd:
            signal.set_wakeup_fd(-1)
        self._presence.close()
        return True

    # --- the barrier ---

    def _start(self) -> None:
        if self._is_started:
            return
        self._is_started = True
        if threading.current_thread() is threading.main_thread():
            # Until torch has started workers it leaves SIGTERM to its default, which the first process of a container never sees.
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, _end_on_signal)
            signal.set_wakeup_fd(self._presence.wake_fd, warn_on_full_buffer=False)
            self._has_wake_fd = True
        self._presence.start()

    def _leave_world(self) -> str:
        """Let go of the last world; returns why, where it was neither asked for nor a worker's failure."""
        trouble = ""
        if self._store is not None:
            if self._store.broke:
                trouble = "the store of generation {} was lost".format(self._generation)
            self._store.close()
        if self._work is not None and trouble:
            self._work.end()
        elif self._work is not None:
            self._work.close()
        self._store, self._work = None, None
        return trouble

    def _wait_for_world(self) -> View:
        """Wait at the barrier until there is a world with us in it."""
        told_why = ""
        presence = self._presence
        while True:
            with presence.changed:
                presence.changed.wait_for(self._has_news, LOOK_S)
            view = presence.view
            if presence.refused:
                raise RendezvousClosedError("this agent was replaced: {}".format(presence.refused))
            if view.closed:
                raise RendezvousClosedError(view.closed)
            if view.generation > self._generation:
                return view
            if view.finished:
                # Not by torch's RendezvousGracefulExitError: torchrun 2.13 catches it and then fails for want of a result.
                log.warning("ending with status 0: %s", view.finished)
                raise SystemExit(0)
            if presence.denied and presence.away_s > DENIED_S:
                raise RendezvousConnectionError(presence.denied)
            if presence.away_s > self._away_s:
                raise RendezvousConnectionError("the rendezvous server could not be reached for {:.0f} s".format(self._away_s))
            if view.waiting and view.waiting != told_why:
                told_why = view.waiting
                log.info("waiting at the rendezvous: %s", told_why)

    def _has_news(self) -> bool:
        presence = self._presence
        return bool(presence.refused or presence.view.closed or presence.view.finished) or presence.view.generation > self._generation

    def _connect(self, view: View) -> typing.Optional[Store]:
        """Connect to the store of the world, which its rank 0 hosts; None where it cannot be reached."""
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
        self._work = Work(self._presence, generation=generation, is_terminating=self._is_terminating)
        self._work.begin()
        os.environ[settings.GENERATION] = str(generation)  # torch gives its own environment to the workers
        log.info("generation %s: rank %s of %s, store at %s", generation, view.rank, view.size, view.store)
        return RendezvousInfo(self._store, view.rank, view.size, self._where_workers_meet(view, self._store))  # type: ignore[arg-type]

    def _where_workers_meet(self, view: View, store: AgentStore) -> RendezvousStoreInfo:
        """At the agents' own store; or, where this build of torch lets no worker connect there, at one that rank 0's worker opens."""
        host, _, port = view.store.rpartition(":")
        if not self.use_agent_store:
            if view.rank == 0:
                with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
                    store.set(WORKERS_PORT, str(free.getsockname()[1]))
            port = store.get(WORKERS_PORT).decode() or port
        return RendezvousStoreInfo(host, int(port))

    def _is_over(self, generation: int) -> bool:
        """Whether nobody should wait any more for members of this world."""
        view = self._presence.view
        return bool(view.reform or view.closed or view.done or self._presence.refused) or view.generation not in (0, generation)

    def _heard_signal(self, number: int) -> None:
        """A signal reached this process; torch acts on it, the server hears of it now."""
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT) and not self._is_terminating.is_set():
            self._is_terminating.set()
            self._presence.leave("received {}".format(signal.Signals(number).name), by_signal=True)


def _end_on_signal(number: int, frame: typing.Optional[types.FrameType]) -> None:
    raise SystemExit(128 + number)
