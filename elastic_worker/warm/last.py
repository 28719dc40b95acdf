"""The last thing that a forked worker does before its interpreter goes down, once its program has returned.

Threads of a gloo group that the program let live get a moment to come to rest, for one that wants the interpreter's lock later aborts the
process. And the process takes a name by which the fork server knows, should it be aborted after all, that the program had ended with 0.
"""

import atexit
import contextlib
import os
import time

ENDED = "program ended 0"
"""As long as a name may be. A zombie keeps it until its status is read."""
GROUP_THREAD = "pt_gloo_runloop"
REST_S = 0.05


class Last:
    """Registered before the program runs, so that it comes after all that the program registers, and after its threads."""

    def __init__(self) -> None:
        self.is_good = False
        """Whether the program ended as with status 0."""
        self._pid = os.getpid()
        atexit.register(self._come)

    def _come(self) -> None:
        if not self.is_good or os.getpid() != self._pid:
            return
        with contextlib.suppress(OSError):
            if _has_group_threads():
                time.sleep(REST_S)
            with open("/proc/self/comm", "w") as file:
                file.write(ENDED)


def had_ended(pid: int) -> bool:
    """Whether the program of this worker had ended with 0; for its parent, before it reads the status."""
    try:
        with open("/proc/{}/comm".format(pid)) as file:
            return file.read().rstrip("\n") == ENDED
    except OSError:
        return False


def _has_group_threads() -> bool:
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open("/proc/self/task/{}/comm".format(task)) as file:
            if file.read().rstrip("\n") == GROUP_THREAD:
                return True
    return False
