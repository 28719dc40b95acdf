"""Define the limits on a job's restarts, as a user writes them."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

INT32 = 2**31 - 1
Limit: TypeAlias = Annotated[int, Meta(ge=0, le=INT32, extra_json_schema={"format": "int32"})]


class RestartBudget(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Limits on restarts, by cause and per time window. A cause without a limit of its own is bounded by maxRestarts only."""

    window_seconds: Annotated[int, Meta(ge=1, le=INT32, extra_json_schema={"format": "int32"})] | None = None
    """Count only restarts of the last so many seconds, here and for maxRestarts. Default: all since the job began."""
    user: Limit | None = None
    """Restarts after the training program failed. Default: maxRestarts."""
    out_of_memory: Limit | None = None
    """Restarts after a container ran out of memory. Default: maxRestarts."""
    hang: Limit | None = None
    """Restarts after training hung. Default: maxRestarts."""
    same_error: Limit | None = None
    """Restarts in a row after attempts that ended with the same error before a step was reported. Default: no limit."""
    disruption: Limit | None = None
    """Restarts after evictions, preemptions, lost nodes. They never count towards maxRestarts. Default: no limit."""
