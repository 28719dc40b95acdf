"""Define the parts of the records that say how far a change of worlds in process has come (rendezvous/engine/in_place.py decides it).

All of it is optional. A member of release 0.4.0 neither writes nor reads it, and then all processes restart at a change.
"""

import dataclasses
import re
import typing

from elastic_worker._engine.messages.bounds import MAX_ERROR, MOST_COUNTED
from elastic_worker._engine.messages.in_place import KEY_LENGTH, MOST_DONORS, MOST_WORKERS, VALUE_LENGTH
from elastic_worker.etcd.fields import Fields, Unusable

EXCHANGE = "exchange/"
HOLDS, READY, FORMED, UNFORMED = "holds", "ready", "formed", "unformed"
ANSWERS = ("", HOLDS, READY, FORMED, UNFORMED)
HOLD, STOP, FORM, RUN, PLAIN, RESTART = "hold", "stop", "form", "run", "plain", ""
STAGES = (RESTART, HOLD, STOP, FORM, RUN, PLAIN)
"""An abort is not written: each member sees for itself that the world is broken."""
MOST_VALUES = 16 * MOST_WORKERS
MOST_ROUNDS = 2**52
BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}\Z")
KEY = re.compile(r"[!#-\[\]-~]+\Z")


@dataclasses.dataclass(frozen=True)
class Change:
    """The change of the world, as its record has it. The engine's InPlace describes the fields; `trained` is its has_trained.

    began: the first world of its processes, in which they did not come from another one. nonce: a random text on which the keys of the
    state transfers depend, because a job by hand may have no token.
    """

    stage: str = RESTART
    round: int = 0
    world_round: int = 0
    began: int = 0
    step: typing.Optional[int] = None
    donors: typing.Tuple[int, ...] = ()
    attempts: int = 0
    trained: bool = False
    blip_step: typing.Optional[int] = None
    why: str = ""
    nonce: str = ""


@dataclasses.dataclass(frozen=True)
class Answer:
    """The newest answer of a member to the change of this round. The change asks for one kind in each stage."""

    kind: str = ""
    round: int = 0
    step: typing.Optional[int] = None
    words: str = ""


@dataclasses.dataclass(frozen=True)
class Left:
    """A worker left its training loop before the end of the training. rank, error: the worker's, and the line of its exception."""

    rank: typing.Optional[int] = None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a member in changes in process; an agent that knows no such changes has none.

    workers: the number of its workers that can change worlds, all or none. generation: the world that they are in; 0 is one of their own.
    is_outside: they run, or start, in a world of their own. step: of their state at their first boundary. round: the newest change that
    the agent has heard of. alarm: the round of the world in which communication broke. received: counts reports of a received state.
    left: one of its workers left its training loop early.
    """

    workers: int = 0
    generation: int = 0
    is_outside: bool = False
    step: typing.Optional[int] = None
    round: int = 0
    answer: Answer = Answer()
    alarm: int = 0
    received: int = 0
    left: typing.Optional[Left] = None


@dataclasses.dataclass(frozen=True)
class Values:
    """The values that one member gives to the others while the world of this round is formed, and later for groups of the program."""

    name: str
    round: int = 0
    items: typing.Mapping[str, str] = dataclasses.field(default_factory=dict)


def change_of(fields: typing.Optional[Fields]) -> typing.Optional[Change]:
    """Read the change of a world."""
    if fields is None:
        return None
    return Change(
        stage=_word(fields, "stage", STAGES),
        round=_round(fields, "round"),
        world_round=_round(fields, "world_round"),
        began=fields.generation("began"),
        step=fields.step("step"),
        donors=fields.ranks("donors")[:MOST_DONORS],
        attempts=fields.integer("attempts", 0, 1000) or 0,
        trained=fields.flag("trained"),
        blip_step=fields.step("blip_step"),
        why=fields.words("why"),
        nonce=fields.plain("nonce", default=""),
    )


def part_of(fields: typing.Optional[Fields]) -> typing.Optional[Part]:
    """Read the part of a member."""
    if fields is None:
        return None
    answer = fields.inner("answer") or Fields({})
    return Part(
        workers=fields.integer("workers", 0, MOST_WORKERS) or 0,
        generation=fields.generation("generation"),
        is_outside=fields.flag("is_outside"),
        step=fields.step("step"),
        round=_round(fields, "round"),
        answer=Answer(_word(answer, "kind", ANSWERS), _round(answer, "round"), answer.step("step"), answer.words("words")),
        alarm=_round(fields, "alarm"),
        received=_round(fields, "received"),
        left=_left(fields.inner("left")),
    )


def _left(fields: typing.Optional[Fields]) -> typing.Optional[Left]:
    return Left(fields.integer("rank", 0, MOST_COUNTED), fields.words("error")[:MAX_ERROR]) if fields is not None else None


def values_of(name: str, fields: Fields) -> Values:
    """Read the values of a member."""
    items = fields.texts("items", MOST_VALUES)
    for key, value in items.items():
        if len(key) > KEY_LENGTH or not KEY.match(key) or len(value) > VALUE_LENGTH or not BASE64.match(value):
            raise Unusable("items holds {!r}, which is no value of an exchange".format(key[:60]))
    return Values(name, _round(fields, "round"), items)


def _round(fields: Fields, name: str) -> int:
    return fields.integer(name, 0, MOST_ROUNDS) or 0


def _word(fields: Fields, name: str, known: typing.Sequence[str]) -> str:
    """Read a word. A later release may know more words; to this one, they ask for a restart or answer nothing."""
    word = fields.words(name)
    return word if word in known else ""
