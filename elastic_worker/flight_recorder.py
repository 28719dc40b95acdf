"""Let this process say what torch's flight recorder knows about its collective operations, if the user has enabled the recorder.

A thread sleeps until somebody writes to its pipe, and then writes a few lines to a file in memory. Both are found by the name of the file,
which has the number of the pipe. The thread asks torch only for operations that have not completed, so that an answer is short. It cannot
answer while the program is inside C code that holds the interpreter's lock.
"""

import contextlib
import fcntl
import json
import os
import sys
import threading
import time
import typing

from elastic_worker import stack_signal

VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
MODULE = "torch._C._distributed_c10d"
DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""Functions of torch: the recorder of NCCL, and the recorder of all other backends. A build has none, one or both."""
NAME = "elastic-recorder"
MOST_BYTES = 4 * 1024 * 1024
MOST_GROUPS, MOST_OPERATIONS = 8, 3
LONGEST = 300
NOTHING = "torch's flight recorder knows no process group"

Environment = typing.Mapping[str, str]


def is_enabled(environment: Environment) -> bool:
    """Return whether the user has enabled torch's flight recorder."""
    sizes = [environment.get(name, "") for name in VARIABLES]
    return any(size.isdigit() and int(size[:9]) > 0 for size in sizes)


def serve(environment: Environment) -> None:
    """Begin to answer, unless this process does so already. Never fails."""
    if not is_enabled(environment) or any(thread.name == NAME for thread in threading.enumerate()):
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
        low, wake = os.pipe()
        os.set_blocking(wake, False)
        pipe = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, stack_signal.FIRST_DESCRIPTOR)
        os.close(low)
        file = stack_signal.make_file(stack_signal.RECORDER, pipe)
        threading.Thread(target=_answer, args=(pipe, file), name=NAME, daemon=True).start()


def _answer(pipe: int, file: int) -> None:
    with contextlib.suppress(OSError):  # the program has closed a file
        while os.read(pipe, 64):
            os.write(file, (told() + "\n").encode())


def told() -> str:
    """Return in a few lines what the recorders of this process know. Never fails."""
    module = sys.modules.get(MODULE)
    lines = []  # type: typing.List[str]
    for dump in (getattr(module, name, None) for name in DUMPS):
        if dump is not None:
            try:
                lines += summary(dump(True, True), now_ns=time.time_ns())
            except Exception as error:  # torch's own, or a dump in another form
                lines.append("torch's flight recorder cannot be read: {}".format(error)[:LONGEST])
    return "\n".join(lines) or NOTHING


def summary(dump: bytes, *, now_ns: int) -> typing.List[str]:
    """Return a line for each process group: the last operations that were begun and completed, and those that have not completed."""
    if len(dump) > MOST_BYTES:
        return ["torch's flight recorder has {} bytes, which are too many".format(len(dump))]
    trace = json.loads(dump)
    under_way = {}  # type: typing.Dict[str, typing.List[str]]
    names = {}  # type: typing.Dict[str, str]
    for entry in trace.get("entries") or ():
        group = str(entry["pg_id"])
        names[group] = str(entry["process_group"][1] or entry["process_group"][0])
        if not entry.get("retired"):  # gloo's operations stay "scheduled" for ever
            under_way.setdefault(group, []).append(_operation(entry, now_ns))
    lines = []
    for group, known in sorted((trace.get("pg_status") or {}).items(), key=lambda item: (len(item[0]), item[0]))[:MOST_GROUPS]:
        named = "{} ({})".format(group, names[group]) if group in names else group
        begun, completed = known.get("last_enqueued_collective", "?"), known.get("last_completed_collective", "?")
        line = "group {}: collective {} begun, {} completed".format(named, begun, completed)
        waits = under_way.get(group, [])
        more = ", and {} more".format(len(waits) - MOST_OPERATIONS) if len(waits) > MOST_OPERATIONS else ""
        lines.append((line + ("; under way: " + ", ".join(waits[:MOST_OPERATIONS]) + more if waits else ""))[:LONGEST])
    return lines


def _operation(entry: typing.Mapping[str, typing.Any], now_ns: int) -> str:
    is_p2p = bool(entry.get("is_p2p"))
    number = entry["p2p_seq_id"] if is_p2p else entry["collective_seq_id"]
    for_s = max(0, now_ns - int(entry["time_created_ns"])) // 10**9
    return "{} {} for {} s".format(entry["profiling_name"], number, for_s)
