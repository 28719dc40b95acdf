"""Know the system calls in which a thread may wait, by their numbers on each architecture."""

import enum
import platform
import typing


class Wait(enum.Enum):
    """The things for which a system call waits."""

    NOTHING = "nothing"
    """The thread is in no system call, or it cannot be read which one."""
    TIME = "time"
    READ = "read"
    WRITE = "write"
    OPEN = "open"
    CONNECT = "connect"
    ACCEPT = "accept"
    STORAGE = "storage"
    FILE_LOCK = "file lock"
    CHILD = "child"
    EVENT = "event"
    THREAD = "thread"
    OTHER = "other"


_X86_64 = {
    Wait.TIME: (35, 230),
    Wait.READ: (0, 17, 19, 45, 47, 295, 299),
    Wait.WRITE: (1, 18, 20, 40, 44, 46, 296, 307),
    Wait.OPEN: (2, 257, 437),
    Wait.CONNECT: (42,),
    Wait.ACCEPT: (43, 288),
    Wait.STORAGE: (26, 74, 75, 162, 277, 306, 326),
    Wait.FILE_LOCK: (73,),
    Wait.CHILD: (61, 247),
    Wait.EVENT: (7, 23, 232, 270, 271, 281, 441),
    Wait.THREAD: (202, 449),
}
_AARCH64 = {
    Wait.TIME: (101, 115),
    Wait.READ: (63, 65, 67, 69, 207, 212, 243),
    Wait.WRITE: (64, 66, 68, 70, 71, 206, 211, 269),
    Wait.OPEN: (56, 437),
    Wait.CONNECT: (203,),
    Wait.ACCEPT: (202, 242),
    Wait.STORAGE: (81, 82, 83, 84, 227, 267, 285),
    Wait.FILE_LOCK: (32,),
    Wait.CHILD: (95, 260),
    Wait.EVENT: (22, 72, 73, 441),
    Wait.THREAD: (98, 449),
}
_SELECT = {"x86_64": (23, 270), "aarch64": (72,)}
"""select and pselect6; without descriptors they only wait for time, and Python before 3.11 sleeps with them."""
_KNOWN = {"x86_64": _X86_64, "aarch64": _AARCH64}


def wait_of(call: typing.Sequence[int], machine: typing.Optional[str] = None) -> Wait:
    """Return what this system call, given by its number and arguments, waits for."""
    if not call:
        return Wait.NOTHING
    machine = machine or platform.machine()
    if call[0] in _SELECT.get(machine, ()) and call[1:2] in ([0], (0,)):
        return Wait.TIME
    for wait, numbers in _KNOWN.get(machine, {}).items():
        if call[0] in numbers:
            return wait
    return Wait.OTHER
