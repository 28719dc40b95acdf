"""Why a worker ended, or why a world changed."""

from enum import StrEnum


class Cause(StrEnum):
    """Why a worker ended, or why a world changed."""

    START = "start"
    PLAN = "plan"
    DISRUPTION = "disruption"
    COLLATERAL = "collateral"
    OUT_OF_MEMORY = "outOfMemory"
    HANG = "hang"
    USER = "user"


CHARGED = frozenset({Cause.USER, Cause.OUT_OF_MEMORY, Cause.HANG})
"""Causes that count against maxRestarts."""
