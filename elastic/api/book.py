"""The particulars of a job's restarts that its status keeps for a while, so that each is counted once and within the budget's window."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

Time: TypeAlias = Annotated[datetime, Meta(tz=True)]


class Charge(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Restarts of one cause at about one time."""

    cause: str
    at: Time
    count: int = 1


class Restart(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """One counted restart that may be told of again."""

    id: str
    generation: Annotated[int, Meta(extra_json_schema={"format": "int64"})]
    """Of the group that it ended."""
    cause: str
    pod: str = ""
    """Uid of the pod that failed or was lost."""
    lost: bool = False
    """Its container ended with it, and it is not known how."""
    unsure: bool = False
    """The cause is a guess until then."""
