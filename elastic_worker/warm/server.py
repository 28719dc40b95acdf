"""The fork server: imports what every training worker imports, forks a worker for each stub that asks, and sends the stub its status.

It is one thread without signal handlers. When torchrun's agent ends, it kills its workers and ends; when a stub ends, it kills that worker.
If a worker would differ from a plainly started one, it answers why. If importing again helps, it does that once it has no workers.
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

from elastic_worker import flight_recorder, stack_signal
from elastic_worker.warm import collector, differences, exit_hook, interpreter
from elastic_worker.warm import program as programs
from elastic_worker.warm.launch import BACKLOG, server_command
from elastic_worker.warm.request import Malformed, Request, close_all
from elastic_worker.warm.stub import ABORTED_AFTER_ITS_END

IMPORTS = ("torch", "torch.distributed", "torch.nn.parallel", "torch.optim", "torch.utils.data", "torch._dynamo")
"""Modules that training workers import. The first optimizer step imports the last one, which takes as long as all the others."""
MOST_RENEWALS = 3


class Worker:
    """A forked worker and the connection of its stub."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.end = os.pidfd_open(pid)
        self.connection = connection

    def signal(self, number: int) -> None:
        """Signal the worker's whole group, as torchrun does. The pid is not reused before the worker is reaped."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # it has not made its own group yet
            os.kill(self.pid, number)

    def close(self) -> None:
        os.close(self.end)
        self.connection.close()


class ForkServer:
    """The server's loop. In a forked child, `serve` returns what the child is to run."""

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
        """The environment in which to import again; empty if that is not needed."""

    def prepare(self, kept: typing.FrozenSet[int]) -> None:
        """Import the modules, and note what they opened and changed."""
        own = interpreter.descriptors()
        with collector.paused():
            for name in IMPORTS:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
        self._keep = kept | (interpreter.descriptors() - own)
        self._after = dict(os.environ)
        self._packages = differences.package_folders(sys.modules, sys.path)
        gc.freeze()
        interpreter.fork_once()

    def serve(self) -> typing.Optional[typing.Tuple[Request, programs.Program]]:
        """Serve until the agent ends or the imports are to be renewed, then return None. In a child, return what it is to run."""
        for descriptor in (self._agent_end, self._listener.fileno()):
            self._poller.register(descriptor, select.POLLIN)
        while not self.renewal or self._workers:
            descriptor = self._poller.poll()[0][0]  # one at a time: handling it may close other descriptors and reuse their numbers
            if descriptor == self._agent_end:
                self._end_all()
                return None
            if descriptor == self._listener.fileno():
                child = self._take()
                if child is not None:
                    return child
            elif descriptor in self._workers:
                self._report_end(self._workers[descriptor])
            else:
                self._receive(self._by_connection[descriptor])
        return None

    def _take(self) -> typing.Optional[typing.Tuple[Request, programs.Program]]:
        connection, _ = self._listener.accept()
        try:
            request = Request.read(connection)
        except (OSError, Malformed):
            connection.close()
            return None
        try:
            program = programs.read(request.arguments)
            why = self._difference(request, program)
        except (OSError, KeyError, ValueError) as error:
            program, why = None, "it could not be looked at: {}".format(error)
        if program is None or why:
            request.answer(why or "the arguments {} have an unusual form".format(request.arguments[:3]))
            close_all(request.descriptors)
            connection.close()
            return None
        server = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the child unblocks them once it has its own handlers
        pid = os.fork()
        if pid == 0:
            interpreter.die_with_parent(self._library, server)
            interpreter.allow_inspection(self._library, self._agent)
            request.send_started(os.getpid())  # sent by the worker itself, so that the stub forwards signals before the program starts
            return request, program
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        close_all(request.descriptors)
        self._watch(Worker(pid, connection))
        return None

    def _difference(self, request: Request, program: typing.Optional[programs.Program]) -> str:
        if program is None:
            return ""
        why = differences.of_environment(self._before, self._after, request.environment) or differences.of_packages(self._packages)
        if why:
            self.renewal = differences.environment_for(self._before, request.environment)
            return why
        return (
            differences.of_process()
            or differences.of_inherited_state(differences.inherited_state(os.getpid()), differences.inherited_state(request.pid))
            or programs.obstacle(program, folder=request.folder(), loaded=sys.modules)
        )

    def _watch(self, worker: Worker) -> None:
        self._workers[worker.end] = worker
        self._by_connection[worker.connection.fileno()] = worker
        self._poller.register(worker.end, select.POLLIN)
        self._poller.register(worker.connection, select.POLLIN)

    def _report_end(self, worker: Worker) -> None:
        had_ended = exit_hook.had_ended(worker.pid)
        _, status = os.waitpid(worker.pid, 0)
        if had_ended and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT:
            status = ABORTED_AFTER_ITS_END
        with contextlib.suppress(OSError):  # the stub was killed
            worker.connection.sendall(struct.pack("!i", status))
        self._forget(worker)

    def _receive(self, worker: Worker) -> None:
        """Forward signals. If the stub has ended, kill its worker."""
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

    def become(self, request: Request) -> None:
        """In a child: release everything that the server holds, and become the worker."""
        for held in (self._listener, request.connection, *(worker.connection for worker in self._workers.values())):
            held.detach()  # else its finalizer would close a descriptor that the program uses by then
        interpreter.become(request, keep=self._keep)


def main() -> None:
    """`-c BOOT root folder listener agent renewals room`: see launch."""
    root, folder, descriptor, agent, renewals = sys.argv[1:6]
    interpreter.leave_path_as_found(root)
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
    """Run the fork server until the agent ends. `kept` are descriptors that earlier imports opened."""
    interpreter.retitle(["elastic_worker: fork server of", str(agent)])
    listener.set_inheritable(False)
    listener.listen(BACKLOG)  # again: stubs are to see this process as their peer, not the one that made the socket
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


def _become_worker(server: ForkServer, request: Request, program: programs.Program) -> None:
    arguments = request.arguments
    try:
        server.become(request)
        interpreter.retitle([sys.executable, *arguments])
        interpreter.seed()
        stack_signal.register(os.environ)
        flight_recorder.serve(os.environ)
    except OSError as error:
        print("elastic_worker: this worker starts plainly: {}".format(error), file=sys.stderr)
        interpreter.set_signals(request)
        os.execve(sys.executable, [sys.executable, *arguments], request.environment)
    end = exit_hook.ExitHook()
    try:
        interpreter.run(program, arguments=arguments)
    except SystemExit as error:
        end.has_succeeded = error.code in (None, 0)
        raise
    end.has_succeeded = True
