"""Messages of a change of the world in which the processes live on, since protocol 1.2.

Each change is a round with a number that only rises. Each message of a change names its round; a message of another round changes nothing.
An agent speaks for all its workers. The workers' part of the conversation is in `elastic_worker.training`.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from elastic.api.book import PLAIN
from elastic.membership.bounds import Generation, Rank, Step, Up, Words

MOST_WORKERS = 1024
Workers = Annotated[int, Meta(ge=0, le=MOST_WORKERS)]
"""The number of workers of one member."""
MOST_DONORS = 16
KEY_LENGTH = 256
VALUE_LENGTH = 16 * 1024
"""Characters of a value of the exchange, in base64. The address of a gloo process in a world of 1,024 takes 11,000."""
Key = Annotated[str, Meta(min_length=1, max_length=KEY_LENGTH, pattern=PLAIN)]
Value = Annotated[str, Meta(max_length=VALUE_LENGTH, pattern=PLAIN)]
KEYS_A_MESSAGE = 16


class Stage(StrEnum):
    """The action that a change asks of the workers now."""

    HOLD = "hold"  # promise not to begin the step after the present one
    STOP = "stop"  # train to this step, and come to the boundary
    ABORT = "abort"  # the world is broken: come to the boundary at once
    FORM = "form"  # enter the view's world
    RUN = "run"  # all have formed: train
    PLAIN = "plain"  # this world does not change in process: form it from the environment


class Rung(StrEnum):
    """How the processes that were in the world before came into the next one, the cheapest way first."""

    IN_PROCESS = "in-process"
    WARM = "warm-restart"
    PLAIN = "restart"
    NEW_PODS = "new-pods"  # no worker of the world before is in the next one


# --- member to server


class Able(Up, frozen=True):
    """All workers of the member wait at their first boundary in this generation, and can enter other worlds.

    generation: 0 if they run in a world of their own. step: of the state that they restored; None if they have none.
    """

    workers: Annotated[int, Meta(ge=1, le=MOST_WORKERS)]
    generation: Generation = 0
    step: Step | None = None


class Unable(Up, frozen=True):
    """A worker of the member has ended its loop, or its connection to the agent, and can enter no other world."""

    words: Words = ""


class Holds(Up, frozen=True):
    """No worker of the member begins this step before it hears whether to stop."""

    round: Generation
    step: Step


class Put(Up, frozen=True):
    """A worker gives a value to its peers: the address of its end of the process group."""

    round: Generation
    key: Key
    value: Value


class Formed(Up, frozen=True):
    """The workers of the member are in the world of this round, and have the newest state."""

    round: Generation


class Receives(Up, frozen=True):
    """A worker of the member receives the state, and has received more of it."""

    round: Generation


class Unformed(Up, frozen=True):
    """A worker of the member could not enter the world of this round."""

    round: Generation
    words: Words = ""


class Complains(Up, frozen=True):
    """A worker of the member was interrupted in a step of this round's world by an error of the communication."""

    round: Generation
    words: Words = ""


class Progressed(Up, frozen=True, tag="stepped"):
    """A worker of the member made a step in this generation."""

    generation: Generation
    step: Step


FromWorkers = Able | Unable | Holds | Put | Formed | Receives | Unformed | Complains | Progressed


# --- server to member


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The change that a member takes part in.

    step: the steps that all make before they stop, or the step of the state that the next world begins with. donors: the ranks of the
    members that have this state. why: the reason for a plain world.
    """

    stage: Stage = msgspec.field(name="phase")
    round: Generation = 0
    step: Step | None = None
    donors: Annotated[tuple[Rank, ...], Meta(max_length=MOST_DONORS)] = ()
    why: Words = ""


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """Values of the exchange of one round."""

    round: Generation
    items: Annotated[dict[Key, Value], Meta(max_length=KEYS_A_MESSAGE)]


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Values that workers of this member's world put into the exchange."""

    keys: Values
