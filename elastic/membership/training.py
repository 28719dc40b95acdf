"""Define the reports of training to the rendezvous server, the server's answers, and the values that the autoscaler reads."""

from typing import Annotated

import msgspec
from msgspec import Meta

from elastic.membership.bounds import MAX_MEMBERS, CauseWord, Generation, Name, NameOrNone, Seconds, Step, Words
from elastic.membership.hosts import Values
from elastic.membership.wire import Wire


class Report(Wire, frozen=True):
    """Training signals of one worker. Only its newest report is kept."""

    member: Name
    generation: Generation = 0
    step: Step | None = None
    values: Values = msgspec.field(default_factory=dict)


class ReportAnswer(Wire, frozen=True, omit_defaults=False):
    """The server's answer to a report."""

    stop: bool = False
    """Whether the program should end at the next step."""
    reason: Words = ""
    checkpoint_s: float | None = None
    """Seconds that are left for a checkpoint; None if none is needed."""


class TrainingSignal(Wire, frozen=True):
    """A report as read by the autoscaler, with its age."""

    member: Name
    age_s: float
    generation: Generation = 0
    step: Step | None = None
    values: Values = msgspec.field(default_factory=dict)


class TrainingProgress(Wire, frozen=True):
    """The state of a job's training, as the server streams it to the autoscaler."""

    job: Name
    generation: Generation = 0
    phase: CauseWord = ""
    """Phase of its world, as in World; empty if only the program reports."""
    size: Annotated[int, Meta(ge=0, le=MAX_MEMBERS)] = 0
    """Number of workers in the present world; 0 without a world."""
    step: Step | None = None
    """The highest step reported in that world."""
    age_s: Seconds = 0.0
    """Seconds since that step was reported."""
    highest: Step | None = None
    """The highest step ever reported."""
    values: Values = msgspec.field(default_factory=dict)
    """Values of the report of `step`."""
    rank_zero: NameOrNone = ""
    """The member that has rank 0 in the world."""
    percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    """Part of the training that is done, as the program last reported."""
    remaining_s: Seconds | None = None
    """Seconds of training that are left, as the program last reported."""
    forgotten: bool = False
    """Whether the server no longer knows the job. The message then has only the last report of its program."""


class Forgotten(Wire, frozen=True):
    """The last facts about a job that the server forgets now."""

    step: Step | None = None
    """The highest step ever reported; None also if the job was unknown."""
