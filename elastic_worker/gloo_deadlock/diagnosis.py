"""Decide from two snapshots of a training process whether it hangs in torch's deadlock at the end of a gloo job.

In that deadlock the main thread holds the GIL, drops the last reference to a process group, and joins the group's thread, which waits for
the GIL. The kernel shows both: the futex of pthread_join holds the id of the joined thread, and a thread that waits for the GIL asks for
it every 5 ms. Any other observation is a doubt, in words. This module reads nothing and does not wait.
"""

import dataclasses
import typing

WAIT, WAIT_BITSET, PRIVATE, COMMAND = 0, 9, 128, 127
"""Parts of the second argument of futex: the operation, and whether the futex is private to the process."""
GROUP_THREAD = "pt_gloo_runloop"
TORCH_LOOPS = frozenset((GROUP_THREAD, "gloo_tcp_loop", "pt_tcpstore_uv", "pt_tcpstore"))
LEAST_ASKS_A_SECOND = 10.0
"""Lower limit for a thread that asks for the GIL: it asks 200 times on a quiet machine, and dozens of times with a tenth of a core."""


@dataclasses.dataclass(frozen=True)
class Calls:
    """The numbers of system calls on one architecture."""

    futex: int
    polls: typing.FrozenSet[int]


CALLS = {
    "x86_64": Calls(202, frozenset((232, 281, 441))),
    "aarch64": Calls(98, frozenset((22, 441))),
}
"""futex; epoll_wait, epoll_pwait and epoll_pwait2."""


@dataclasses.dataclass(frozen=True)
class Thread:
    """A thread. `call` has number and arguments of its system call, or is empty. `switches` counts its context switches so far."""

    id: int
    name: str
    state: str
    switches: int
    call: typing.Tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A process at one moment.

    `traffic` has the bytes and calls of its reads and writes so far, `sending` the bytes in its sockets' send queues.
    """

    at: float
    threads: typing.Mapping[int, Thread]
    traffic: typing.Tuple[int, ...]
    sending: int
    children: int


def is_at_rest(taken: Snapshot) -> bool:
    """Return whether all of torch's own threads are asleep."""
    return all(thread.state != "R" and thread.call for thread in taken.threads.values() if thread.name in TORCH_LOOPS)


def doubt(pid: int, before: Snapshot, now: Snapshot, calls: Calls) -> str:
    """Return why the process may still work or wait for something else; empty if it is certainly in the known deadlock."""
    return _doubt_of_process(before, now) or _doubt_of_main(pid, before, now, calls) or _doubt_of_others(pid, before, now, calls)


def describe(pid: int, taken: Snapshot) -> str:
    """Describe the known deadlock, thread by thread."""
    joined = taken.threads[pid].call[3]
    others = ", ".join("{} ({})".format(thread.id, thread.name) for id, thread in sorted(taken.threads.items()) if id not in (pid, joined))
    return (
        "its main thread {} holds the interpreter's lock and waits in pthread_join for thread {} ({}), which waits for that lock;"
        " the other threads, {}, are idle".format(pid, joined, taken.threads[joined].name, others or "none")
    )


def _doubt_of_process(before: Snapshot, now: Snapshot) -> str:
    if now.children:
        return "it has {} child processes".format(now.children)
    if now.sending:
        return "its sockets have {} bytes yet to send".format(now.sending)
    if before.traffic != now.traffic:
        return "it reads or writes"
    if before.threads.keys() != now.threads.keys():
        return "its threads come and go"
    for thread in now.threads.values():
        if thread.state != "S":
            return "its thread {} is in state {}".format(_name(thread), thread.state)
        if len(thread.call) < 5:
            return "its thread {} is in no system call".format(_name(thread))
    return ""


def _doubt_of_main(pid: int, before: Snapshot, now: Snapshot, calls: Calls) -> str:
    main = now.threads.get(pid)
    if main is None:
        return "its main thread has ended"
    if main != before.threads[pid]:
        return "its main thread runs now and then"
    number, _, operation, value, until = main.call[:5]
    if number != calls.futex or operation & COMMAND not in (WAIT, WAIT_BITSET):
        return "its main thread waits in system call {}".format(number)
    joined = now.threads.get(value)
    if operation & PRIVATE or until or joined is None or joined.id == pid:
        return "its main thread waits for something other than the end of a thread"
    if joined.name != GROUP_THREAD:
        return "its main thread waits for the end of thread {}".format(_name(joined))
    asks = joined.switches - before.threads[value].switches
    if not _waits(joined, calls) or not joined.call[4] or asks < LEAST_ASKS_A_SECOND * (now.at - before.at):
        return "thread {}, for whose end its main thread waits, does not ask for a lock again and again".format(_name(joined))
    return ""


def _doubt_of_others(pid: int, before: Snapshot, now: Snapshot, calls: Calls) -> str:
    joined = now.threads[pid].call[3]
    for id, thread in now.threads.items():
        if id in (pid, joined):
            continue
        is_loop = thread.name in TORCH_LOOPS and thread.call[0] in calls.polls
        # Idle pool threads (OpenMP, OpenBLAS) have the program's name. They wait for a thread of this process, without a timeout.
        is_idle = _waits(thread, calls) and not thread.call[4] and thread.switches == before.threads[id].switches
        if not (is_loop or is_idle):
            return "its thread {} may be at work".format(_name(thread))
    return ""


def _waits(thread: Thread, calls: Calls) -> bool:
    """Return whether the thread waits for another thread of its process."""
    number, operation = thread.call[0], thread.call[2]
    return number == calls.futex and bool(operation & PRIVATE) and operation & COMMAND in (WAIT, WAIT_BITSET)


def _name(thread: Thread) -> str:
    return "{} ({})".format(thread.id, thread.name)
