"""What runs between the holder and a container's main process.

It starts it, hands signals on, reaps what is orphaned, and leaves with its exit code. It runs in a freshly forked, single-threaded process
and never returns to its caller.
"""

import contextlib
import enum
import fcntl
import os
import signal
import termios
from collections.abc import Callable
from typing import NoReturn

from elastic.local.sandbox import NO_GROUP, Launch, linux
from elastic.local.sandbox.inputs import Console, drain, record

HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
KILL_TREE = signal.SIGRTMAX
"""Asks an init that has no PID namespace of its own to end its whole tree."""
COULD_NOT_START = 128
KILLED = 128 + signal.SIGKILL


class Ends(enum.Enum):
    """What has to be killed for a tree to be gone: the child alone, where it is process 1 of a PID namespace, or every descendant."""

    CHILD = "child"
    TREE = "tree"


def forget_the_holder(keep: tuple[int, ...]) -> None:
    """A fork inherits the holder's signal handling and its sockets; neither is any business of a container."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, *HANDED_ON):
        signal.signal(number, signal.SIG_DFL)
    start = 3
    for descriptor in sorted(keep):
        if descriptor >= start:
            os.closerange(start, descriptor)
            start = descriptor + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


def as_child(work: Callable[[], NoReturn], problem: int) -> NoReturn:
    """Whatever goes wrong in a forked process ends it there: it must never go on as a second holder."""
    try:
        work()
    except OSError as error:
        fail(problem, error.strerror or str(error))
    except BaseException as error:
        fail(problem, repr(error))


def run(launch: Launch, *, console: Console, group: int, problem: int, prepare: Callable[[], None]) -> NoReturn:
    """Runs the main process to its end, ends whatever it left behind, and exits as it did. All of the tree is below this process."""
    prepare()

    def start() -> NoReturn:
        os.setsid()
        enter(group)
        execute(launch, streams=console.take(), problem=problem)

    main = _begin(start, problem=problem, ends=Ends.TREE)
    if not console.is_terminal:
        console.leave()
        _leave_as(main, ends=Ends.TREE)
    code = record(console, lambda: _code_of(main, os.WNOHANG))
    kill_descendants()
    drain(console)
    os._exit(code)


def relay(child: Callable[[], NoReturn], *, problem: int, ends: Ends, console: Console | None = None) -> NoReturn:
    """Forks the child, to which the console is left, hands signals on to it, reaps, and exits as the child does."""
    main = _begin(child, problem=problem, ends=ends)
    if console is not None:
        console.leave()
    _leave_as(main, ends=ends)


def _begin(child: Callable[[], NoReturn], *, problem: int, ends: Ends) -> int:
    """Forks the child, and from now on hands signals on to it."""
    main = _Main(ends)
    for number in HANDED_ON:
        signal.signal(number, main.hand_on)
    signal.signal(KILL_TREE, main.end)
    pid = os.fork()
    if pid == 0:
        for number in (*HANDED_ON, KILL_TREE):
            signal.signal(number, signal.SIG_DFL)
        # Behind a relay that is killed nothing may stay.
        linux.die_with_parent(signal.SIGKILL)
        as_child(child, problem)
    os.close(problem)
    main.started(pid)
    return pid


def _leave_as(main: int, *, ends: Ends) -> NoReturn:
    """Exits as the main process does, when nothing of its tree is left."""
    code = _code_of(main, 0)
    if ends is Ends.TREE:
        kill_descendants()
    os._exit(KILLED if code is None else code)


def join(launch: Launch, *, streams: tuple[int, int, int], terminal: bool, group: int, problem: int) -> NoReturn:
    """Becomes a further program beside a container's main process, in a session of its own, with a controlling terminal if it has one."""
    os.setsid()
    enter(group)
    if terminal:
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    execute(launch, streams=streams, problem=problem)


def enter(group: int) -> None:
    """Only the program counts against its limit; its parent stays outside, and sees how it ends."""
    if group != NO_GROUP:
        os.write(group, b"0")
        os.close(group)


def _code_of(main: int, options: int) -> int | None:
    """How the main process has ended; None, with WNOHANG among the options, while it goes on. Reaps whatever else has ended."""
    while True:
        try:
            ended, status = os.waitpid(-1, options)
        except ChildProcessError:
            # The signal KILL_TREE has ended and reaped everything meanwhile.
            return KILLED
        if ended == main:
            return exit_code(status)
        if not ended:
            return None


def execute(launch: Launch, *, streams: tuple[int, int, int], problem: int) -> NoReturn:
    """Becomes the program; `problem` closes by itself when that succeeds."""
    os.set_inheritable(problem, False)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    try:
        os.chdir(launch.cwd)
    except OSError as error:
        fail(problem, f"workingDir {launch.cwd}: {error.strerror}")
    try:
        os.execvpe(launch.argv[0], launch.argv, launch.env)
    except OSError as error:
        path = launch.env.get("PATH", "")
        words = f"not found in $PATH ({path})" if isinstance(error, FileNotFoundError) and "/" not in launch.argv[0] else error.strerror
        fail(problem, f'exec: "{launch.argv[0]}": {words}')
    raise AssertionError("exec returns only by raising")


def fail(problem: int, words: str) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(problem, words.encode())
    os._exit(COULD_NOT_START)


def exit_code(status: int) -> int:
    """As a shell and the kubelet say it: 128 and the signal's number where a signal ended the process."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def kill_descendants() -> None:
    """Ends everything below this process. Orphans come to us, so an empty list of children means that all are gone."""
    while True:
        for process in linux.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, 0)[0]:
                if linux.descendants(os.getpid()):
                    break
        except ChildProcessError:
            return


class _Main:
    """The main process as the signal handlers see it: a signal that comes before it has a pid waits for it."""

    def __init__(self, ends: Ends) -> None:
        self._pid = 0
        self._ends = ends
        self._waiting: list[int] = []

    def started(self, pid: int) -> None:
        self._pid = pid
        for number in self._waiting:
            if number == KILL_TREE:
                self.end(number, None)
            else:
                self.hand_on(number, None)

    def end(self, number: int, frame: object) -> None:
        if not self._pid:
            self._waiting.append(number)
        elif self._ends is Ends.TREE:
            kill_descendants()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def hand_on(self, number: int, frame: object) -> None:
        if not self._pid:
            self._waiting.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)
