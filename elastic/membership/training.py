"""What training reports to the rendezvous server, what the server answers, and what the autoscaler reads."""

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


class Answer(Wire, frozen=True, omit_defaults=False):
    """What a worker should do after its report. stop: at the next step. checkpoint_s: checkpoint now, this many seconds are left."""

    stop: bool = False
    reason: Words = ""
    checkpoint_s: float | None = None


class Signal(Wire, frozen=True):
    """A report as read by the autoscaler, with its age."""

    member: Name
    age_s: float
    generation: Generation = 0
    step: Step | None = None
    values: Values = msgspec.field(default_factory=dict)


class Progress(Wire, frozen=True):
    """A job's training as the autoscaler hears of it.

    phase: of its world, as in World. size: workers in the world that stands, 0 if none does. step: the highest one reported in that world,
    `age_s` ago, with the values of that report. highest: the highest step ever reported. rank_zero: the member that has this rank in the
    world. forgotten: the server knows the job no more.
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
    forgotten: bool = False


class Forgotten(Wire, frozen=True):
    """What was known of a job that is forgotten now. step: the highest one ever reported; None also if the job was unknown."""

    step: Step | None = None
