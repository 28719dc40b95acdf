"""Decide the members of the world of one job, from events alone.

`step(job, event, now)` returns the next state and its effects. There is no clock, no I/O and no randomness here: the owner of the clock and
of the connections (rendezvous.server, or a test) feeds the engine.
"""

from elastic.api.words import Cause
from rendezvous.engine.choose import leave_notice
from rendezvous.engine.events import Event, Expected, Lost, Resumed, Said, Stepped, Tick
from rendezvous.engine.handlers.arrivals import is_retired
from rendezvous.engine.handlers.expectations import is_stale
from rendezvous.engine.state.job import Job
from rendezvous.engine.state.membership import Member, Phase
from rendezvous.engine.state.timings import Limits
from rendezvous.engine.step import Cut, Effect, Publish, Refuse, SendView, Wake, begin, step, step_all
from rendezvous.engine.views import summary, view

__all__ = [
    "Cause",
    "Cut",
    "Effect",
    "Event",
    "Expected",
    "Job",
    "Limits",
    "Lost",
    "Member",
    "Phase",
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
