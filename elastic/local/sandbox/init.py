"""Run between the holder and a container's main process.

The init starts the main process, passes signals on, reaps orphans, and exits with the main process's exit code. It runs in a freshly
forked, single-threaded process and never returns to its caller.
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
"""Signal that asks an init without its own PID namespace to end its whole tree."""
COULD_NOT_START = 128
KILLED = 128 + signal.SIGKILL


class Ends(enum.Enum):
    """Processes to kill to end a tree: the child alone if it is process 1 of a PID namespace, otherwise every descendant."""

    CHILD = "child"
    TREE = "tree"


def forget_the_holder(keep: tuple[int, ...]) -> None:
    """Reset the signal handling and close the sockets that a fork inherits from the holder, because a container must not have them."""
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
    """Run `work` in a forked process. Any error ends the process, because it must never continue as a second holder."""
    try:
        work()
    except OSError as error:
        fail(problem, error.strerror or str(error))
    except BaseException as error:
        fail(problem, repr(error))


def run(launch: Launch, *, console: Console, group: int, problem: int, prepare: Callable[[], None]) -> NoReturn:
    """Run the main process to its end, kill what it left behind, and exit as it did. The whole tree is below this process."""
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
    """Fork the child, leave the console to it, pass signals on to it, reap, and exit as the child does."""
    main = _begin(child, problem=problem, ends=ends)
    if console is not None:
        console.leave()
    _leave_as(main, ends=ends)


def _begin(child: Callable[[], NoReturn], *, problem: int, ends: Ends) -> int:
    """Fork the child, and pass signals on to it from now on."""
    main = _Main(ends)
    for number in HANDED_ON:
        signal.signal(number, main.hand_on)
    signal.signal(KILL_TREE, main.end)
    pid = os.fork()
    if pid == 0:
        for number in (*HANDED_ON, KILL_TREE):
            signal.signal(number, signal.SIG_DFL)
        # If the relay is killed, no process may stay behind it.
        linux.die_with_parent(signal.SIGKILL)
        as_child(child, problem)
    os.close(problem)
    main.started(pid)
    return pid


def _leave_as(main: int, *, ends: Ends) -> NoReturn:
    """Exit as the main process does, when nothing of its tree is left."""
    code = _code_of(main, 0)
    if ends is Ends.TREE:
        kill_descendants()
    os._exit(KILLED if code is None else code)


def join(launch: Launch, *, streams: tuple[int, int, int], terminal: bool, group: int, problem: int) -> NoReturn:
    """Become a further program in a container, in its own session, with a controlling terminal if it has one."""
    os.setsid()
    enter(group)
    if terminal:
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    execute(launch, streams=streams, problem=problem)


def enter(group: int) -> None:
    """Enter a control group. Only the program counts against its limit; its parent stays outside, and sees how it ends."""
    if group != NO_GROUP:
        os.write(group, b"0")
        os.close(group)


def _code_of(main: int, options: int) -> int | None:
    """Return the main process's exit code, or None with WNOHANG while it runs. Reap all other ended processes."""
    while True:
        try:
            ended, status = os.waitpid(-1, options)
        except ChildProcessError:
            # The handler of KILL_TREE has ended and reaped everything meanwhile.
            return KILLED
        if ended == main:
            return exit_code(status)
        if not ended:
            return None


def execute(launch: Launch, *, streams: tuple[int, int, int], problem: int) -> NoReturn:
    """Become the program. `problem` closes by itself if that succeeds."""
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
    """Return the exit code as a shell and the kubelet do: 128 plus the signal's number if a signal ended the process."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def kill_descendants() -> None:
    """Kill everything below this process. Orphans become our children, so without children all are gone."""
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
    """The main process, for the signal handlers. A signal that comes before it has a pid waits for the pid."""

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
