"""Get the Python stacks of another process.

A process of ours writes them into memory when it gets a signal (elastic_worker.stack_signal). The signal would kill a process that does not
handle it, so it is sent only to a process that has the file and handles the signal. For all others there may be py-spy.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import typing

from elastic_worker import stack_signal
from elastic_worker.gloo_deadlock import procfs
from elastic_worker.looking import stacks

WITHIN_S = 3.0
"""Seconds that a process may take to write its stacks. A process in a wait that no signal interrupts writes none."""
PAUSE_S = 0.005
LONGEST = 1 << 20
PY_SPY_S = 5.0
RECORDER_S = 3.0
"""Seconds that a process may take to say what torch's flight recorder knows."""
LONGEST_RECORDER = 8192
LONGEST_NATIVE = 32 * 1024
PENDING = ("SigPnd", "ShdPnd")
BLOCKED = "SigBlk"


def of_process(pid: int, began: int) -> typing.Optional[stacks.Stacks]:
    """Return the stacks of the process that began at this time, if it writes them itself."""
    try:
        found = _file_of(pid, stack_signal.STACKS)
        if found is None:
            return None
        descriptor, number = found
        with _opened(pid, descriptor) as file, _alone(file):
            text = _ask(pid, began, number=number, file=file)
    except (OSError, procfs.Unreadable):
        return None
    return stacks.of_faulthandler(text) if text else None


def writes_stacks(pid: int) -> bool:
    """Return whether a process has the file into which it writes its stacks."""
    try:
        return _file_of(pid, stack_signal.STACKS) is not None
    except procfs.Unreadable:
        return False


def ticks(pid: int, began: int) -> typing.Optional[int]:
    """Return how often a process has answered this question so far, and ask it again; None if it does not answer such questions.

    A program answers once its main thread goes on to another instruction of Python, so the answer is seen at the next look.
    """
    try:
        found = _file_of(pid, stack_signal.TICKS)
        if found is None:
            return None
        descriptor, number = found
        with _opened(pid, descriptor) as file:
            size = os.fstat(file).st_size
            status = procfs.read("/proc/{}/status".format(pid))
            if _is_safe(status, number):
                _send(pid, began, number)
            return size
    except (OSError, procfs.Unreadable):
        return None


def answers(pid: int) -> int:
    """Return how often a process has answered so far; 0 if it does not answer."""
    try:
        found = _file_of(pid, stack_signal.TICKS)
        return 0 if found is None else os.stat("/proc/{}/fd/{}".format(pid, found[0])).st_size
    except (OSError, procfs.Unreadable):
        return 0


def with_py_spy(pid: int) -> typing.Optional[stacks.Stacks]:
    """Return the stacks that py-spy finds, if it is installed and may look at the process."""
    for options in (["--nonblocking"], []):
        found = stacks.of_py_spy(_py_spy(pid, "--json", *options))
        if found is not None:
            return found
    return None


def below_python(pid: int) -> str:
    """Return in which functions below Python a process is, as far as this can be read.

    py-spy finds all native frames, for which it stops the process for up to a second. Without it, the kernel names one function.
    """
    text = _py_spy(pid, "--native").rstrip("\n")
    if text:
        return "Native frames, found by py-spy:\n{}".format(text[:LONGEST_NATIVE])
    try:
        function = procfs.read("/proc/{}/wchan".format(pid)).strip("\0\n ")
    except procfs.Unreadable:
        return ""
    return "It waits in the function {} of the kernel.".format(function) if function not in ("", "0") else ""


def _py_spy(pid: int, *options: str) -> str:
    """Return the output of py-spy; "" if it is not installed, may not look at the process, or takes too long."""
    program = shutil.which("py-spy")
    if program is None:
        return ""
    with tempfile.TemporaryFile() as file:
        try:
            command = [program, "dump", *options, "--pid", str(pid)]
            ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL, timeout=PY_SPY_S)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        file.seek(0)
        return file.read(LONGEST).decode(errors="replace") if ended.returncode == 0 else ""


def of_recorder(pid: int) -> str:
    """Return what a process says about torch's flight recorder; "" if it does not answer such questions, or not in time."""
    try:
        found = _file_of(pid, stack_signal.RECORDER)
        if found is None:
            return ""
        descriptor, pipe = found
        with _opened(pid, descriptor) as file, _alone(file):
            os.ftruncate(file, 0)
            _wake("/proc/{}/fd/{}".format(pid, pipe))
            deadline = time.monotonic() + RECORDER_S
            while time.monotonic() < deadline:
                time.sleep(PAUSE_S)
                if os.fstat(file).st_size:
                    return os.pread(file, LONGEST_RECORDER, 0).decode(errors="replace").rstrip("\n")
    except (OSError, procfs.Unreadable):
        return ""
    return "torch's flight recorder does not answer, because the interpreter is busy"


def _wake(path: str) -> None:
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        raise OSError("it is no pipe")
    pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(pipe, b".")
    finally:
        os.close(pipe)


def _file_of(pid: int, kind: str) -> typing.Optional[typing.Tuple[int, int]]:
    """Return the descriptor of our file of this kind in a process, and the number of its signal."""
    for descriptor, target in procfs.descriptors(pid).items():
        found, number = stack_signal.of_descriptor(target)
        if found == kind and number != stack_signal.NONE:
            return descriptor, number
    return None


@contextlib.contextmanager
def _opened(pid: int, descriptor: int) -> typing.Iterator[int]:
    file = os.open("/proc/{}/fd/{}".format(pid, descriptor), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError("it is no file in memory")
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def _alone(file: int) -> typing.Iterator[None]:
    """Let other readers wait: several processes may write to one file, and each dump must be read alone. Closing the file ends this."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)
    yield


def _ask(pid: int, began: int, *, number: int, file: int) -> str:
    """Send the signal and return the dump; "" if none comes in time."""
    folder = "/proc/{}".format(pid)
    blocked_before = _threads_with_blocked(folder, number)
    if not _is_safe(procfs.read(folder + "/status"), number):
        return ""
    os.ftruncate(file, 0)
    if not _send(pid, began, number):
        return ""
    deadline, size = time.monotonic() + WITHIN_S, 0
    while time.monotonic() < deadline:
        time.sleep(PAUSE_S)
        before, size = size, os.fstat(file).st_size
        # The kernel blocks the signal in the thread that writes the dump until the dump is complete.
        if not size or size != before or _is_pending(procfs.read(folder + "/status"), number):
            continue
        if _threads_with_blocked(folder, number) <= blocked_before:
            return os.pread(file, LONGEST, 0).decode(errors="replace")
    return ""


def _is_safe(status: str, number: int) -> bool:
    """Return whether a process with this /proc/PID/status handles the signal, and its main thread would get it now."""
    is_handled = number in stack_signal.numbers(status, stack_signal.CAUGHT)
    return is_handled and number not in stack_signal.numbers(status, BLOCKED) and not _is_pending(status, number)


def _send(pid: int, began: int, number: int) -> bool:
    """Signal the process that began at this time, and no later one with its number."""
    try:
        process = os.pidfd_open(pid)
    except (OSError, AttributeError):  # an old kernel, or a container that forbids it
        if procfs.stat(pid).began == began:
            os.kill(pid, number)
            return True
        return False
    try:
        if procfs.stat(pid).began != began:
            return False
        signal.pidfd_send_signal(process, number)
        return True
    finally:
        os.close(process)


def _is_pending(status: str, number: int) -> bool:
    return any(number in stack_signal.numbers(status, kind) for kind in PENDING)


def _threads_with_blocked(folder: str, number: int) -> typing.Set[str]:
    """Return the threads that block the signal."""
    found = set()
    for task in procfs.entries(folder + "/task", procfs.MOST_THREADS):
        status = procfs.read("{}/task/{}/status".format(folder, task), may_lack=True)
        if number in stack_signal.numbers(status, BLOCKED):
            found.add(task)
    return found
