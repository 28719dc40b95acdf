"""Decide how long a client waits before it sends a request again."""

import random

from elastic.kube.errors import KubeError

FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 0.1, 5.0
LONGEST_ASKED_FOR_S = 60.0


def pause_s(error: KubeError, attempt: int) -> float:
    """Return how long to wait: as the server asked, and a little longer by chance, so that clients do not return together."""
    if error.retry_after_s is None:
        return back_off_s(attempt)
    return min(error.retry_after_s, LONGEST_ASKED_FOR_S) + back_off_s(0)


def back_off_s(attempt: int) -> float:
    """Return the pause after this number of failed attempts."""
    return min(random.uniform(0.5, 1.0) * FIRST_BACK_OFF_S * 2.0**attempt, LONGEST_BACK_OFF_S)
