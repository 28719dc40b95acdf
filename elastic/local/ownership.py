"""Let only one supervisor at a time run a cluster in a data folder."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator

from elastic.local.files import Layout, is_alive, take_folder

STAY = b"stay"
"""Written on the supervisor's standard input, it lets the cluster outlive the process that started it."""
LAST_ONES_S, LOOK_EVERY_S = 15.0, 0.05
"""Seconds to wait for the processes of a killed supervisor, and between two looks."""


class AlreadyRunning(Exception):
    """Another supervisor owns the data folder."""


@contextlib.contextmanager
def sole_owner(layout: Layout) -> Iterator[int]:
    """Hold the lock of a data folder, so that it has only one cluster.

    Every process of the cluster gets the lock's descriptor, and the kernel releases the lock when the last of them has ended. The processes
    of a killed supervisor end by themselves, and this function waits for them.
    """
    take_folder(layout.root)
    with layout.lock.open("a+") as lock:
        give_up_at = time.monotonic() + LAST_ONES_S
        while not _locked(lock.fileno()):
            if not _supervisor_died(layout) or time.monotonic() > give_up_at:
                where = f"--data-dir {layout.root}"
                words = f"`elastic status {where}` shows it, `elastic down {where}` stops it"
                raise AlreadyRunning(f"a cluster already runs in {layout.root}; {words}")
            time.sleep(LOOK_EVERY_S)
        layout.forget_state()
        yield lock.fileno()


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _supervisor_died(layout: Layout) -> bool:
    state = layout.read_state()
    return state is not None and not is_alive(state.supervisor)
