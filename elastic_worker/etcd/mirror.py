"""A copy of what lies under a job's prefix, kept current by a watch and checked by a range.

It begins again, by a list, whenever the watch ends, history was compacted, or a check shows that the watch is silent. It decides nothing.
"""

import base64
import logging
import queue
import threading
import typing

from elastic_worker._engine.messages.bounds import MAX_MEMBERS
from elastic_worker.etcd.change_records import Values
from elastic_worker.etcd.fields import Unusable
from elastic_worker.etcd.gateway import Answer, Body, Stream, Unreachable, number, text
from elastic_worker.etcd.news_records import FINDINGS, Findings, News
from elastic_worker.etcd.records import (
    EXPECTED,
    MEMBERS,
    PROGRESS,
    WORLD,
    Expected,
    Foreign,
    Member,
    Present,
    Progress,
    Record,
    Records,
    Seal,
    World,
)

log = logging.getLogger(__name__)

MOST_KEYS = 4 * MAX_MEMBERS
"""Each member has up to three records: its own, its news, and its address in an exchange."""
MOST_ANSWERS = 256
MOST_LOGGED = 20

Change = typing.Union[Answer, Unreachable]


def encoded(value: typing.Union[str, bytes]) -> str:
    """As the gateway takes keys and values."""
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


class Behind(Exception):
    """The copy is not current; a new list mends it."""


class _Entry(typing.NamedTuple):
    created: int
    written: int
    record: typing.Optional[Record]
    is_foreign: bool


class Caller(typing.Protocol):
    """Calls etcd, as a Gateway does."""

    def call(self, path: str, body: Body) -> Answer:
        """Return the answer. Raise Unreachable or Refused."""


class Watching(typing.Protocol):
    """An open watch."""

    def changes(self) -> typing.Iterator[Change]:
        """Return the answers that have come, without waiting."""

    def close(self) -> None:
        """Watch no more."""


OpenWatch = typing.Callable[[Body], Watching]


class Mirror:
    """The copy, which one thread uses."""

    def __init__(self, caller: Caller, *, prefix: str, seal: Seal, open_watch: OpenWatch) -> None:
        self._caller = caller
        self._open_watch = open_watch
        self.prefix = prefix
        self._range = {"key": encoded(prefix), "range_end": encoded(prefix[:-1] + chr(ord(prefix[-1]) + 1))}
        self._seal = seal
        self._entries = {}  # type: typing.Dict[str, _Entry]
        self._watch = None  # type: typing.Optional[Watching]
        self._logged = 0
        self._doubt = None  # type: typing.Optional[typing.Tuple[int, int]]

    @property
    def is_current(self) -> bool:
        """Whether there is a copy and a watch that keeps it so."""
        return self._watch is not None

    def begin(self) -> None:
        """List everything, and watch what follows."""
        self.end()
        answer = self._caller.call("kv/range", dict(self._range, limit=str(MOST_KEYS)))
        self._entries = {}
        for pair in _objects(answer, "kvs"):
            self._take(pair)
        header = answer.get("header")
        revision = number(header, "revision") if isinstance(header, dict) else 0
        request = dict(self._range, start_revision=str(revision + 1))
        self._watch = self._open_watch({"create_request": request})
        self._doubt = None

    def end(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def catch_up(self) -> bool:
        """Take over what the watch has brought; whether that was anything. Raises Behind where it ended."""
        has_changed = False
        for change in self._watch.changes() if self._watch is not None else ():
            if isinstance(change, Unreachable):
                raise Behind(str(change))
            if change.get("canceled") is True:
                compacted = number(change, "compact_revision")
                raise Behind("history was compacted at revision {}".format(compacted) if compacted else text(change, "cancel_reason"))
            for event in _objects(change, "events"):
                pair = event.get("kv")
                if isinstance(pair, dict):
                    has_changed = True
                    self._take(pair, is_deleted=event.get("type") == "DELETE")
        return has_changed

    def check(self) -> None:
        """Compare with what etcd holds, twice in a row; raises Behind where the watch is silent about a difference."""
        question = dict(self._range, limit="1", keys_only=True, sort_target="MOD", sort_order="DESCEND")
        answer = self._caller.call("kv/range", question)
        newest = max((number(pair, "mod_revision") for pair in _objects(answer, "kvs")), default=0)
        there = (newest, number(answer, "count"))
        here = (max((entry.written for entry in self._entries.values()), default=0), len(self._entries))
        if there != here and self._doubt == here:
            raise Behind("the watch is silent")
        self._doubt = here if there != here else None

    def records(self) -> Records:
        """Return the records of the copy."""
        world, expected, progress, findings = (self._entries.get(key) for key in (WORLD, EXPECTED, PROGRESS, FINDINGS))
        members, exchange, news = {}, {}, {}
        for entry in self._entries.values():
            if isinstance(entry.record, Member):
                members[entry.record.name] = Present(entry.record, entry.created, entry.written)
            elif isinstance(entry.record, Values):
                exchange[entry.record.name] = entry.record
            elif isinstance(entry.record, News):
                news[entry.record.name] = entry.record
        return Records(
            members=members,
            world=world.record if world is not None and isinstance(world.record, World) else None,
            world_written=world.written if world is not None else 0,
            expected=expected.record if expected is not None and isinstance(expected.record, Expected) else None,
            expected_written=expected.written if expected is not None else 0,
            is_foreign=world is not None and world.is_foreign,
            progress=progress.record if progress is not None and isinstance(progress.record, Progress) else None,
            progress_written=progress.written if progress is not None else 0,
            exchange=exchange,
            news=news,
            findings=findings.record if findings is not None and isinstance(findings.record, Findings) else None,
            findings_written=findings.written if findings is not None else 0,
        )

    def written(self, name: str) -> int:
        """Return the revision of a member's key, or 0 without a key."""
        entry = self._entries.get(MEMBERS + name)
        return entry.written if entry is not None else 0

    def _take(self, pair: Answer, *, is_deleted: bool = False) -> None:
        key = _decoded(pair, "key").decode("utf-8", "replace")[len(self.prefix) :]
        if is_deleted:
            self._entries.pop(key, None)
            return
        if len(self._entries) >= MOST_KEYS and key not in self._entries:
            raise Behind("more than {} keys lie under {}".format(MOST_KEYS, self.prefix))
        record, is_foreign = None, False  # type: typing.Tuple[typing.Optional[Record], bool]
        try:
            record = self._seal.open(key, _decoded(pair, "value"))
        except Unusable as error:
            is_foreign = isinstance(error, Foreign)
            self._logged += 1
            if self._logged <= MOST_LOGGED:
                log.warning("the value of %s%s in etcd is ignored: %s", self.prefix, key[:300], error)
        self._entries[key] = _Entry(number(pair, "create_revision"), number(pair, "mod_revision"), record, is_foreign)


class Watch:
    """Reads a stream in a thread of its own, as far as its answers are taken over; `wake` is called there for each."""

    def __init__(self, stream: Stream, wake: typing.Callable[[], None]) -> None:
        self._stream = stream
        self._wake = wake
        self._is_closed = False
        self._answers = queue.Queue(MOST_ANSWERS)  # type: queue.Queue[Change]
        threading.Thread(target=self._run, name="elastic-etcd-watch", daemon=True).start()

    def changes(self) -> typing.Iterator[Change]:
        for _ in range(MOST_ANSWERS):
            try:
                yield self._answers.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        self._is_closed = True
        self._stream.close()
        for _ in self.changes():  # a reader that waits for room goes on, and finds the stream closed
            pass

    def _run(self) -> None:
        try:
            for answer in self._stream:
                self._put(answer)
        except Unreachable as error:
            self._put(error)
        finally:
            self._stream.free()

    def _put(self, change: Change) -> None:
        while not self._is_closed:
            try:
                self._answers.put(change, timeout=1.0)
            except queue.Full:
                continue
            self._wake()
            return


def _objects(answer: Answer, name: str) -> typing.List[Answer]:
    value = answer.get(name)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _decoded(pair: Answer, name: str) -> bytes:
    try:
        return base64.b64decode(text(pair, name))
    except ValueError:
        return b""
