"""Recognise errors that say that another worker was gone: a worker with such an error did not fail first."""

from __future__ import annotations

import re

PEER_IS_GONE = re.compile(
    r"closed by peer|reset by peer|broken pipe|pair closure|remote process exited|ncclRemoteError|remote worker crashing"
    r"|connection was likely closed|connection refused",
    re.IGNORECASE,
)
"""elastic_worker.agent.first_failure has it too."""


def tells_of_peer(error: str) -> bool:
    """Return whether this line of an exception is of a worker that another one's end has brought down."""
    return PEER_IS_GONE.search(error) is not None
