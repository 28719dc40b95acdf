"""Note that workers ended with status 0 while others failed.

By the completion rule, a worker that ends with status 0 completes the job, whatever becomes of its peers. Often that is right, because a
peer fails in its last collective. A worker that ended in the middle of the training looks the same, so the user must hear of both.
"""

from __future__ import annotations

from .messages.bounds import clipped
from .state.job import JobState
from .values import replace

NAMED = 3


def noted(job: JobState) -> JobState:
    """Return the job with the first such end in words."""
    return told(job, in_words(job))


def told(job: JobState, words: str) -> JobState:
    """Return the job with these words, unless it has earlier ones."""
    known = job.accounting
    return replace(job, accounting=replace(known, ended_early=clipped(words))) if words and not known.ended_early else job


def in_words(job: JobState) -> str:
    """Return which workers of the current world ended with status 0, and how another one failed after them; empty without both."""
    finished, known = sorted(job.membership.finished), job.accounting
    if not finished or not known.failures or known.losses or known.trouble is None:
        return ""
    shown = finished if len(finished) <= NAMED else [*finished[:NAMED], f"{len(finished) - NAMED} more"]
    return f"{' and '.join(shown)} ended with status 0, and then {known.trouble[0]}"
