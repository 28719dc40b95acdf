"""Pass on the stderr of this agent's workers, and keep its end, so that the agent can say how a worker failed.

torch asks its LogsSpecs where each worker's stderr goes. If it names no file, the worker gets a pipe of ours, and a thread for each pipe
copies it to the agent's own stderr. With --redirects, --tee or another LogsSpecs, this module reads torch's file instead, or nothing.
"""

import array
import atexit
import fcntl
import functools
import os
import select
import termios
import threading
import time
import typing

from elastic_worker.agent.first_failure import RECENT_S
from elastic_worker.agent.last_words import goes_on

KEPT_BYTES = 4096
MOST_ERROR = 4096
"""Bytes from the beginning of the newest traceback, whose message may be longer than KEPT_BYTES."""
CHUNK_BYTES = 65536
SETTLE_S = 0.25
"""Seconds. Together with workers.PEERS_WAIT_S, shorter than torch's thread waits for the report of a failure (workers.REPORT_WAIT_S)."""
AT_EXIT_S = 2.0
POLL_S = 0.005
TRACEBACK = b"Traceback (most recent call last)"
STDERR = 2


class PipedStderr:
    """The stderr of a worker, through a pipe. Its end is kept."""

    def __init__(self, rank: int, target: int = STDERR) -> None:
        self.rank = rank
        self._target = target
        self._tail = b""
        self._error = b""
        self._error_at = None  # type: typing.Optional[float]
        self._is_busy = False
        self._is_over = False
        self._lock = threading.Lock()
        self._reads, self._writes = os.pipe()
        self.path = "/proc/self/fd/{}".format(self._writes)
        self.inode = os.fstat(self._reads).st_ino
        os.close(os.open(self.path, os.O_WRONLY))  # without /proc, fail here and not in torch

    def begin(self) -> None:
        threading.Thread(target=self._copy, name="elastic-stderr-{}".format(self.rank), daemon=True).start()

    def close_writer(self) -> None:
        """Close the agent's own end, because no other worker will use it. The pipe ends with the last process that holds it."""
        if self._writes >= 0:
            os.close(self._writes)
            self._writes = -1

    def tail(self, within_s: float = SETTLE_S) -> str:
        """Return the end of the output, including the bytes that are still in the pipe now."""
        self.settle(within_s)
        with self._lock:
            is_recent = self._error_at is not None and time.monotonic() - self._error_at <= RECENT_S
            error = self._error.decode(errors="replace")
            if not is_recent or TRACEBACK in self._tail or not error or not goes_on(error):
                return _text(self._tail)
            return "{}\n{}".format(error, _text(self._tail))

    @property
    def error_at(self) -> typing.Optional[float]:
        """The time at which the newest traceback began, or None if there is no traceback."""
        with self._lock:
            return self._error_at

    def settle(self, within_s: float) -> None:
        """Wait until everything in the pipe has been passed on."""
        deadline = time.monotonic() + within_s
        while not self._is_settled() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _is_settled(self) -> bool:
        with self._lock:
            if self._is_over:
                return True
            waiting = array.array("i", [0])
            fcntl.ioctl(self._reads, termios.FIONREAD, waiting)
            return waiting[0] == 0 and not self._is_busy

    def _copy(self) -> None:
        readable = select.poll()
        readable.register(self._reads, select.POLLIN)
        while True:
            readable.poll()
            with self._lock:
                chunk = os.read(self._reads, CHUNK_BYTES)
                self._see_error(self._tail[-len(TRACEBACK) + 1 :] + chunk, chunk)
                self._tail = (self._tail + chunk)[-KEPT_BYTES:]
                self._is_busy = bool(chunk)
                if not chunk:
                    self._is_over = True
                    os.close(self._reads)
                    return
            _write(self._target, chunk)
            with self._lock:
                self._is_busy = False

    def _see_error(self, seen: bytes, chunk: bytes) -> None:
        """Keep the beginning of the newest traceback. seen: the chunk behind the bytes before it."""
        at = seen.rfind(TRACEBACK)
        if at >= 0:
            self._error, self._error_at = seen[at : at + MOST_ERROR], time.monotonic()
        elif self._error:
            self._error += chunk[: max(0, MOST_ERROR - len(self._error))]


class StderrFile:
    """A worker's stderr that torch writes to a file."""

    def __init__(self, rank: int, path: str) -> None:
        self.rank = rank
        self._path = path

    def tail(self, within_s: float = 0) -> str:
        try:
            with open(self._path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - KEPT_BYTES))
                return _text(file.read(KEPT_BYTES))
        except OSError:
            return ""

    @property
    def error_at(self) -> typing.Optional[float]:
        """The time at which the file was written last, if it ends with a traceback, otherwise None."""
        try:
            age_s = time.time() - os.stat(self._path).st_mtime
        except OSError:
            return None
        return time.monotonic() - max(0.0, age_s) if TRACEBACK.decode() in self.tail() else None


class WorkerStderr:
    """The stderr of each worker that this agent runs now."""

    def __init__(self) -> None:
        self._sources = {}  # type: typing.Dict[int, typing.Union[PipedStderr, StderrFile]]
        self._pids = {}  # type: typing.Dict[int, int]

    def destinations(self, envs: typing.Mapping[int, typing.Mapping[str, str]], files: typing.Dict[int, str]) -> typing.Dict[int, str]:
        """Return where the stderr of each local rank goes. `files` are the files that torch chose."""
        self._end_former()
        chosen = dict(files)
        for local, env in envs.items():
            rank = int(env.get("RANK", local))
            if files.get(local):
                self._sources[local] = StderrFile(rank, files[local])
                continue
            pipe = _pipe(rank)
            if pipe is not None:
                self._sources[local], chosen[local] = pipe, pipe.path
        return chosen

    def note(self, pids: typing.Iterable[int]) -> None:
        """Find out which of these processes writes to which pipe, while they live."""
        inodes = {source.inode: local for local, source in self._sources.items() if isinstance(source, PipedStderr)}
        for pid in pids:
            if pid in self._pids or len(self._sources) < 2:
                continue
            try:
                inode = os.stat("/proc/{}/fd/2".format(pid)).st_ino
            except OSError:
                continue
            if inode in inodes:
                self._pids[pid] = inodes[inode]

    def of(self, pid: int) -> "typing.Union[PipedStderr, StderrFile, None]":
        """Return the stderr of this worker, or None if it is unknown."""
        local = next(iter(self._sources)) if len(self._sources) == 1 else self._pids.get(pid)
        return None if local is None else self._sources.get(local)

    def settle(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        for source in list(self._sources.values()):
            if isinstance(source, PipedStderr):
                source.settle(max(0.0, deadline - time.monotonic()))

    def _end_former(self) -> None:
        for source in self._sources.values():
            if isinstance(source, PipedStderr):
                source.close_writer()
        self._sources, self._pids = {}, {}


def of_this_process() -> typing.Optional[WorkerStderr]:
    """Make torch ask us where the stderr of workers goes, once per process. Return None if this torch has no LogsSpecs."""
    try:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    except ImportError:
        return None
    asked = DefaultLogsSpecs.reify
    known = getattr(asked, "worker_stderr", None)
    if isinstance(known, WorkerStderr):
        return known
    stderr = WorkerStderr()

    @functools.wraps(asked)
    def reify(self: typing.Any, envs: typing.Dict[int, typing.Dict[str, str]]) -> typing.Any:
        destination = asked(self, envs)
        destination.stderrs = stderr.destinations(envs, destination.stderrs)
        return destination

    reify.worker_stderr = stderr  # type: ignore[attr-defined]
    DefaultLogsSpecs.reify = reify  # type: ignore[method-assign]
    atexit.register(stderr.settle, AT_EXIT_S)
    return stderr


def _pipe(rank: int) -> typing.Optional[PipedStderr]:
    """Make a pipe. Return None if stderr is a terminal, because a worker may look for that."""
    if os.isatty(STDERR):
        return None
    try:
        pipe = PipedStderr(rank)
    except OSError:
        return None
    pipe.begin()
    return pipe


def _write(target: int, chunk: bytes) -> None:
    """Write the whole chunk. If an error prevents that, the rest is lost, because workers must not wait for it."""
    while chunk:
        try:
            chunk = chunk[os.write(target, chunk) :]
        except BlockingIOError:
            writable = select.poll()
            writable.register(target, select.POLLOUT)
            writable.poll()
        except OSError:
            return


def _text(tail: bytes) -> str:
    text = tail.decode(errors="replace")
    return text.partition("\n")[2] or text if len(tail) == KEPT_BYTES else text
