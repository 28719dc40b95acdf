"""Says in words how a process ended."""

import signal


def with_status(status: int) -> str:
    """Above 128 it is the number of a signal that counts."""
    try:
        return f"with status {status}, {signal.Signals(status - 128).name}"
    except ValueError:
        return f"with status {status}"
