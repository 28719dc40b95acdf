"""Passes on what this agent's workers write to stderr, and keeps the end of it, so that the agent can say how a worker failed.

torch asks its LogsSpecs where each worker's stderr goes. Where it names no file, the worker gets a pipe of ours; a thread per pipe copies
it to the agent's own stderr. With --redirects, --tee or another LogsSpecs, torch's file is read instead, or nothing.
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

KEPT_BYTES = 4096
CHUNK_BYTES = 65536
SETTLE_S = 0.25
"""Less than torch's thread waits for the report of a failure (workers.REPORT_WAIT_S), with workers.PEERS_WAIT_S."""
AT_EXIT_S = 2.0
POLL_S = 0.005
TRACEBACK = b"Traceback (most recent call last)"
STDERR = 2


class PipedStderr:
    """One worker's stderr, of which the end is kept."""

    def __init__(self, rank: int, target: int = STDERR) -> None:
        self.rank = rank
        self._target = target
        self._tail = b""
        self._error_at = None  # type: typing.Optional[float]
        self._is_busy = False
        self._is_over = False
        self._lock = threading.Lock()
        self._reads, self._writes = os.pipe()
        self.path = "/proc/self/fd/{}".format(self._writes)
        self.inode = os.fstat(self._reads).st_ino
        os.close(os.open(self.path, os.O_WRONLY))  # fails here rather than in torch where /proc is missing

    def begin(self) -> None:
        threading.Thread(target=self._copy, name="elastic-stderr-{}".format(self.rank), daemon=True).start()

    def close_writer(self) -> None:
        """Close the agent's own end, because it starts no other worker; the pipe ends with the last process that holds it."""
        if self._writes >= 0:
            os.close(self._writes)
            self._writes = -1

    def tail(self, within_s: float = SETTLE_S) -> str:
        """The last of what was written, also what the pipe still held when it was asked."""
        self.settle(within_s)
        with self._lock:
            return _text(self._tail)

    @property
    def error_at(self) -> typing.Optional[float]:
        """When the newest traceback began; None without."""
        with self._lock:
            return self._error_at

    def settle(self, within_s: float) -> None:
        """Wait until all that is in the pipe has been passed on."""
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
                if TRACEBACK in self._tail[-len(TRACEBACK) + 1 :] + chunk:
                    self._error_at = time.monotonic()
                self._tail = (self._tail + chunk)[-KEPT_BYTES:]
                self._is_busy = bool(chunk)
                if not chunk:
                    self._is_over = True
                    os.close(self._reads)
                    return
            _write(self._target, chunk)
            with self._lock:
                self._is_busy = False


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
        """When the file was written last, if it ends with a traceback."""
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
        """Where the stderr of each local rank goes; `files` are torch's."""
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
        """See which of these processes writes to which pipe, while they live."""
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
        """The stderr of this worker; None where it is unknown."""
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
    """Makes torch ask us where the stderr of workers goes, once per process. None where this torch does not ask anybody."""
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
    """None where a worker would notice: it may look whether its stderr is a terminal."""
    if os.isatty(STDERR):
        return None
    try:
        pipe = PipedStderr(rank)
    except OSError:
        return None
    pipe.begin()
    return pipe


def _write(target: int, chunk: bytes) -> None:
    """Write all of it. What cannot be written is lost, as it would be to a worker; it must not wait for that."""
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
