"""The rendezvous machine: who is in the world of one job, decided from events alone.

`step(job, event, now)` returns the next state and what to do about it. No clock, no I/O, no randomness: whoever owns the clock and the
connections (rendezvous.server, or a test) feeds it.
"""

from elastic.api.words import Cause
from rendezvous.machine.choose import leave_notice
from rendezvous.machine.events import Event, Expected, Lost, Resumed, Said, Stepped, Tick
from rendezvous.machine.handlers.arrivals import is_retired
from rendezvous.machine.handlers.expectations import is_stale
from rendezvous.machine.state.job import Job
from rendezvous.machine.state.membership import Member, Phase
from rendezvous.machine.state.timings import Limits
from rendezvous.machine.step import Cut, Effect, Publish, Refuse, SendView, Wake, begin, step, step_all
from rendezvous.machine.views import summary, view

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
