"""Name the messages between the rendezvous server and its two kinds of peers: members (WebSocket) and the controller (HTTPS).

The engine defines its messages; this module names them for their users at both ends of the wire, and adds those that the server alone
sends. Each field is bounded, and every limit of a transport follows from these bounds (elastic.membership.limits).
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from elastic.membership.bounds import Generation, Words
from elastic.membership.codec import Decoder, convert, encode, meta_of, to_builtins
from elastic_training.rendezvous.engine.messages import in_place
from elastic_training.rendezvous.engine.messages.bounds import clipped
from elastic_training.rendezvous.engine.messages.controller import (
    LONGEST_RESTART_ID,
    MAX_CHARGES,
    MAX_HELD,
    MAX_UNSETTLED,
    Budget,
    Charge,
    Ended,
    Expectation,
    LeaveOrder,
    RankedMember,
    RescaleReport,
    Restart,
    SilentMember,
    StandingWorld,
    WorldReport,
)
from elastic_training.rendezvous.engine.messages.member import Beat, Failed, Finished, FromMember, Held, Join, Leave, Ready, Started, View
from elastic_training.rendezvous.engine.words import WorldPhase

__all__ = [
    "KEYS_A_MESSAGE",
    "LONGEST_RESTART_ID",
    "MAX_CHARGES",
    "MAX_HELD",
    "MAX_UNSETTLED",
    "Beat",
    "Budget",
    "Charge",
    "Decoder",
    "Ended",
    "Expectation",
    "Failed",
    "Finished",
    "FromMember",
    "Held",
    "Join",
    "Keys",
    "Leave",
    "LeaveOrder",
    "RankedMember",
    "Ready",
    "Refused",
    "RescaleReport",
    "Restart",
    "SilentMember",
    "StandingWorld",
    "Started",
    "Values",
    "View",
    "Wire",
    "WorldReport",
    "convert",
    "encode",
    "to_builtins",
    "unreadable",
]

KEYS_A_MESSAGE = 16
Key = Annotated[str, meta_of(in_place.Key)]
Value = Annotated[str, meta_of(in_place.Value)]


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the messages that the engine does not know: frozen, keyword-only, defaults left out when written."""


class Refused(Wire, frozen=True):
    """Tell an incarnation that a newer one of the same member replaced it, so that it ends."""

    refused: Words


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the exchange of one round."""

    round: Generation
    items: Annotated[dict[Key, Value], Meta(max_length=KEYS_A_MESSAGE)]


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Values that workers of this member's world put into the exchange."""

    keys: Values


def unreadable(job: str, why: str) -> WorldReport:
    """Return what replaces a world that cannot be encoded or decoded."""
    reason = clipped(f"the rendezvous server's message about this job is unusable: {why}")
    return WorldReport(job=job, generation=0, phase=WorldPhase.UNREADABLE, reason=reason)
