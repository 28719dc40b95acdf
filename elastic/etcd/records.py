"""Define the records under a job's prefix in etcd, as the controller reads and writes them.

elastic_worker.etcd.records defines the same JSON, but this package must not import it. test_etcd_mirrored.py
compares the two.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from elastic.membership.bounds import (
    MAX_MEMBERS,
    MOST_COUNTED,
    MOST_SECONDS,
    CauseWord,
    KnownGeneration,
    Name,
    Names,
    Rank,
    Size,
    Step,
    Words,
)
from elastic.membership.codec import translated
from elastic_training.rendezvous.engine.messages.bounds import MAX_ERROR
from elastic_training.rendezvous.engine.messages.doing import Hang
from elastic_training.rendezvous.engine.messages.in_place import MOST_WORKERS
from elastic_training.rendezvous.engine.messages.pace import MOST_STRAGGLERS, Straggler
from elastic_training.rendezvous.engine.messages.saves import MOST_FAILING, FailingRank

VERSION = 1
WORLD = "world"
EXPECTED = "expected"
PROGRESS = "progress"
FINDINGS = "findings"
MEMBERS = "members/"
LONGEST_RECORD = 1024 * 1024
MOST_ENDS = 128

Plain = Annotated[str, Meta(max_length=300, pattern=r"^[!#-\[\]-~]*\Z")]
Count = Annotated[int, Meta(ge=0, le=10**9)]
Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]


class Unusable(ValueError):
    """A value in etcd that is no record of the job's."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of records and their parts."""


class Failed(_Record, frozen=True):
    generation: KnownGeneration
    status: Annotated[int, Meta(ge=0, le=1024)] | None = None
    at: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    follows: bool = False
    out_of_memory: bool = False
    replaced: bool = False
    by_library: bool = False
    rank: Annotated[int, Meta(ge=0, le=MOST_COUNTED)] | None = None
    error: Annotated[str, Meta(max_length=MAX_ERROR)] = ""


class Answer(_Record, frozen=True):
    kind: Words = ""
    round: KnownGeneration = 0
    step: Step | None = None
    words: Words = ""


class Left(_Record, frozen=True):
    """A worker left its training loop before the end of the training."""

    rank: Annotated[int, Meta(ge=0, le=MOST_COUNTED)] | None = None
    error: Annotated[str, Meta(max_length=MAX_ERROR)] = ""


class Part(_Record, frozen=True):
    """The part of a member in changes in process."""

    workers: Annotated[int, Meta(ge=0, le=MOST_WORKERS)] = 0
    generation: KnownGeneration = 0
    is_outside: bool = False
    step: Step | None = None
    round: KnownGeneration = 0
    answer: Answer = Answer()
    alarm: KnownGeneration = 0
    received: KnownGeneration = 0
    left: Left | None = None


class Member(_Record, frozen=True):
    incarnation: Plain
    store: Plain = ""
    entered: KnownGeneration = 0
    after: KnownGeneration = 0
    trouble: Words = ""
    failed: Failed | None = None
    finished: KnownGeneration = 0
    left: Words = ""
    alive_at: Plain = ""
    in_process: Part | None = None


class Seat(_Record, frozen=True):
    name: Name
    incarnation: Plain


class Round(_Record, frozen=True):
    reason: Words
    cause: CauseWord
    planned: Annotated[tuple[Rank, ...], Meta(max_length=MAX_MEMBERS)] = ()


class End(_Record, frozen=True):
    """The member that ended the world of this generation, and the cause."""

    generation: KnownGeneration
    name: Name
    incarnation: Plain
    cause: CauseWord
    is_lost: bool = False
    """Whether the member's record was gone, so that the cause is a guess."""


class Change(_Record, frozen=True):
    """The change in process that a world is in."""

    stage: Words = ""
    round: KnownGeneration = 0
    world_round: KnownGeneration = 0
    began: KnownGeneration = 0
    """Generation of the first world of its processes."""
    step: Step | None = None
    donors: Annotated[tuple[Rank, ...], Meta(max_length=MAX_MEMBERS)] = ()
    attempts: Annotated[int, Meta(ge=0, le=1000)] = 0
    trained: bool = False
    blip_step: Step | None = None
    why: Words = ""
    nonce: Plain = ""


class World(_Record, frozen=True):
    generation: KnownGeneration
    seats: Annotated[tuple[Seat, ...], Meta(max_length=MAX_MEMBERS)] = ()
    store: Plain = ""
    reason: Words = ""
    cause: CauseWord = ""
    restarts: Annotated[dict[CauseWord, Count], Meta(max_length=64)] = {}
    ends: Annotated[tuple[End, ...], Meta(max_length=MOST_ENDS)] = ()
    round: Round | None = None
    closed: Words = ""
    fruitless: Count = 0
    step: Step | None = None
    heirs: Annotated[tuple[Rank, ...], Meta(max_length=MAX_MEMBERS)] = ()
    change: Change | None = None


class Progress(_Record, frozen=True):
    """The highest steps that were reported."""

    step: Step = 0
    """The highest step ever reported."""
    generation: KnownGeneration = 0
    in_world: Step = 0
    """The highest step reported in the world `generation`."""


class Leaving(_Record, frozen=True):
    member: Name
    cause: CauseWord
    by_s: Seconds = 0.0
    when_replaced: bool = False


class Expected(_Record, frozen=True):
    members: Names
    min: Size
    max: Size
    pending: Names = ()
    leaving: Annotated[tuple[Leaving, ...], Meta(max_length=MAX_MEMBERS)] = ()
    finished: Names = ()
    sizes: Annotated[tuple[Size, ...], Meta(max_length=MAX_MEMBERS)] = ()
    grace_s: Seconds = 30.0
    floor: KnownGeneration = 0
    max_restarts: Annotated[int, Meta(ge=0, le=MOST_COUNTED)] | None = None
    restarts: Annotated[dict[CauseWord, Count], Meta(max_length=64)] = {}
    closed: Words = ""
    term: KnownGeneration = 0
    without_progress: Annotated[int, Meta(ge=0, le=MOST_COUNTED)] | None = None
    hang_s: Seconds | None = None
    fruitless: Count = 0
    step: Step | None = None
    newcomers: Names = ()
    state_s: Seconds = 30.0
    first_step_s: Seconds = 600.0
    pace_s: Seconds = 0.0


class Findings(_Record, frozen=True):
    """The engine's findings about the workers of the world `generation` (rendezvous.engine.messages describes them)."""

    generation: KnownGeneration = 0
    hang: translated(Hang) | None = None  # type: ignore[valid-type]
    stragglers: Annotated[tuple[translated(Straggler), ...], Meta(max_length=MOST_STRAGGLERS)] | None = None  # type: ignore[valid-type]
    failing_saves: Annotated[tuple[translated(FailingRank), ...], Meta(max_length=MOST_FAILING)] = ()  # type: ignore[valid-type]
    ended_early: Words = ""


Record = Member | World | Expected | Progress | Findings


class _Envelope(msgspec.Struct, frozen=True):
    v: int
    seal: str
    body: str


class Seal:
    """Seals the values under a job's prefix, and opens those that were sealed with the same token."""

    def __init__(self, token: str, job: str) -> None:
        self._key = hashlib.sha256(f"elastic-etcd/{VERSION}\0{job}".encode() + b"\0" + token.encode()).digest()

    def close(self, key: str, record: Record) -> bytes:
        body = msgspec.json.encode(record).decode()
        return msgspec.json.encode(_Envelope(VERSION, self._sign(key, body), body))

    def open(self, key: str, value: bytes) -> Record:
        """Return the record that was sealed. Raise Unusable, and nothing else."""
        if len(value) > LONGEST_RECORD:
            raise Unusable(f"it is {len(value)} bytes long, more than {LONGEST_RECORD}")
        try:
            envelope = msgspec.json.decode(value, type=_Envelope)
            if envelope.v != VERSION:
                raise Unusable(f"it is no record of version {VERSION}")
            if not hmac.compare_digest(envelope.seal.encode(), self._sign(key, envelope.body).encode()):
                raise Unusable("it was not sealed with this job's token")
            return msgspec.json.decode(envelope.body, type=_type_of(key))
        except Unusable:
            raise
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Unusable(f"it cannot be read: {str(error)[:100]}") from None

    def _sign(self, key: str, body: str) -> str:
        return hmac.new(self._key, f"{key}\0{body}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _type_of(key: str) -> type[Member] | type[World] | type[Expected] | type[Progress] | type[Findings]:
    if key == WORLD:
        return World
    if key == EXPECTED:
        return Expected
    if key == PROGRESS:
        return Progress
    if key == FINDINGS:
        return Findings
    if key.startswith(MEMBERS):
        return Member
    raise Unusable("no record lies under this key")


def uid_of(incarnation: str) -> str:
    """Return the uid of the pod in which an agent runs."""
    return incarnation.partition("/")[0]


class Records(msgspec.Struct, frozen=True):
    """All records under the prefix at one moment; members by name."""

    members: Mapping[str, Member] = {}
    world: World | None = None
    expected: Expected | None = None
    progress: Progress | None = None
    findings: Findings | None = None
