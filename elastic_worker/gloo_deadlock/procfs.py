"""Takes a snapshot of a training process from /proc, for diagnosis. Raises Unreadable for everything that cannot be read.

It needs only the rights that the pod's user has over its own processes. Each file is read up to a limit.
"""

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


class Unreadable(Exception):
    """A value that the snapshot needs cannot be read."""


def worker_of(pid: int) -> int:
    """The training process of a child of the agent: the child itself, or the warm worker if the child is a stub."""
    stub = STUB_NAME.match(_read("/proc/{}/comm".format(pid)).strip())
    if stub is None:
        return pid
    worker = int(stub.group(1))
    parent = _read("/proc/{}/stat".format(worker)).rpartition(")")[2].split()[1]
    if not _read("/proc/{}/cmdline".format(parent)).encode("latin-1").startswith(SERVER):
        raise Unreadable("process {}, which {} names as its worker, is none".format(worker, pid))
    return worker


def snapshot(pid: int) -> Snapshot:
    """The process at this moment, with all its threads."""
    folder = "/proc/{}".format(pid)
    tasks = _list(folder + "/task", MOST_THREADS)
    threads = {int(task): _thread(int(task), "{}/task/{}".format(folder, task)) for task in tasks}
    children = sum(len(_read("{}/task/{}/children".format(folder, task)).split()) for task in tasks)
    counts = dict(line.split(": ") for line in _read(folder + "/io").splitlines())
    traffic = tuple(int(counts.get(name, 0)) for name in TRAFFIC)
    return Snapshot(at=time.monotonic(), threads=threads, traffic=traffic, sending=_sending(folder), children=children)


def _thread(id: int, folder: str) -> Thread:
    fields = dict(line.split(":\t", 1) for line in _read(folder + "/status").splitlines() if ":\t" in line)
    words = _read(folder + "/syscall").split()
    # `running`, `-1 SP PC` outside of calls, or the number, six arguments, stack and instruction pointer
    call = tuple(int(word, 0) for word in words[:7]) if len(words) == 9 else ()
    call = (*call[:2], *(word & 0xFFFFFFFF for word in call[2:4]), *call[4:])
    try:
        switches = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
        return Thread(id=id, name=fields["Name"], state=fields["State"][:1], switches=switches, call=call)
    except (KeyError, ValueError) as error:
        raise Unreadable("{}/status lacks {}".format(folder, error)) from error


def _sending(folder: str) -> int:
    """Bytes in the send queues of this process's TCP sockets."""
    own = set()
    for name in _list(folder + "/fd", MOST_DESCRIPTORS):
        try:
            match = SOCKET.match(os.readlink("{}/fd/{}".format(folder, name)))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Unreadable("{}/fd: {}".format(folder, error)) from error
        if match is not None:
            own.add(match.group(1))
    total = 0
    for kind in ("tcp", "tcp6"):
        for row in [line.split() for line in _read("{}/net/{}".format(folder, kind), may_lack=True).splitlines()[1:]]:
            if row[9] in own:
                total += int(row[4].partition(":")[0], 16)
    return total


def _list(folder: str, most: int) -> typing.List[str]:
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise Unreadable(str(error)) from error
    if len(names) > most:
        raise Unreadable("{} has more than {} entries".format(folder, most))
    return names


def _read(path: str, *, may_lack: bool = False) -> str:
    try:
        with open(path, "rb") as file:
            text = file.read(LONGEST)
    except FileNotFoundError as error:
        if may_lack:
            return ""
        raise Unreadable(str(error)) from error
    except OSError as error:
        raise Unreadable(str(error)) from error
    if len(text) == LONGEST:
        raise Unreadable("{} is longer than {} bytes".format(path, LONGEST))
    return text.decode("latin-1")
