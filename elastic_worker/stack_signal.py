"""Let this process write its Python stacks to memory when a signal asks for them, so that a hang can be explained.

faulthandler writes them without the interpreter's lock, also while the program is inside C code. It writes to a file in memory that is in
no folder. Readers find it at /proc/PID/fd, and its name has the number of the signal. A forked process inherits the file and the handler; a
new program has neither.

The next signal asks whether the program gets on: the process answers once its main thread comes to another instruction of Python.
"""

import contextlib
import faulthandler
import fcntl
import functools
import os
import re
import signal
import sys
import threading
import typing

VARIABLE = "ELASTIC_STACK_SIGNAL"
DEFAULT = int(signal.SIGRTMIN) + 5
OFF = ("off", "no", "false", "0")
NONE = 0
"""The number in the name of the file if the variable is invalid. The file then only says that the warning was printed."""
FIRST_DESCRIPTOR = 100
"""The program's own files keep the low numbers that they would have without us."""
STACKS, TICKS, RECORDER = "stacks", "ticks", "recorder"
NAME = "elastic-{}-{}"
LINK = re.compile(r"/memfd:elastic-(stacks|ticks|recorder)-(\d{1,3}) \(deleted\)\Z")
CAUGHT, IGNORED = "SigCgt", "SigIgn"

Environment = typing.Mapping[str, str]


class BadSignal(ValueError):
    """The variable names no signal that can be used."""


def number_in(environment: Environment) -> int:
    """Return the signal that asks for stacks, or NONE if it is switched off. Raises BadSignal."""
    word = environment.get(VARIABLE, "").strip().lower()
    if not word:
        return DEFAULT
    if word in OFF:
        return NONE
    if word.isdigit() and len(word) <= 3 and signal.SIGRTMIN <= int(word) <= signal.SIGRTMAX:
        return int(word)
    least, most = int(signal.SIGRTMIN), int(signal.SIGRTMAX)
    raise BadSignal(
        "{} is {!r}, which is no real-time signal. Use a number from {} to {} (the default is {}), or off.".format(
            VARIABLE, word[:40], least, most, DEFAULT
        )
    )


def of_descriptor(target: str) -> typing.Tuple[str, int]:
    """Return the kind of our file and the number of its signal; ("", NONE) if this target of a descriptor is another file."""
    found = LINK.match(target)
    return ("", NONE) if found is None else (found.group(1), int(found.group(2)))


def numbers(status: str, kind: str) -> typing.FrozenSet[int]:
    """Return the signals in one of the sets of /proc/PID/status."""
    found = re.search(r"^{}:\s*([0-9a-fA-F]{{1,32}})$".format(kind), status, re.MULTILINE)
    mask = int(found.group(1), 16) if found else 0
    return frozenset(number for number in range(1, 129) if mask >> (number - 1) & 1)


def register(environment: Environment) -> None:
    """Begin to write stacks at the signal, unless this process does so already or handles that signal itself. Never fails."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if _is_registered():
            return
        try:
            number = number_in(environment)
        except BadSignal as error:
            make_file(STACKS, NONE)
            if environment.get("RANK", "0") == "0":
                print("elastic_worker: no stacks can be read: {}".format(error), file=sys.stderr)
            return
        if number == NONE or not hasattr(os, "memfd_create"):
            return
        with open("/proc/self/status") as file:
            status = file.read()
        used = numbers(status, CAUGHT) | numbers(status, IGNORED)
        if number not in used:
            faulthandler.register(number, file=make_file(STACKS, number), all_threads=True, chain=False)
            tick = number + 1 if number < signal.SIGRTMAX else number - 1
            if tick not in used and threading.current_thread() is threading.main_thread():
                _register_ticks(tick)


def _register_ticks(number: int) -> None:
    with contextlib.suppress(ImportError, AttributeError, MemoryError):  # a Python without ctypes, or a system that forbids its callbacks
        signal.signal(number, _ticks(make_file(TICKS, number)))


def _ticks(file: int) -> typing.Callable[..., typing.Any]:
    """Return the handler of the signal that asks whether the program gets on. It lets the interpreter's loop write to this file.

    C code may run handlers too, as regular expressions do all the time. Pending calls are run by the loop alone. The handler itself has no
    instructions of Python, because they would be enough to run the call.
    """

    def answer(nothing: typing.Any) -> int:
        with contextlib.suppress(OSError):  # the program has closed the file
            os.write(file, b".")
        return 0

    import ctypes

    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    add = ctypes.PYFUNCTYPE(ctypes.c_int, kind, ctypes.c_void_p, ctypes.c_int, ctypes.py_object)(("Py_AddPendingCall", ctypes.pythonapi))
    return functools.partial(add, kind(answer), None)


def _is_registered() -> bool:
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= FIRST_DESCRIPTOR:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                if of_descriptor(os.readlink("/proc/self/fd/" + name))[0] == STACKS:
                    return True
    return False


def make_file(kind: str, number: int) -> int:
    """Return a descriptor to which every write goes at the end, so that readers can truncate the file."""
    low = os.memfd_create(NAME.format(kind, number))
    try:
        descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
    finally:
        os.close(low)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
    return descriptor
