"""Decide the members of the world of one job, from events alone.

`step(job, event, now)` returns the next state and its effects. There is no clock, no I/O and no randomness here: the owner of the clock and
of the connections (rendezvous.server, or a test) feeds the engine.
"""

from __future__ import annotations

from .choose import leave_notice
from .events import Event, Expected, Lost, Resumed, Said, Stepped, Tick
from .handlers.arrivals import is_retired
from .handlers.expectations import is_stale
from .state.job import JobState
from .state.membership import Member, MemberPhase
from .state.timings import Limits
from .step import Cut, Effect, Publish, Refuse, SendView, Wake, begin, step, step_all
from .views import summary, view
from .words import Cause

__all__ = [
    "Cause",
    "Cut",
    "Effect",
    "Event",
    "Expected",
    "JobState",
    "Limits",
    "Lost",
    "Member",
    "MemberPhase",
    "Publish",
    "Refuse",
    "Resumed",
    "Said",
    "SendView",
    "Stepped",
    "Tick",
    "Wake",
    "begin",
    "is_retired",
    "is_stale",
    "leave_notice",
    "step",
    "step_all",
    "summary",
    "view",
]
