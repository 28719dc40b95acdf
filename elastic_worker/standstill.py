"""Decides, from two looks at a training process, whether it stands still for good in torch's deadlock at the end of a gloo job.

There the main thread drops the last reference to a process group with the interpreter's lock held and waits for the group's thread to
end, while that thread asks for the lock. The kernel shows both: pthread_join waits for the number of the thread that it joins, and a thread
that wants the lock asks for it every 5 ms. Whatever else is seen is a doubt, in words. Nothing here reads or waits.
"""

import dataclasses
import typing

WAIT, WAIT_BITSET, PRIVATE, COMMAND = 0, 9, 128, 127
"""Of the second argument of futex: what it does, and whether other processes share the word."""
GROUP_THREAD = "pt_gloo_runloop"
TORCH_LOOPS = frozenset((GROUP_THREAD, "gloo_tcp_loop", "pt_tcpstore_uv", "pt_tcpstore"))
LEAST_ASKS_A_SECOND = 10.0
"""Of a thread that wants the interpreter's lock: 200 on a quiet machine, and still dozens where it gets a tenth of a core."""


@dataclasses.dataclass(frozen=True)
class Calls:
    """The numbers of system calls on this machine."""

    futex: int
    polls: typing.FrozenSet[int]


CALLS = {
    "x86_64": Calls(202, frozenset((232, 281, 441))),
    "aarch64": Calls(98, frozenset((22, 441))),
}
"""futex; epoll_wait, epoll_pwait and epoll_pwait2."""


@dataclasses.dataclass(frozen=True)
class Thread:
    """One thread: what it waits in (the call's number and arguments; empty where it is in none), and how often it has been off a core."""

    id: int
    name: str
    state: str
    switches: int
    call: typing.Tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Look:
    """A process at one moment. traffic: bytes and calls of reads and writes so far; sending: bytes in its sockets' queues."""

    at: float
    threads: typing.Mapping[int, Thread]
    traffic: typing.Tuple[int, ...]
    sending: int
    children: int


def is_at_rest(look: Look) -> bool:
    """Whether none of torch's own threads is awake, as they are for moments."""
    return all(thread.state != "R" and thread.call for thread in look.threads.values() if thread.name in TORCH_LOOPS)


def doubt(pid: int, before: Look, now: Look, calls: Calls) -> str:
    """Why it may still be at work, or in another wait than the known one; empty where it certainly stands in that one."""
    return _doubt_of_process(before, now) or _doubt_of_main(pid, before, now, calls) or _doubt_of_others(pid, before, now, calls)


def told(pid: int, look: Look) -> str:
    """The known wait in words, thread by thread."""
    joined = look.threads[pid].call[3]
    others = ", ".join("{} ({})".format(thread.id, thread.name) for id, thread in sorted(look.threads.items()) if id not in (pid, joined))
    return (
        "its main thread {} holds the interpreter's lock and waits in pthread_join for thread {} ({}), which waits for that lock;"
        " the other threads, {}, are idle".format(pid, joined, look.threads[joined].name, others or "none")
    )


def _doubt_of_process(before: Look, now: Look) -> str:
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


def _doubt_of_main(pid: int, before: Look, now: Look, calls: Calls) -> str:
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


def _doubt_of_others(pid: int, before: Look, now: Look, calls: Calls) -> str:
    joined = now.threads[pid].call[3]
    for id, thread in now.threads.items():
        if id in (pid, joined):
            continue
        is_loop = thread.name in TORCH_LOOPS and thread.call[0] in calls.polls
        # Idle threads of pools (OpenMP, OpenBLAS) have the program's name: they wait for a thread of this process, without a limit.
        is_idle = _waits(thread, calls) and not thread.call[4] and thread.switches == before.threads[id].switches
        if not (is_loop or is_idle):
            return "its thread {} may be at work".format(_name(thread))
    return ""


def _waits(thread: Thread, calls: Calls) -> bool:
    """For another thread of its process."""
    number, operation = thread.call[0], thread.call[2]
    return number == calls.futex and bool(operation & PRIVATE) and operation & COMMAND in (WAIT, WAIT_BITSET)


def _name(thread: Thread) -> str:
    return "{} ({})".format(thread.id, thread.name)
