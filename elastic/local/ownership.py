"""Who may run a cluster in a data folder: one supervisor at a time."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator

from elastic.local.files import Layout, is_alive, take_folder

LAST_ONES_S, LOOK_EVERY_S = 15.0, 0.05
"""How long the processes of a supervisor that was killed are waited for."""


class AlreadyRunning(Exception):
    """Another supervisor owns the data folder."""


@contextlib.contextmanager
def sole_owner(layout: Layout) -> Iterator[int]:
    """One cluster for each data folder.

    The lock's descriptor goes to every process of it, and the kernel lets go of the lock when the last of them has ended, however it ends:
    what a supervisor that was killed leaves behind is waited for, which ends by itself.
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
