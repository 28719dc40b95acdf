"""Read training processes from /proc. Everything that cannot be read raises Unreadable.

The pod's user may read this of its own processes. Each file is read up to a limit.
"""

import dataclasses
import os
import re
import time
import typing

from elastic_worker.gloo_deadlock.diagnosis import Snapshot, Thread

MOST_THREADS = 1024
MOST_DESCRIPTORS = 4096
LONGEST = 1 << 20
STUB_NAME = re.compile(r"for (\d+)$")
SERVER = b"elastic_worker: fork server of "
TRAFFIC = ("rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes")
SOCKET = re.compile(r"socket:\[(\d+)\]$")


PARENT, USER_TIME, CHILDREN_TIME, BEGAN = 4, 14, 17, 22
"""Numbers of fields in /proc/PID/stat, as in proc(5)."""
FAULTS = (10, 12)


class Unreadable(Exception):
    """A value cannot be read."""


@dataclasses.dataclass(frozen=True)
class Stat:
    """A process at one moment."""

    state: str
    parent: int
    began: int
    """Its start time, which differs if another process gets the same number."""
    ticks: int
    """CPU time of the process and of its children that were waited for."""
    faults: int
    """Number of page faults of the process."""


def stat(pid: int) -> Stat:
    """Return the state of a process and what it has used."""
    words = read("/proc/{}/stat".format(pid)).rpartition(")")[2].split()
    try:
        numbers = [0, 0, 0] + [int(word) for word in words[1:BEGAN]]  # so that field n is numbers[n - 1]
        ticks = sum(numbers[USER_TIME - 1 : CHILDREN_TIME])
        faults = sum(numbers[field - 1] for field in FAULTS)
        return Stat(words[0], parent=numbers[PARENT - 1], began=numbers[BEGAN - 1], ticks=ticks, faults=faults)
    except (IndexError, ValueError) as error:
        raise Unreadable("/proc/{}/stat has an unknown form: {}".format(pid, error)) from error


def traffic(pid: int) -> typing.Tuple[int, ...]:
    """Return the bytes and calls of a process's reads and writes so far."""
    counts = dict(line.split(": ") for line in read("/proc/{}/io".format(pid)).splitlines())
    return tuple(int(counts.get(name, 0)) for name in TRAFFIC)


def children(pid: int) -> typing.List[int]:
    """Return the children of all threads of a process."""
    folder = "/proc/{}/task".format(pid)
    return [int(word) for task in entries(folder, MOST_THREADS) for word in _children_of_thread(folder, task)]


def _children_of_thread(folder: str, task: str) -> typing.List[str]:
    return read("{}/{}/children".format(folder, task), may_lack=True).split()


def environment(pid: int) -> typing.Dict[str, str]:
    """Return the variables with which a process began."""
    pairs = [entry.partition("=") for entry in read("/proc/{}/environ".format(pid)).split("\0")]
    return {name: value for name, equals, value in pairs if equals}


def call(folder: str) -> typing.Tuple[int, ...]:
    """Return the number and arguments of a thread's system call; empty if it is in none."""
    words = read(folder + "/syscall").split()
    # `running`, `-1 SP PC` outside of calls, or the number, six arguments, stack and instruction pointer
    return tuple(int(word, 0) for word in words[:7]) if len(words) == 9 else ()


def descriptors(pid: int) -> typing.Dict[int, str]:
    """Return the open files of a process by their numbers."""
    folder, found = "/proc/{}/fd".format(pid), {}
    for name in entries(folder, MOST_DESCRIPTORS):
        try:
            found[int(name)] = os.readlink("{}/{}".format(folder, name))
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as error:
            raise Unreadable("{}: {}".format(folder, error)) from error
    return found


def worker_of(pid: int) -> int:
    """Return the training process of a child of the agent: the child itself, or the warm worker if the child is a stub."""
    stub = STUB_NAME.match(read("/proc/{}/comm".format(pid)).strip())
    if stub is None:
        return pid
    worker = int(stub.group(1))
    if not read("/proc/{}/cmdline".format(stat(worker).parent)).encode("latin-1").startswith(SERVER):
        raise Unreadable("process {}, which {} names as its worker, does not exist".format(worker, pid))
    return worker


def snapshot(pid: int) -> Snapshot:
    """Return the process at this moment, with all its threads."""
    folder = "/proc/{}".format(pid)
    tasks = entries(folder + "/task", MOST_THREADS)
    threads = {int(task): _thread(int(task), "{}/task/{}".format(folder, task)) for task in tasks}
    own = sum(len(_children_of_thread(folder + "/task", task)) for task in tasks)
    return Snapshot(at=time.monotonic(), threads=threads, traffic=traffic(pid), sending=_sending(pid), children=own)


def thread_status(folder: str) -> typing.Dict[str, str]:
    """Return the fields of a thread's or a process's status."""
    return dict(line.split(":\t", 1) for line in read(folder + "/status").splitlines() if ":\t" in line)


def _thread(id: int, folder: str) -> Thread:
    fields, own = thread_status(folder), call(folder)
    own = (*own[:2], *(word & 0xFFFFFFFF for word in own[2:4]), *own[4:])
    try:
        switches = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
        return Thread(id=id, name=fields["Name"], state=fields["State"][:1], switches=switches, call=own)
    except (KeyError, ValueError) as error:
        raise Unreadable("{}/status lacks {}".format(folder, error)) from error


def _sending(pid: int) -> int:
    """Return the bytes in the send queues of this process's TCP sockets."""
    matches = [SOCKET.match(target) for target in descriptors(pid).values()]
    own = {match.group(1) for match in matches if match is not None}
    total = 0
    for kind in ("tcp", "tcp6"):
        for row in [line.split() for line in read("/proc/{}/net/{}".format(pid, kind), may_lack=True).splitlines()[1:]]:
            if row[9] in own:
                total += int(row[4].partition(":")[0], 16)
    return total


def entries(folder: str, most: int) -> typing.List[str]:
    """Return the names in a folder."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise Unreadable(str(error)) from error
    if len(names) > most:
        raise Unreadable("{} has more than {} entries".format(folder, most))
    return names


def read(path: str, *, may_lack: bool = False) -> str:
    """Return the text of a file; "" if it may lack and does."""
    try:
        with open(path, "rb") as file:
            text = file.read(LONGEST)
    except (FileNotFoundError, ProcessLookupError) as error:
        if may_lack:
            return ""
        raise Unreadable(str(error)) from error
    except OSError as error:
        raise Unreadable(str(error)) from error
    if len(text) == LONGEST:
        raise Unreadable("{} is longer than {} bytes".format(path, LONGEST))
    return text.decode("latin-1")
