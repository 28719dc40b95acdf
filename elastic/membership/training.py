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
    """The server's answer to a report. stop: end at the next step. checkpoint_s: checkpoint now; this many seconds are left."""

    stop: bool = False
    reason: Words = ""
    checkpoint_s: float | None = None


class TrainingSignal(Wire, frozen=True):
    """A report as read by the autoscaler, with its age."""

    member: Name
    age_s: float
    generation: Generation = 0
    step: Step | None = None
    values: Values = msgspec.field(default_factory=dict)


class TrainingProgress(Wire, frozen=True):
    """The state of a job's training, as the autoscaler hears it.

    phase: of its world, as in World; empty if only the program reports. size: workers in the present world, 0 without a world. step: the
    highest step reported in that world, `age_s` ago, with the values of that report. highest: the highest step ever reported. rank_zero:
    the member that has this rank in the world. percent, remaining_s: the part of the training that is done, and the time left, as the
    program last said. forgotten: the server no longer knows the job; then the message has only the last report of its program.
    """

    job: Name
    generation: Generation = 0
    phase: CauseWord = ""
    size: Annotated[int, Meta(ge=0, le=MAX_MEMBERS)] = 0
    step: Step | None = None
    age_s: Seconds = 0.0
    highest: Step | None = None
    values: Values = msgspec.field(default_factory=dict)
    rank_zero: NameOrNone = ""
    percent: Annotated[int, Meta(ge=0, le=100)] | None = None
    remaining_s: Seconds | None = None
    forgotten: bool = False


class Forgotten(Wire, frozen=True):
    """The last facts about a job that is forgotten now. step: the highest step ever reported; None also if the job was unknown."""

    step: Step | None = None
