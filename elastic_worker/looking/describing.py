"""Say in words what a worker does. Nothing here reads or waits.

The result becomes a Doing in the message to the rendezvous server (rendezvous/engine/messages/doing.py).
"""

import dataclasses
import re
import typing

from elastic_worker.looking import frames
from elastic_worker.looking.calls import Wait, wait_of
from elastic_worker.looking.sight import NCCL_THREADS, Process, Sight
from elastic_worker.looking.stacks import Frame, Thread

COLLECTIVE, STOPPED, OTHER, UNKNOWN = "collective", "stopped", "other", "unknown"
BUSY_CPU = 0.05
"""CPU seconds in a second from which on a process with a sleeping main thread does something."""
LONGEST = 160
LOADER = "/torch/utils/data/_utils/worker.py"
NETWORK = ("/socket.py", "/ssl.py", "/http/client.py")
ASYNC_WAIT = re.compile(r"\.wait\(|_c10d_functional")
"""A line of code that waits for a collective without any frame of torch."""
GPU_WAIT = re.compile(r"\.(?:item|cpu|tolist|numpy|synchronize)\(|\bsynchronize\(")
"""A line of code that waits until a GPU has done its work. With NCCL, that work ends only if all ranks take part in it."""
GPU_FILES = ("/torch/cuda/__init__.py", "/torch/cuda/streams.py")
SLEEP = re.compile(r"\bsleep\(")
WORKS_TOO = (Wait.THREAD, Wait.EVENT, Wait.OTHER, Wait.NOTHING)
CERTAIN = (Wait.READ, Wait.WRITE, Wait.OPEN, Wait.STORAGE, Wait.FILE_LOCK, Wait.CHILD)
"""Waits that are certainly for no other rank, also without a Python stack, unless their file is a socket or an event."""
COMPUTES = "computes"
STORAGE_WORDS = "waits for storage"


@dataclasses.dataclass(frozen=True)
class Doing:
    """The work or wait of one worker at one moment."""

    kind: str
    does: str
    place: str = ""
    frame: typing.Optional[Frame] = None
    """The place in its program."""


def describe(sight: Sight, *, cpu: float = 0.0, size: int = 1, code: str = "") -> Doing:
    """Return what the worker does.

    cpu: CPU seconds that it used in a second since the look before. size: of its world. code: the text of the innermost line.
    """
    thread = sight.stacks.main if sight.stacks is not None else None
    frame = frames.user_frame(thread) if thread else None
    place = frames.place(frame, sight.folder) if frame is not None else ""
    if sight.main.stat.state in "tT":
        return _doing(STOPPED, _stopped(sight.is_held), place, frame)
    if thread is None:
        return _without_stack(sight, cpu)
    collective = _collective(sight, thread, cpu=cpu, size=size, code=code)
    if collective:
        return _doing(COLLECTIVE, collective, place, frame)
    return _doing(OTHER, _other(sight, thread, cpu=cpu, code=code), place, frame)


def innermost(sight: Sight) -> typing.Optional[Frame]:
    """Return the line of Python where the main thread is."""
    return sight.stacks.main[0] if sight.stacks is not None and sight.stacks.main else None


def _doing(kind: str, does: str, place: str = "", frame: typing.Optional[Frame] = None) -> Doing:
    return Doing(kind, frames.printable(does)[:LONGEST], place, frame)


def _stopped(is_held: bool) -> str:
    return "is held by a debugger" if is_held else "is stopped by a signal"


def _collective(sight: Sight, thread: Thread, *, cpu: float, size: int, code: str) -> str:
    """Return in words how the main thread waits for other ranks; "" if it does not."""
    is_at_rest = sight.main.stat.state == "S" and cpu < BUSY_CPU
    name = frames.collective(thread, is_at_rest=is_at_rest)
    if name == "Run":
        return "waits for the other ranks of its world"
    if name:
        return "waits in {}".format(name)
    if size < 2:
        return ""
    if sight.group_threads.intersection(NCCL_THREADS) and (GPU_WAIT.search(code) or frames.is_in(frames.inside(thread), *GPU_FILES)):
        return "waits for its GPU"
    if not is_at_rest:
        return ""
    if frames.is_in_backward(thread):
        return "waits in backward for the gradients of other ranks"
    is_direct = bool(thread and sight.group_threads) and not frames.is_of_python(thread[0])
    if is_direct and ASYNC_WAIT.search(code) and wait_of(sight.main.call) is Wait.THREAD:
        return "waits for a collective"
    return ""


def _other(sight: Sight, thread: Thread, *, cpu: float, code: str) -> str:
    inner = frames.inside(thread)
    if frames.waits_for_loader(inner):
        return _for_loader(sight)
    if wait_of(sight.main.call) is Wait.CHILD or frames.is_in(inner, "/subprocess.py"):
        return _for_child(sight)
    return _of_process(sight.main, inner, cpu=cpu, code=code)


def _of_process(process: Process, inner: Thread, *, cpu: float = 0.0, code: str = "") -> str:
    """Describe a process by its system call and by its frames inside of the program's."""
    wait, state = wait_of(process.call), process.stat.state
    if state == "D" or wait is Wait.STORAGE:
        return STORAGE_WORDS
    if wait is Wait.TIME or (wait is Wait.NOTHING and state == "S" and SLEEP.search(code)):
        return "sleeps"
    words = _for_file(process)
    if words:
        return words
    if state == "R" or (cpu >= BUSY_CPU and wait in WORKS_TOO):
        return COMPUTES
    return _by_frames(inner) or _plain(wait)


def _by_frames(inner: Thread) -> str:
    if frames.is_in(inner, "/threading.py"):
        return "waits for a thread to end" if any(one.function == "join" for one in inner) else "waits for a lock"
    if frames.is_in(inner, *NETWORK):
        return "waits for the network"
    if any("/multiprocessing/" in one.path for one in inner):
        return "waits for another process"
    return ""


def _plain(wait: Wait) -> str:
    words = {Wait.THREAD: "waits for a lock", Wait.EVENT: "waits for input", Wait.NOTHING: "waits", Wait.CHILD: "waits for a child process"}
    return words.get(wait, "waits in a system call")


def _for_file(process: Process) -> str:
    """Return in words the wait for a file, pipe or socket; "" if it is another wait."""
    wait = wait_of(process.call)
    if wait is Wait.READ:
        return "waits to read {}".format(_thing(process))
    if wait is Wait.WRITE:
        return "waits to write {}".format(_thing(process))
    fixed = {
        Wait.OPEN: "waits to open a file",
        Wait.CONNECT: "waits to connect to another host",
        Wait.ACCEPT: "waits for a connection",
        Wait.FILE_LOCK: "waits for the lock of a file",
    }
    return fixed.get(wait, "")


def _thing(process: Process) -> str:
    """Return in words the file that the system call uses."""
    target = process.target
    if len(process.call) > 1 and process.call[1] < 3:
        return ("its standard input", "its standard output", "its standard error")[process.call[1]]
    for beginning, words in (("pipe:", "a pipe"), ("socket:", "a socket"), ("anon_inode:", "an event"), ("/dev/pts/", "a terminal")):
        if target.startswith(beginning):
            return words
    return frames.shortened(target, 100) if target.startswith("/") else "a file"


def _for_child(sight: Sight) -> str:
    direct = [one for one in sight.others if one.stat.parent == sight.main.pid]
    named = ": {} ({})".format(direct[0].pid, direct[0].name) if len(direct) == 1 else ""
    return "waits for a child process" + named


def _for_loader(sight: Sight) -> str:
    """Name a loader process that does something other than waiting for work, if one is seen."""
    words = "waits for its DataLoader"
    for process in sight.others:
        if process.stat.state in "tT":
            return "{}; its loader process {} {}".format(words, process.pid, _stopped(process.stat.state == "t"))
    for process in sight.others:
        stacks = sight.child_stacks.get(process.pid)
        own = frames.of_child(stacks.main) if stacks is not None and stacks.main else ()
        frame = frames.user_frame(own) if frames.is_in(own, LOADER) else None
        if frame is not None:
            does = _of_process(process, frames.inside(own))
            return "{}; its loader process {} {} at {}".format(words, process.pid, does, frames.place(frame, sight.folder))
    return words


def _without_stack(sight: Sight, cpu: float) -> Doing:
    """Describe a worker without its Python stack, by the system call of its main thread."""
    main = sight.main
    wait = wait_of(main.call)
    if main.stat.state in "ZX":
        return _doing(UNKNOWN, "has ended")
    does = _for_child(sight) if wait is Wait.CHILD else _of_process(main, (), cpu=cpu)
    is_certain = does == STORAGE_WORDS or (wait in CERTAIN and not main.target.startswith(("socket:", "anon_inode:")))
    return _doing(OTHER if is_certain else UNKNOWN, does)
