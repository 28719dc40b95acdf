"""The fork server: imports what every training worker imports, then forks a worker for each stub that asks, and tells the stub its end.

It is one thread without signal handlers. It ends with torchrun's agent and takes its workers along; a worker ends with its stub. Where a
worker would not be like a plainly started one it says why instead; where importing anew helps, it does that as soon as it has no workers.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import struct
import sys
import typing

from elastic_worker.warm import fresh, last, likeness
from elastic_worker.warm import program as programs
from elastic_worker.warm.launch import server_command
from elastic_worker.warm.request import Malformed, Request, close_all
from elastic_worker.warm.stub import ABORTED_AFTER_ITS_END

IMPORTS = ("torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch.utils.data", "torch._dynamo")
"""What training workers import; the last comes in with the first optimizer step and takes as long as all the rest."""
MOST_RENEWALS = 3


class Worker:
    """A forked worker and the stub that stands in for it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.end = os.pidfd_open(pid)
        self.connection = connection

    def signal(self, number: int) -> None:
        """To the worker's whole group, as torchrun signals a worker; it is ours until we have waited for it."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # it has not yet made its own group
            os.kill(self.pid, number)

    def close(self) -> None:
        os.close(self.end)
        self.connection.close()


class ForkServer:
    """The loop. `serve` returns in a forked child, with what the child is to run."""

    def __init__(self, listener: socket.socket, *, agent: int, environment: typing.Dict[str, str]) -> None:
        self._listener = listener
        self._agent = agent
        self._agent_end = os.pidfd_open(agent)
        self._before = environment
        self._after = environment
        self._packages = {}  # type: typing.Dict[str, int]
        self._keep = frozenset()  # type: typing.FrozenSet[int]
        self._workers = {}  # type: typing.Dict[int, Worker]
        self._by_connection = {}  # type: typing.Dict[int, Worker]
        self._poller = select.poll()
        self._library = ctypes.CDLL(None)
        self.renewal = {}  # type: typing.Dict[str, str]
        """The environment in which to import anew; empty while there is no need."""

    def prepare(self, kept: typing.FrozenSet[int]) -> None:
        """Import, and see whether this process can fork at all."""
        own = fresh.descriptors()
        for name in IMPORTS:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self._keep = kept | (fresh.descriptors() - own)
        self._after = dict(os.environ)
        self._packages = likeness.package_folders(sys.modules, sys.path)
        gc.collect()
        gc.freeze()
        fresh.fork_in_vain()

    def serve(self) -> typing.Optional[typing.Tuple[Request, programs.Program, typing.Tuple[int, int]]]:
        """Serve until the agent ends or the imports are to be renewed (None); in a child: what it is to be."""
        for descriptor in (self._agent_end, self._listener.fileno()):
            self._poller.register(descriptor, select.POLLIN)
        while not self.renewal or self._workers:
            descriptor = self._poller.poll()[0][0]  # one at a time: what it leads to may give the others' numbers to something new
            if descriptor == self._agent_end:
                self._end_all()
                return None
            if descriptor == self._listener.fileno():
                child = self._take()
                if child is not None:
                    return child
            elif descriptor in self._workers:
                self._tell_end(self._workers[descriptor])
            else:
                self._hear(self._by_connection[descriptor])
        return None

    def _take(self) -> typing.Optional[typing.Tuple[Request, programs.Program, typing.Tuple[int, int]]]:
        connection, _ = self._listener.accept()
        try:
            request = Request.read(connection)
        except (OSError, Malformed):
            connection.close()
            return None
        try:
            program = programs.read(request.arguments)
            signals = request.signals()
            why = self._difference(request, program)
        except (OSError, KeyError, ValueError) as error:
            program, signals, why = None, (0, 0), "it could not be looked at: {}".format(error)
        if program is None or why:
            request.answer(why or "the arguments {} have an unusual form".format(request.arguments[:3]))
            close_all(request.descriptors)
            connection.close()
            return None
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            fresh.die_with_parent(self._library, server)
            fresh.let_look(self._library, self._agent)
            request.tell_started(os.getpid())  # by the worker itself: whoever sees a sign of it can be sure that the stub forwards signals
            return request, program, signals
        close_all(request.descriptors)
        self._watch(Worker(pid, connection))
        return None

    def _difference(self, request: Request, program: typing.Optional[programs.Program]) -> str:
        if program is None:
            return ""
        why = likeness.of_environment(self._before, self._after, request.environment) or likeness.of_packages(self._packages)
        if why:
            self.renewal = likeness.environment_for(self._before, request.environment)
            return why
        return (
            likeness.of_process()
            or likeness.of_standing(likeness.standing(os.getpid()), likeness.standing(request.pid))
            or programs.obstacle(program, folder=request.folder(), loaded=sys.modules)
        )

    def _watch(self, worker: Worker) -> None:
        self._workers[worker.end] = worker
        self._by_connection[worker.connection.fileno()] = worker
        self._poller.register(worker.end, select.POLLIN)
        self._poller.register(worker.connection, select.POLLIN)

    def _tell_end(self, worker: Worker) -> None:
        had_ended = last.had_ended(worker.pid)
        _, status = os.waitpid(worker.pid, 0)
        if had_ended and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT:
            status = ABORTED_AFTER_ITS_END
        with contextlib.suppress(OSError):  # the stub was killed, and its parent knows
            worker.connection.sendall(struct.pack("!i", status))
        self._forget(worker)

    def _hear(self, worker: Worker) -> None:
        """Signals to forward, or the end of the stub, which is the end of its worker."""
        try:
            numbers = worker.connection.recv(256)
        except OSError:
            numbers = b""
        for number in numbers or (int(signal.SIGKILL),):
            worker.signal(number)
        if not numbers:
            self._poller.unregister(worker.connection)
            del self._by_connection[worker.connection.fileno()]

    def _forget(self, worker: Worker) -> None:
        self._poller.unregister(worker.end)
        del self._workers[worker.end]
        if self._by_connection.pop(worker.connection.fileno(), None) is not None:
            self._poller.unregister(worker.connection)
        worker.close()

    def _end_all(self) -> None:
        for worker in list(self._workers.values()):
            worker.signal(signal.SIGKILL)

    def become(self, request: Request, signals: typing.Tuple[int, int]) -> None:
        """In a child: let go of everything that the server holds, and be the worker."""
        for held in (self._listener, request.connection, *(worker.connection for worker in self._workers.values())):
            held.detach()  # or it would close, when it is collected, a descriptor that is the program's by then
        fresh.become(request, keep=self._keep, signals=signals)


def main() -> None:
    """`-c BOOT root folder listener agent renewals room`: see launch."""
    root, folder, descriptor, agent, renewals = sys.argv[1:6]
    fresh.leave_path_as_found(root)
    listener = socket.socket(fileno=int(descriptor))
    serve(listener, root=root, folder=folder, agent=int(agent), renewals=int(renewals), environment=dict(os.environ))


def serve(
    listener: socket.socket,
    *,
    root: str,
    folder: str,
    agent: int,
    renewals: int,
    environment: typing.Dict[str, str],
    kept: typing.FrozenSet[int] = frozenset(),
) -> None:
    """Be the fork server until the agent ends. `kept` are descriptors that earlier imports opened."""
    fresh.retitle(["elastic_worker: fork server of", str(agent)])
    listener.set_inheritable(False)
    server = ForkServer(listener, agent=agent, environment=environment)
    server.prepare(kept)
    child = server.serve()
    if child is not None:
        _become_worker(server, *child)
        return
    if server.renewal and renewals < MOST_RENEWALS:
        listener.set_inheritable(True)
        os.execve(sys.executable, server_command(root, folder, listener, agent=agent, renewals=renewals + 1), server.renewal)
    shutil.rmtree(folder, ignore_errors=True)


def _become_worker(server: ForkServer, request: Request, program: programs.Program, signals: typing.Tuple[int, int]) -> None:
    arguments = request.arguments
    try:
        server.become(request, signals)
        fresh.retitle([sys.executable, *arguments])
        fresh.seed()
    except OSError as error:
        print("elastic_worker: this worker starts plainly: {}".format(error), file=sys.stderr)
        os.execve(sys.executable, [sys.executable, *arguments], request.environment)
    end = last.Last()
    try:
        fresh.run(program, arguments=arguments)
    except SystemExit as error:
        end.is_good = error.code in (None, 0)
        raise
    end.is_good = True
