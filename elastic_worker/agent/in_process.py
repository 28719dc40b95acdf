"""Let this agent's workers change worlds without a restart: a thread serves the door and passes messages between workers and server.

LocalChange decides what is sent. The lock is the presence's, so that workers, views and the agent's own thread see one state.
"""

import contextlib
import hashlib
import hmac
import logging
import os
import threading
import time
import typing

from elastic_worker import settings
from elastic_worker.agent import paces, saves
from elastic_worker.agent.change import LocalChange, LocalWorker, Secret
from elastic_worker.agent.door import MOST_CONNECTIONS, Connection, Event, WorkerDoor
from elastic_worker.agent.paces import LocalPaces
from elastic_worker.agent.presence import IN_PROCESS_MINOR, PACING_MINOR, SAVING_MINOR, Introduction
from elastic_worker.agent.saves import LocalSaves
from elastic_worker.agent.store import AgentStore
from elastic_worker.agent.throttling import Throttling
from elastic_worker.agent.view import ChangingRendezvous, View
from elastic_worker.agent.wake import Wake
from elastic_worker.agent.worker_messages import BrokenRule, Message, number_of
from elastic_worker.agent.workers import LocalWorkers
from elastic_worker.looking.stopped import STOPPED_S, StoppedWorkers
from elastic_worker.warm.stub import AGAIN, ENDED

log = logging.getLogger(__name__)

LOOK_S = 0.25
LOOK_IN_CHANGE_S = 0.05
CLOSE_S = 2.0
STOPPED = "it was stopped (state T) for more than {:g} s, so its agent killed it: the other workers would wait for it".format(STOPPED_S)
NO_DOOR = "this agent found no place for the socket at which its workers would change worlds"


def transfer_secret(token: str, *, job: str, generation: int, round: int) -> str:
    """Return the key of the state transfers of one round, which all agents of the job derive alike."""
    words = "elastic state transfer|{}|{}|{}".format(job, generation, round)
    return hmac.new(token.encode(), words.encode(), hashlib.sha256).hexdigest()


class InProcess:
    """The changes of worlds of one agent's workers. It lives as long as the agent."""

    def __init__(self, presence: ChangingRendezvous, *, address: str, secret: Secret) -> None:
        """Stand between the rendezvous and the workers. secret: returns the key of the state transfers of a generation and round."""
        self._presence = presence
        self._change = LocalChange(address=address, secret=secret)
        self._door = None  # type: typing.Optional[WorkerDoor]
        self._has_no_door = False
        self._workers = None  # type: typing.Optional[LocalWorkers]
        self._store = None  # type: typing.Optional[AgentStore]
        self._of: typing.Dict[Connection, LocalWorker] = {}
        self._former: typing.List[Connection] = []
        self._stopped = StoppedWorkers()
        self._paces = LocalPaces(Throttling())
        self._saves = LocalSaves()
        self._is_over = False
        self._wake = Wake()
        self._thread = None  # type: typing.Optional[threading.Thread]

    # --- for the agent's thread

    def begin(self, workers: LocalWorkers, store: AgentStore) -> None:
        """Take new workers. They inherit the path of the door if the server can change worlds in process."""
        os.environ.pop(settings.WORLD, None)
        if self._presence.minor < IN_PROCESS_MINOR or not self._open():
            return
        assert self._door is not None
        os.environ[settings.WORLD] = self._door.path
        with self._presence.changed:
            self._workers, self._store = workers, store
            self._change.begin(workers.generation, lambda: store.local_size)
            self._saves.begin()
        if not workers.generation:
            self._presence.start_outside()
        self._wake_up()

    def can_begin(self) -> bool:
        """Return whether workers could change worlds. If not, tell the server once."""
        if self._open():
            return True
        if not self._has_no_door:
            self._has_no_door = True
            self._presence.send({"t": "unable", "words": NO_DOOR})
        return False

    def stop(self) -> None:
        """Report no more of these workers, because torchrun stops them."""
        with self._presence.changed:
            self._change.stop()

    def end(self) -> None:
        """Forget these workers, because they have ended."""
        with self._presence.changed:
            self._workers = self._store = None
            self._former += self._of
            self._of = {}
            self._change.begin(0)
            self._saves.begin()
        self._wake_up()

    def is_astray(self, view: View) -> bool:
        """Return whether the server has put living workers into a world without telling them to change."""
        with self._presence.changed:
            if self._workers is None or not (self._change.is_used or not self._workers.generation):
                return False
            is_told = view.change is not None and view.change.phase != "plain"
            return bool(view.generation) and view.generation != self._workers.generation and not is_told

    def close(self) -> None:
        """Close the door."""
        with self._presence.changed:
            self._is_over = True
        self._wake_up()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        else:
            self._wake.close()
        os.environ.pop(settings.WORLD, None)

    def _open(self) -> bool:
        if self._thread is None:
            try:
                self._door = WorkerDoor(child_of=self._child_of)
            except OSError as error:
                log.warning("workers cannot change worlds in process: %s", error)
                return False
            self._presence.introduce = self._introduction
            self._presence.on_news = self._wake_up
            self._thread = threading.Thread(target=self._serve, name="elastic-door", daemon=True)
            self._thread.start()
        return not self._is_over

    def _introduction(self) -> Introduction:
        fields, repeated = self._change.introduction()
        return fields, [*repeated, *self._saves.repeated()]

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):  # the thread has ended
            self._wake.up()

    # --- the thread

    def _serve(self) -> None:
        """Serve until the agent ends. After a bug workers lose their connections and end, as if their agent had ended."""
        assert self._door is not None
        try:
            self._run(self._door)
        finally:
            self._is_over = True
            self._door.close()
            self._wake.close()

    def _run(self, door: WorkerDoor) -> None:
        while not self._is_over:
            events = door.turn(self._patience_s(), self._wake.fileno())
            self._wake.signals()
            with self._presence.changed:
                self._drop_former()
                for event in events:
                    self._take(event, now=time.monotonic())
                self._follow()
            self._kill_stopped()

    def _patience_s(self) -> typing.Optional[float]:
        if not self._change.is_used:
            return None
        return LOOK_IN_CHANGE_S if self._change.is_under_way else LOOK_S

    def _drop_former(self) -> None:
        assert self._door is not None
        for connection in self._former:
            self._door.drop(connection)
        self._former = []
        self._door.most = max(MOST_CONNECTIONS, self._change.local_size)

    def _take(self, event: Event, *, now: float) -> None:
        assert self._door is not None
        connection, message = event
        worker = self._of.get(connection)
        try:
            if message is None:
                if worker is not None:
                    del self._of[connection]
                    self._change.lost(worker, now=now)
            elif worker is None and message.get("t") == ENDED:
                self._on_end(connection, message, now=now)
            elif worker is None:
                worker = self._of[connection] = self._change.hello(message)
                worker.pid, worker.child = connection.pid, connection.child
                if self._workers is not None:
                    self._workers.use_library(connection.child)
            elif message.get("t") == paces.KIND:
                self._on_pace(worker, message, now=now)
            elif message.get("t") == saves.KIND:
                told = self._saves.heard(worker.local_rank, message, local_size=self._change.local_size)
                if told is not None and self._presence.minor >= SAVING_MINOR:
                    self._presence.send(told)
            else:
                self._change.heard(worker, message, now=now)
        except BrokenRule as error:
            if worker is None:
                self._door.turn_away(connection, str(error))
            else:
                self._door.drop(connection, str(error))

    def _on_end(self, stub: Connection, message: Message, *, now: float) -> None:
        """Let a stub whose worker has ended start another one if its siblings can wait for it; else the stub ends, and torchrun acts."""
        assert self._door is not None
        local_rank, status = number_of(message, "local_rank"), number_of(message, "status")
        worker = self._change.workers.get(local_rank)
        is_its_stub = worker is not None and stub.pid == worker.child != worker.pid
        if is_its_stub and self._workers is not None and self._change.can_replace(local_rank) and self._workers.can_replace(status):
            self._change.replace(local_rank, now=now)
            self._workers.note_replaced(stub.child, status)
            self._door.send(stub, {"t": AGAIN})
        else:
            self._door.drop(stub)

    def _on_pace(self, worker: LocalWorker, message: Message, *, now: float) -> None:
        place, size = (self._change.generation, self._change.world_round), self._change.local_size
        told = self._paces.heard(worker, message, place=place, local_size=size, now=now)
        if told is not None:
            self._presence.send(told)

    def _follow(self) -> None:
        """Bring server and workers up to date."""
        assert self._door is not None
        view = self._presence.view
        if self._workers is not None and self._store is not None and self._change.follow(view):
            self._presence.move(view)
            self._workers.move(view.generation, rank=view.rank, local_size=self._change.local_size)
            self._store.detach()
            log.info("generation %s, entered in process: rank %s of %s", view.generation, view.rank, view.size)
        self._presence.note_round(self._change.round)
        for round, items in self._presence.take_keys():
            self._change.add_keys(round, items)
        self._change.pass_time(time.monotonic())
        for message in self._change.take_up():
            self._tell_server(message)
        if view.generation:
            self._paces.begin(view.pace_s if self._presence.minor >= PACING_MINOR else 0.0)
        self._paces.keep(self._of.values())
        for connection, worker in self._of.items():
            for line in [*self._change.lines(worker), *self._paces.lines(worker)]:
                self._door.send(connection, line)

    def _tell_server(self, message: typing.Dict[str, typing.Any]) -> None:
        if message["t"] == "ready":
            self._presence.stand_by(round=message["round"], step=message.get("step"))
        elif message["t"] == "resume":
            self._presence.resume()
        elif message["t"] == "started":
            self._presence.report_state("started", generation=self._change.generation)
        else:
            self._presence.send(message)

    def _kill_stopped(self) -> None:
        workers = self._workers
        pids = {connection.pid for connection in list(self._of) if connection.is_open}
        if workers is not None and pids:
            for pid in self._stopped.over_limit(pids, now=time.monotonic()):
                workers.kill(pid, STOPPED)

    def _child_of(self, pid: int) -> int:
        workers = self._workers
        return workers.child_of(pid) if workers is not None else 0
