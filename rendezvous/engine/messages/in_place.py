"""Messages of a change of the world in which the processes live on, since protocol 1.2.

Each change is a round with a number that only rises. Each message of a change names its round; a message of another round changes nothing.
An agent speaks for all its workers. The workers' part of the conversation is in `elastic_worker.training`.
"""

from __future__ import annotations

from typing import Annotated, Union

from ..values import dataclass
from ..words import Word
from .bounds import Bound, Count, Generation, Rank, Step, Words

MOST_WORKERS = 1024
Workers = Annotated[int, Bound(least=0, most=MOST_WORKERS)]
"""The number of workers of one member."""
MOST_DONORS = 16
KEY_LENGTH = 256
VALUE_LENGTH = 16 * 1024
"""Characters of a value of the exchange, in base64. The address of a gloo process in a world of 1,024 takes 11,000."""
Key = Annotated[str, Bound(least=1, most=KEY_LENGTH, is_plain=True)]
Value = Annotated[str, Bound(most=VALUE_LENGTH, is_plain=True)]


class Stage(Word):
    """The action that a change asks of the workers now."""

    HOLD = "hold"  # promise not to begin the step after the present one
    STOP = "stop"  # train to this step, and come to the boundary
    ABORT = "abort"  # the world is broken: come to the boundary at once
    FORM = "form"  # enter the view's world
    RUN = "run"  # all have formed: train
    PLAIN = "plain"  # this world does not change in process: form it from the environment


class Rung(Word):
    """How the processes that were in the world before came into the next one, the cheapest way first."""

    IN_PROCESS = "in-process"
    WARM = "warm-restart"
    PLAIN = "restart"
    NEW_PODS = "new-pods"  # no worker of the world before is in the next one


# --- member to server


@dataclass(frozen=True)
class Able:
    """All workers of the member wait at their first boundary in this generation, and can enter other worlds.

    generation: 0 if they run in a world of their own. step: of the state that they restored; None if they have none.
    """

    workers: Annotated[int, Bound(least=1, most=MOST_WORKERS)]
    generation: Generation = 0
    step: Step | None = None


@dataclass(frozen=True)
class Unable:
    """A worker of the member has ended its loop, or its connection to the agent, and can enter no other world.

    Since 1.5: early: its program left the loop before the end of the training, so its process will end, and its peers lose it. rank, error:
    the worker's, and the line of the exception, if one ends the program.
    """

    words: Words = ""
    early: bool = False
    rank: Count | None = None
    error: Words = ""


@dataclass(frozen=True)
class Holds:
    """No worker of the member begins this step before it hears whether to stop."""

    round: Generation
    step: Step


@dataclass(frozen=True)
class Put:
    """A worker gives a value to its peers: the address of its end of the process group."""

    round: Generation
    key: Key
    value: Value


@dataclass(frozen=True)
class Formed:
    """The workers of the member are in the world of this round, and have the newest state."""

    round: Generation


@dataclass(frozen=True)
class Receives:
    """A worker of the member receives the state, and has received more of it."""

    round: Generation


@dataclass(frozen=True)
class Unformed:
    """A worker of the member could not enter the world of this round."""

    round: Generation
    words: Words = ""


@dataclass(frozen=True)
class Complains:
    """A worker of the member was interrupted in a step of this round's world by an error of the communication."""

    round: Generation
    words: Words = ""


@dataclass(frozen=True)
class Progressed:
    """A worker of the member made a step in this generation."""

    generation: Generation
    step: Step


FromWorkers = Union[Able, Unable, Holds, Put, Formed, Receives, Unformed, Complains, Progressed]


# --- server to member


@dataclass(frozen=True)
class Change:
    """The change that a member takes part in.

    step: the steps that all make before they stop, or the step of the state that the next world begins with. donors: the ranks of the
    members that have this state. why: the reason for a plain world.
    """

    stage: Stage
    round: Generation = 0
    step: Step | None = None
    donors: Annotated[tuple[Rank, ...], Bound(most=MOST_DONORS)] = ()
    why: Words = ""
