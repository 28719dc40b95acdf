"""Recognizes a main thread that waits inside torch for an operation that can never end, because its connections have ended.

gloo forgets an operation that was half sent or half received when its connection ended, and waits for it until the group's timeout. Then
only the end of this process helps, and its peers form a world without it.
"""

import os
import sys
import time
import typing

STUCK_S = 1.0
"""Seconds without a connection of the group in which the process does nothing."""
MOST_CPU = 0.25
"""Share of a core that our other threads may use meanwhile."""
INSIDE = (os.sep + os.path.join("torch", "distributed"), *(os.sep + os.path.join("torch", name) for name in ("autograd", "nn", "_tensor")))


class Idle:
    """Looks at the main thread again and again."""

    def __init__(self, thread: int, ident: int) -> None:
        self._path = "/proc/self/task/{}/status".format(thread)
        self._ident = ident
        self._since = None  # type: typing.Optional[typing.Tuple[float, float, typing.Tuple[str, ...]]]

    def begin(self) -> None:
        """Forget the earlier looks."""
        self._since = None

    def look(self) -> bool:
        """Return whether the thread has not run since the look STUCK_S ago, and waits inside torch."""
        switches, now, used = self._switches(), time.monotonic(), time.process_time()
        if self._since is None or not switches or self._since[2] != switches:
            self._since = now, used, switches
            return False
        lasted = now - self._since[0]
        return lasted > STUCK_S and used - self._since[1] < MOST_CPU * lasted and self._is_in_torch()

    def _switches(self) -> typing.Tuple[str, ...]:
        """Return the thread's counters of switches while it sleeps; nothing if it runs or wants to."""
        try:
            with open(self._path) as file:
                lines = file.read().splitlines()
        except OSError:
            return ()
        is_asleep = any(line.startswith("State:") and line.split()[1] == "S" for line in lines)
        return tuple(line for line in lines if "ctxt_switches" in line) if is_asleep else ()

    def _is_in_torch(self) -> bool:
        frame = sys._current_frames().get(self._ident)
        return frame is not None and any(place in frame.f_code.co_filename for place in INSIDE)
