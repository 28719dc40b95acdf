"""Events of a job, as the engine sees them.

A member said something, its connection broke, the controller spoke, time passed, or the server stood still.
"""

from __future__ import annotations

import math
from typing import Union

from .messages.controller import Expectation
from .messages.member import FromMember
from .values import dataclass


@dataclass(frozen=True)
class Said:
    """A member sent a message. Its incarnation comes from the connection, so that a stale connection cannot speak for a newer one."""

    member: str
    incarnation: str
    message: FromMember


@dataclass(frozen=True)
class Lost:
    """The connection of a member broke. It has a moment to come back before it counts as gone."""

    member: str
    incarnation: str


@dataclass(frozen=True)
class Expected:
    """The controller's expectation of the job."""

    expectation: Expectation


@dataclass(frozen=True)
class Stepped:
    """Training made a step in this generation, and says which one."""

    generation: int
    step: int = 0


@dataclass(frozen=True)
class Tick:
    """Time passed. reached_at: when the leading controller last gave a sign; infinite if no controller listens."""

    reached_at: float = math.inf


@dataclass(frozen=True)
class Resumed:
    """The server itself stood still for this time, and goes on. Messages that came meanwhile have yet to be heard."""

    pause_s: float


Event = Union[Said, Lost, Expected, Stepped, Tick, Resumed]
