"""Take a sight of a worker: its Python process and all its child processes, as /proc shows them at one moment."""

import contextlib
import dataclasses
import os
import re
import time
import typing

from elastic_worker.gloo_deadlock import procfs
from elastic_worker.looking import dumping, sockets, stopped
from elastic_worker.looking.stacks import Stacks

MOST_PROCESSES = 256
MOST_CHILD_STACKS = 16
"""Child processes whose stacks are read at one look."""
CHILD_STACKS_WITHIN_S = 4.0
MOST_TRIES = 5
SILENT = "tTZX"
"""States of processes that no signal moves."""
LEAST_AGE_S = 1.0
"""A younger child may be about to begin another program, in which the signal would kill it."""
PYTHON = re.compile(r"python[0-9.]*\Z")
NCCL_THREADS = ("pt_nccl_watchdg", "pt_nccl_heartbt")
GROUP_THREADS = ("pt_gloo_runloop", "gloo_tcp_loop", *NCCL_THREADS)
"""Threads of process groups. Their names are cut to 15 letters."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Process:
    """One process. A field is empty if it cannot be read."""

    pid: int
    name: str
    stat: procfs.Stat
    call: typing.Tuple[int, ...] = ()
    """The system call in which its main thread is."""
    target: str = ""
    """The file that this call uses."""
    traffic: typing.Tuple[int, ...] = ()
    """Bytes and calls of the reads and writes of the process so far."""
    network: int = 0
    """Bytes that its TCP connections have carried."""


@dataclasses.dataclass(frozen=True)
class Sight:
    """A worker at one moment."""

    at: float
    main: Process
    """Its Python process."""
    others: typing.Tuple[Process, ...]
    """All other processes of the worker."""
    is_held: bool
    """Whether a debugger or a frozen cgroup holds the main process."""
    folder: str
    """Its working folder."""
    group_threads: typing.FrozenSet[str]
    """Names of its threads that belong to process groups."""
    switches: int
    """Number of times that its main thread has begun to wait."""
    answers: int = 0
    """Number of times that it has answered whether it gets on, each time with one byte."""
    stacks: typing.Optional[Stacks] = None
    """Its Python stacks; None unless they were requested and could be read."""
    child_stacks: typing.Mapping[int, Stacks] = dataclasses.field(default_factory=dict)
    """Python stacks of other processes by their pids."""
    below_python: str = ""
    """Native functions. Only complete looks have them."""
    recorder: str = ""
    """Content of torch's flight recorder. Only complete looks have it."""

    @property
    def cpu_s(self) -> float:
        """Return the CPU time of all processes so far."""
        return sum(one.stat.ticks for one in (self.main, *self.others)) / TICKS

    @property
    def traffic(self) -> typing.Dict[typing.Tuple[int, int], typing.Tuple[int, ...]]:
        """Return the reads and writes of all processes so far, without the answers to our own questions: they may come after a look."""
        found = {(one.pid, one.stat.began): one.traffic for one in (self.main, *self.others)}
        if self.main.traffic:
            own = {"wchar": self.answers, "syscw": self.answers}
            counts = zip(procfs.TRAFFIC, self.main.traffic)
            found[self.main.pid, self.main.stat.began] = tuple(count - own.get(name, 0) for name, count in counts)
        return found

    @property
    def network(self) -> int:
        """Return the bytes that the TCP connections of all processes have carried."""
        return sum(one.network for one in (self.main, *self.others))


def take(pid: int) -> Sight:
    """Return the facts about the worker that a child of the agent is or stands for, without stacks. Raises procfs.Unreadable."""
    processes = _tree(procfs.worker_of(pid))
    main = next((one for one in processes if _is_python(one)), processes[0])
    folder = "/proc/{}".format(main.pid)
    seen = stopped.sight(main.pid)
    return Sight(
        at=time.monotonic(),
        main=main,
        others=tuple(one for one in processes if one is not main),
        is_held=main.stat.state == "t" or (seen is not None and seen.is_held),
        folder=_link(folder + "/cwd"),
        group_threads=_group_threads(folder),
        switches=_switches(main.pid),
        answers=dumping.answers(main.pid),
    )


def with_stacks(sight: Sight) -> Sight:
    """Return the sight with the stacks of the main process. A stopped process could not answer before it goes on, so it is not asked."""
    main = sight.main
    if main.stat.state in SILENT:
        return sight
    return dataclasses.replace(sight, stacks=dumping.of_process(main.pid, main.stat.began) or dumping.with_py_spy(main.pid))


def with_child_stacks(sight: Sight) -> Sight:
    """Return the sight with the stacks of child processes, as far as they write them themselves."""
    deadline = time.monotonic() + CHILD_STACKS_WITHIN_S
    found = {}  # type: typing.Dict[int, Stacks]
    for child in sight.others:
        if len(found) >= MOST_CHILD_STACKS or time.monotonic() > deadline:
            break
        if child.stat.state not in SILENT and _age_s(child) >= LEAST_AGE_S:
            stacks = dumping.of_process(child.pid, child.stat.began)
            if stacks is not None:
                found[child.pid] = stacks
    return dataclasses.replace(sight, child_stacks=found)


def measured_again(sight: Sight) -> Sight:
    """Return the sight with the present counts of its processes. Reading stacks makes a process write, and that is no output of its own."""
    others = tuple(_again(one) for one in sight.others)
    answers = dumping.answers(sight.main.pid)
    for _ in range(MOST_TRIES):
        main, before, answers = _again(sight.main), answers, dumping.answers(sight.main.pid)
        if answers == before:
            break  # no answer came between the two counts, which would look like output at the next look
    return dataclasses.replace(sight, main=main, others=others, switches=_switches(main.pid), answers=answers)


def _again(process: Process) -> Process:
    try:
        stat = procfs.stat(process.pid)
        if stat.began != process.stat.began:
            return process
        return dataclasses.replace(process, stat=stat, traffic=_traffic(process.pid))
    except procfs.Unreadable:
        return process


def _tree(root: int) -> typing.List[Process]:
    """Return a process and all below it; the nearest come first."""
    carried = sockets.carried()
    found = [_process(root, carried)]
    for process in found:
        try:
            pids = procfs.children(process.pid)
        except procfs.Unreadable:  # it has ended
            continue
        for pid in pids[: MOST_PROCESSES - len(found)]:
            with contextlib.suppress(procfs.Unreadable):
                found.append(_process(pid, carried))
    return found


def _process(pid: int, carried: sockets.Carried) -> Process:
    folder = "/proc/{}".format(pid)
    name = procfs.read(folder + "/comm").strip()
    call = ()  # type: typing.Tuple[int, ...]
    with contextlib.suppress(procfs.Unreadable):  # Yama may forbid it
        call = procfs.call(folder)
    target = _link("{}/fd/{}".format(folder, call[1])) if len(call) > 1 and call[1] < procfs.MOST_DESCRIPTORS else ""
    return Process(pid, name, procfs.stat(pid), call, target, _traffic(pid), sockets.of_process(pid, carried))


def _traffic(pid: int) -> typing.Tuple[int, ...]:
    try:
        return procfs.traffic(pid)
    except (procfs.Unreadable, ValueError):
        return ()


def _is_python(process: Process) -> bool:
    """Return whether a process runs a Python program. A worker may be a shell script that starts one."""
    program = os.path.basename(_link("/proc/{}/exe".format(process.pid)))
    return PYTHON.match(program) is not None or dumping.writes_stacks(process.pid)


def _group_threads(folder: str) -> typing.FrozenSet[str]:
    try:
        tasks = procfs.entries(folder + "/task", procfs.MOST_THREADS)
        names = {procfs.read("{}/task/{}/comm".format(folder, task), may_lack=True).strip() for task in tasks}
    except procfs.Unreadable:
        return frozenset()
    return frozenset(names.intersection(GROUP_THREADS))


def _switches(pid: int) -> int:
    try:
        return int(procfs.thread_status("/proc/{}".format(pid)).get("voluntary_ctxt_switches", 0))
    except procfs.Unreadable:
        return 0


def _age_s(process: Process) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.stat.began / TICKS


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
