"""The last step of a forked worker, after its program has returned and before its interpreter shuts down.

It gives threads of a gloo group that still live a moment to become idle, because one that asks for the GIL later aborts the process. Then
it renames the process. If the process is aborted all the same, its name shows the fork server that the program had ended with 0.
"""

import atexit
import contextlib
import os
import time

ENDED = "program ended 0"
"""The longest possible process name. A zombie keeps it until it is reaped."""
GROUP_THREAD = "pt_gloo_runloop"
REST_S = 0.05


class ExitHook:
    """An atexit hook. Registered before the program runs, it runs after the program's own hooks and threads."""

    def __init__(self) -> None:
        self.has_succeeded = False
        """Whether the program ended as with status 0."""
        self._pid = os.getpid()
        atexit.register(self._run)

    def _run(self) -> None:
        if not self.has_succeeded or os.getpid() != self._pid:
            return
        with contextlib.suppress(OSError):
            if _has_group_threads():
                time.sleep(REST_S)
            with open("/proc/self/comm", "w") as file:
                file.write(ENDED)


def had_ended(pid: int) -> bool:
    """Whether the program of this worker had ended with 0. Its parent asks before it reaps the worker."""
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
