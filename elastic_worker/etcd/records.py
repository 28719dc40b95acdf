"""Define the records under a job's prefix in etcd: JSON with a version, every field bounded, sealed by HMAC with the job's token.

    members/NAME   one agent, written by it alone, under its lease
    world          the members of the world, written by the member that seals it, if nothing has changed since it read
    expected       the members that should be there, written by a controller, if there is one
    progress       how far training has come, if it reports its steps
    exchange/NAME  the addresses of one member's workers while they form a world in process, written by it alone, under its lease
    news/NAME, findings  what workers do, and what follows from it (elastic_worker.etcd.news_records)

Anything else under the prefix is refused with a reason, and ignored. Nothing is unpickled. The seal covers the key, so that nobody
without the token can write a record, or copy one to another key or job.
"""

import dataclasses
import hashlib
import hmac
import json
import typing

from elastic_worker._engine.messages.bounds import MAX_ERROR, MOST_COUNTED
from elastic_worker.etcd.change_records import EXCHANGE, Change, Part, Values, change_of, part_of, values_of
from elastic_worker.etcd.fields import LONGEST_WORDS, MOST_MEMBERS, MOST_RESTARTS, NAME, Fields, Unusable
from elastic_worker.etcd.news_records import FINDINGS, NEWS, Findings, News, findings_of, news_of

VERSION = 1
WORLD = "world"
EXPECTED = "expected"
PROGRESS = "progress"
MEMBERS = "members/"
LONGEST_RECORD = 1024 * 1024
MOST_ENDS = 128
"""Ends of members in former worlds that the record of the newest world keeps, for a controller that was away."""


class Foreign(Unusable):
    """A record like ours, sealed with another token."""


@dataclasses.dataclass(frozen=True)
class Failed:
    """A worker of the member ended by itself in this generation. status: as in a shell; None if unknown.

    at: the revision of the record that said so first; 0 in that record itself. follows: its error says that another worker was gone.
    out_of_memory: the kernel killed it, because the memory of its container was used up. replaced: another process takes its place.
    by_library: the training library ended it. rank, error: the worker's, and the line of its exception, if known.
    """

    generation: int
    status: typing.Optional[int] = None
    at: int = 0
    follows: bool = False
    out_of_memory: bool = False
    replaced: bool = False
    by_library: bool = False
    rank: typing.Optional[int] = None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Member:
    """One agent. entered: the newest world that it has entered; after: the newest that it has left, 0 for none.

    It is at the barrier where both are equal. finished: the world in which its workers all ended with 0.

    store: its address if it becomes rank 0. alive_at: where it listens as long as it lives (elastic_worker.etcd.liveness).
    trouble: what broke the world `after` for it. left: why it is gone for good. in_process: its part in changes in process.
    """

    name: str
    incarnation: str
    store: str
    entered: int = 0
    after: int = 0
    trouble: str = ""
    failed: typing.Optional[Failed] = None
    finished: int = 0
    left: str = ""
    alive_at: str = ""
    in_process: typing.Optional[Part] = None


@dataclasses.dataclass(frozen=True)
class Seat:
    """A member of a world, at the rank of its place there."""

    name: str
    incarnation: str


@dataclasses.dataclass(frozen=True)
class End:
    """A member ended the world of this generation, or ended with it. is_lost: its record was gone, so that the cause is a guess."""

    generation: int
    name: str
    incarnation: str
    cause: str
    is_lost: bool = False


@dataclasses.dataclass(frozen=True)
class Round:
    """Why the members of this world are asked back to the barrier. planned: the ranks of those that leave it by plan."""

    reason: str
    cause: str
    planned: typing.Tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class World:
    """The newest world. restarts: of the job until then, by cause. ends: the newest of these, one by one. closed: why no other follows.

    fruitless: restarts in a row without a further step. step: the highest one reported before the last of them. heirs: the ranks of the
    members that came into this world with the state of training; empty if that is not known. change: the change in process that formed it,
    or that it is in.
    """

    generation: int
    seats: typing.Tuple[Seat, ...]
    store: str
    reason: str
    cause: str
    restarts: typing.Mapping[str, int] = dataclasses.field(default_factory=dict)
    round: typing.Optional[Round] = None
    closed: str = ""
    ends: typing.Tuple[End, ...] = ()
    fruitless: int = 0
    step: typing.Optional[int] = None
    heirs: typing.Tuple[int, ...] = ()
    change: typing.Optional[Change] = None


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far training has come. step: the highest ever reported; in_world: the highest one of the world `generation`."""

    step: int
    generation: int
    in_world: int


@dataclasses.dataclass(frozen=True)
class Leaving:
    """A member that must go: the announced cause, and in how many seconds from when this was written.

    when_replaced: it may have to go, and keeps its place until another member takes it.
    """

    member: str
    cause: str
    by_s: float = 0.0
    when_replaced: bool = False


@dataclasses.dataclass(frozen=True)
class Expected:
    """The controller's word on the job. pending: members that cannot be there yet. finished: members whose pods have ended with 0.

    floor: no world may be numbered below it. max_restarts, without_progress, hang_s: None for no limit. restarts, fruitless, step: those
    with which the first world here begins. newcomers: members that have not been seen in a world yet. state_s: after so long the members
    of a world have its state, where training reports no steps. term: orders the controllers that write this record. first_step_s, pace_s:
    as in the engine's Budget; a controller of release 0.4.0 writes neither.
    """

    members: typing.Tuple[str, ...]
    min: int
    max: int
    pending: typing.Tuple[str, ...] = ()
    leaving: typing.Tuple[Leaving, ...] = ()
    finished: typing.Tuple[str, ...] = ()
    sizes: typing.Tuple[int, ...] = ()
    grace_s: float = 30.0
    floor: int = 0
    max_restarts: typing.Optional[int] = None
    restarts: typing.Mapping[str, int] = dataclasses.field(default_factory=dict)
    closed: str = ""
    term: int = 0
    without_progress: typing.Optional[int] = None
    hang_s: typing.Optional[float] = None
    fruitless: int = 0
    step: typing.Optional[int] = None
    newcomers: typing.Tuple[str, ...] = ()
    state_s: float = 30.0
    first_step_s: float = 600.0
    pace_s: float = 0.0


Record = typing.Union[Member, World, Expected, Progress, Values, News, Findings]


class Seal:
    """Seals what is written under a job's prefix, and opens what was sealed with the same token."""

    def __init__(self, token: str, job: str) -> None:
        self._key = hashlib.sha256("elastic-etcd/{}\0{}".format(VERSION, job).encode() + b"\0" + token.encode()).digest()

    def close(self, key: str, record: Record) -> bytes:
        """Return the value to write under this key."""
        body = json.dumps(_plain(record), separators=(",", ":"), sort_keys=True)
        return json.dumps({"v": VERSION, "seal": self._sign(key, body), "body": body}).encode()

    def open(self, key: str, value: bytes) -> Record:
        """Return the record that lies under this key. Raise Unusable, and nothing else."""
        try:
            if len(value) > LONGEST_RECORD:
                raise Unusable("it is {} bytes long, more than {}".format(len(value), LONGEST_RECORD))
            envelope = json.loads(value, parse_int=_short_int)
            if not isinstance(envelope, dict) or envelope.get("v") != VERSION:
                raise Unusable("it is no record of version {}".format(VERSION))
            body, seal = envelope.get("body"), envelope.get("seal")
            if not isinstance(body, str) or not isinstance(seal, str):
                raise Unusable("it has no body or no seal")
            if not hmac.compare_digest(seal.encode(), self._sign(key, body).encode()):
                raise Foreign("it was not sealed with this job's token")
            return _read(key, json.loads(body, parse_int=_short_int))
        except Unusable:
            raise
        except (ValueError, RecursionError, UnicodeError) as error:
            raise Unusable("it is not JSON: {}".format(str(error)[:100])) from None

    def _sign(self, key: str, body: str) -> str:
        return hmac.new(self._key, "{}\0{}".format(key, body).encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def clipped(words: str) -> str:
    """Return the text, cut to the length that a record may hold."""
    return words if len(words) <= LONGEST_WORDS else words[: LONGEST_WORDS - 3] + "..."


def _short_int(digits: str) -> int:
    """Read a number; reading one of a million digits would take seconds."""
    if len(digits) > 20:
        raise Unusable("it holds a number of {} digits".format(len(digits)))
    return int(digits)


def _plain(record: Record) -> typing.Mapping[str, typing.Any]:
    if isinstance(record, Findings):
        return record.body
    fields = dataclasses.asdict(record)
    fields.pop("name", None)  # the key says it
    return fields


def _read(key: str, body: object) -> Record:
    fields = Fields(body)
    if key == FINDINGS:
        return findings_of(body)
    if key == WORLD:
        return _world(fields)
    if key == EXPECTED:
        return _expected(fields)
    if key == PROGRESS:
        return _progress(fields)
    if key.startswith(EXCHANGE) and NAME.match(key[len(EXCHANGE) :]):
        return values_of(key[len(EXCHANGE) :], fields)
    if key.startswith(NEWS) and NAME.match(key[len(NEWS) :]):
        return news_of(key[len(NEWS) :], fields)
    name = key[len(MEMBERS) :]
    if not key.startswith(MEMBERS) or not NAME.match(name):
        raise Unusable("no record lies under this key")
    return _member(name, fields)


def _member(name: str, fields: Fields) -> Member:
    failed = fields.inner("failed")
    return Member(
        name=name,
        incarnation=fields.plain("incarnation"),
        store=fields.plain("store"),
        entered=fields.generation("entered"),
        after=fields.generation("after"),
        trouble=fields.words("trouble"),
        failed=_failed(failed) if failed is not None else None,
        finished=fields.generation("finished"),
        left=fields.words("left"),
        alive_at=fields.plain("alive_at", default=""),
        in_process=part_of(fields.inner("in_process")),
    )


def _failed(fields: Fields) -> Failed:
    at = fields.integer("at", 0, 2**63) or 0
    status = fields.integer("status", 0, 1024)
    flags = {name: fields.flag(name) for name in ("follows", "out_of_memory", "replaced", "by_library")}
    rank, error = fields.integer("rank", 0, MOST_COUNTED), fields.words("error")[:MAX_ERROR]
    return Failed(fields.generation("generation"), status, at, rank=rank, error=error, **flags)


def _world(fields: Fields) -> World:
    seats = tuple(Seat(seat.name("name"), seat.plain("incarnation")) for seat in fields.inners("seats"))
    if len({seat.name for seat in seats}) != len(seats):
        raise Unusable("seats holds a name twice")
    round = fields.inner("round")
    return World(
        generation=fields.generation("generation"),
        seats=seats,
        store=fields.plain("store"),
        reason=fields.words("reason"),
        cause=fields.words("cause"),
        restarts=fields.counts("restarts"),
        ends=tuple(_end(end) for end in fields.inners("ends"))[-MOST_ENDS:],
        round=Round(round.words("reason"), round.words("cause"), round.ranks("planned")) if round is not None else None,
        closed=fields.words("closed"),
        fruitless=fields.integer("fruitless", 0, MOST_RESTARTS) or 0,
        step=fields.step("step"),
        heirs=fields.ranks("heirs"),
        change=change_of(fields.inner("change")),
    )


def _progress(fields: Fields) -> Progress:
    return Progress(fields.step("step") or 0, fields.generation("generation"), fields.step("in_world") or 0)


def _expected(fields: Fields) -> Expected:
    least, most = fields.integer("min", 1, MOST_MEMBERS), fields.integer("max", 1, MOST_MEMBERS)
    if least is None or most is None or least > most:
        raise Unusable("min is {} and max is {}".format(least, most))
    return Expected(
        members=fields.names("members"),
        min=least,
        max=most,
        pending=fields.names("pending"),
        leaving=tuple(_leaving(one) for one in fields.inners("leaving")),
        finished=fields.names("finished"),
        sizes=fields.sizes("sizes"),
        grace_s=fields.seconds("grace_s", 30.0),
        floor=fields.generation("floor"),
        max_restarts=fields.integer("max_restarts", 0, MOST_RESTARTS),
        restarts=fields.counts("restarts"),
        closed=fields.words("closed"),
        term=fields.generation("term"),
        without_progress=fields.integer("without_progress", 0, MOST_RESTARTS),
        hang_s=fields.limit_s("hang_s"),
        fruitless=fields.integer("fruitless", 0, MOST_RESTARTS) or 0,
        step=fields.step("step"),
        newcomers=fields.names("newcomers"),
        state_s=fields.seconds("state_s", 30.0),
        first_step_s=fields.seconds("first_step_s", 600.0),
        pace_s=fields.seconds("pace_s", 0.0),
    )


def _leaving(fields: Fields) -> Leaving:
    return Leaving(fields.name("member"), fields.words("cause"), fields.seconds("by_s", 0.0), fields.flag("when_replaced"))


def _end(fields: Fields) -> End:
    return End(
        fields.generation("generation"), fields.name("name"), fields.plain("incarnation"), fields.words("cause"), fields.flag("is_lost")
    )


@dataclasses.dataclass(frozen=True)
class Present:
    """A member's record with etcd's revisions: when its key was created, and last written."""

    record: Member
    created: int
    written: int


@dataclasses.dataclass(frozen=True)
class Records:
    """All that lies under the prefix, as of one moment. A revision of 0: no such key; one that holds no record of ours has a revision.

    is_foreign: the world was sealed with another token.
    """

    members: typing.Mapping[str, Present]
    world: typing.Optional[World] = None
    world_written: int = 0
    expected: typing.Optional[Expected] = None
    expected_written: int = 0
    is_foreign: bool = False
    progress: typing.Optional[Progress] = None
    progress_written: int = 0
    exchange: typing.Mapping[str, Values] = dataclasses.field(default_factory=dict)
    news: typing.Mapping[str, News] = dataclasses.field(default_factory=dict)
    findings: typing.Optional[Findings] = None
    findings_written: int = 0

    def has_seat(self, name: str, incarnation: str, *, generation: typing.Optional[int] = None) -> bool:
        """Whether this run of this member belongs to the world, and this is the world's generation."""
        world = self.world
        return world is not None and generation in (None, world.generation) and Seat(name, incarnation) in world.seats

    def absent(self) -> typing.FrozenSet[str]:
        """Members of the world that have no record."""
        seats = self.world.seats if self.world is not None else ()
        return frozenset(seat.name for seat in seats if seat.name not in self.members)
