"""Log the failures that members report, with a limit for each job: a member can report many in a second."""

import asyncio
import logging

from elastic.membership.wire import Failed

log = logging.getLogger(__name__)

MOST_LOGGED = 32
"""Failures of one job that are logged one by one in a window."""
WINDOW_S = 60.0


class FailureLog:
    """Logs the first failures of a job in each window, and at the end of the window how many there were beyond them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        """Failures in the window of each job that has one."""

    def add(self, uid: str, member: str, message: Failed) -> None:
        """Log a failure, or count it."""
        count = self._counts[uid] = self._counts.get(uid, 0) + 1
        if count == 1:
            asyncio.get_running_loop().call_later(WINDOW_S, self._close, uid)
        if count <= MOST_LOGGED:
            fields = {"uid": uid, "member": member, "generation": message.generation, "status": message.status, "detail": message.detail}
            log.info("a worker ended by itself", extra=fields)

    def _close(self, uid: str) -> None:
        """End the window of a job."""
        beyond = self._counts.pop(uid) - MOST_LOGGED
        if beyond > 0:
            log.info("further workers ended by themselves", extra={"uid": uid, "count": beyond, "within_s": WINDOW_S})
