"""Server-sent events: the list of jobs, one job, or the nodes, first as a whole and then the changes, at most once a second.

A client costs a place, a number, the uids of the jobs that it sees and one message at a time. A client that takes nothing for 10 s is
dropped. Its browser comes back by itself and gets the whole again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from elastic_training.dashboard.history.book import Book
from elastic_training.dashboard.serving.callers import BadToken, Caller, NotReviewed
from elastic_training.dashboard.serving.news import News
from elastic_training.dashboard.serving.sessions import Session
from elastic_training.dashboard.serving.shown import COLUMNS, encode
from elastic_training.dashboard.serving.views import Views, sees
from elastic_training.dashboard.watching.observer import Observer
from elastic_training.dashboard.watching.seen import JobSeen

LEAST_GAP_S, NODES_GAP_S = 1.0, 5.0
BYTES_A_SECOND = 256 * 1024
"""Bytes per second to one client: the next message waits longer after a long one."""
KEEP_ALIVE_S = 15.0
TAKEN_WITHIN_S = 10.0
MOST_CLIENTS = 128
MOST_OF_ONE, MOST_OF_A_USER = 16, MOST_CLIENTS // 2
LIFE_S = 4 * 3600.0


class NoPlace(Exception):
    """There are as many streams as may be."""


@dataclass(slots=True)
class StreamPlaces:
    """The number of streams: in all, of one session, and of one user.

    If all places are taken, the user with most of them gives up the oldest to a user with fewer. Otherwise two users, or one with two
    namespaces, would lock out all others.
    """

    _taken: Counter[tuple[str, str]] = field(default_factory=Counter)
    _open: dict[object, tuple[Session, Callable[[], object]]] = field(default_factory=dict)
    """In the order in which they were taken, with what ends them."""

    @property
    def count(self) -> int:
        return len(self._open)

    @contextlib.contextmanager
    def taken(self, session: Session, leave: Callable[[], object]) -> Iterator[None]:
        """`leave` ends this stream soon, from outside."""
        limits = _limits(session)
        if any(self._taken[key] >= most for key, most in limits.items()):
            raise NoPlace
        if self.count >= MOST_CLIENTS and not self._is_made_for(session.user):
            raise NoPlace
        place = object()
        self._open[place] = session, leave
        self._taken.update(limits.keys())
        try:
            yield
        finally:
            self._free(place)

    def _is_made_for(self, user: str) -> bool:
        place, (session, leave) = max(self._open.items(), key=lambda one: self._taken["user", one[1][0].user])
        if self._taken["user", session.user] <= self._taken["user", user] + 1:
            return False
        self._free(place)
        leave()
        return True

    def _free(self, place: object) -> None:
        if (found := self._open.pop(place, None)) is not None:
            self._taken.subtract(_limits(found[0]).keys())
            self._taken = +self._taken


def _limits(session: Session) -> dict[tuple[str, str], int]:
    return {("session", session.id): MOST_OF_ONE, ("user", session.user): MOST_OF_A_USER}


class Streams:
    def __init__(self, observer: Observer, book: Book, views: Views, news: News) -> None:
        self._observer, self._book, self._views, self._news = observer, book, views, news
        self._rows: dict[str, tuple[int, bytes]] = {}
        """By uid: at which version a job was encoded, and how; all clients share it."""

    def row(self, job: JobSeen) -> bytes:
        version = self._news.of(job.uid)
        known = self._rows.get(job.uid)
        if known is None or known[0] != version:
            known = self._rows[job.uid] = (version, encode(self._views.row(job)))
        return known[1]

    def forget(self, uid: str) -> None:
        self._rows.pop(uid, None)

    def history(self, uid: str, *, after: float = -math.inf) -> bytes:
        """Columns and rows of a job's series."""
        record = self._book.get(uid)
        rows = [tuple(row) for row in record.series.rows(after=after)] if record is not None else []
        return encode({"columns": COLUMNS, "rows": rows})

    async def list_of(self, caller: Caller) -> bytes:
        return self._rows_of(await self._views.jobs(caller))

    def _rows_of(self, jobs: Iterable[JobSeen]) -> bytes:
        return b"[" + b",".join(map(self.row, jobs)) + b"]"

    def jobs(self, caller: Caller) -> AsyncIterator[bytes]:
        """Yield messages. `jobs` has all jobs; `changed` has new and changed jobs, and the uids of jobs that the caller sees no more."""
        shown: set[str] = set()

        async def make(topics: Sequence[str] | None) -> bytes:
            nonlocal shown
            if topics is None:
                found = await self._views.jobs(caller)
                shown = {job.uid for job in found}
                return _event("jobs", self._rows_of(found))
            there = [job for topic in topics if (job := self._observer.job_of_uid(topic)) is not None]
            found = [job for job in there if await sees(caller, job)]
            seen = {job.uid for job in found}
            gone = [topic for topic in topics if topic in shown and topic not in seen]
            shown = (shown | seen) - set(gone)
            return _event("changed", b'{"jobs":' + self._rows_of(found) + b',"gone":' + encode(gone) + b"}") if found or gone else b""

        return self._paced(make, gap_s=LEAST_GAP_S)

    def job(self, caller: Caller, uid: str) -> AsyncIterator[bytes]:
        """`job`: its page. `history`: rows that are newer than those sent before. `gone`: it is not there any more."""
        sent_until = -math.inf

        async def make(topics: Sequence[str] | None) -> bytes | None:
            nonlocal sent_until
            if topics is not None and uid not in topics:
                return b""
            job = self._observer.job_of_uid(uid)
            if job is None or not await sees(caller, job):
                return None
            text = _event("job", encode(await self._views.page(caller, job))) + _event("history", self.history(uid, after=sent_until))
            last = record.series.last() if (record := self._book.get(uid)) is not None else None
            sent_until = last.at if last is not None else sent_until
            return text

        return self._paced(make, gap_s=LEAST_GAP_S)

    def nodes(self, caller: Caller) -> AsyncIterator[bytes]:
        """`nodes`: all of them with the workers on them."""
        sent = b""

        async def make(topics: Sequence[str] | None) -> bytes:
            nonlocal sent
            text = _event("nodes", encode(await self._views.nodes(caller))) if topics is None or topics else b""
            if text in (b"", sent):
                return b""
            sent = text
            return text

        return self._paced(make, gap_s=NODES_GAP_S)

    async def _paced(self, make: Callable[[Sequence[str] | None], Awaitable[bytes | None]], *, gap_s: float) -> AsyncIterator[bytes]:
        """Yield the answers of `make` to topics with news (None: a client that knows nothing), until it returns None."""
        version, clock = -1, asyncio.get_running_loop().time
        sent_at = clock()
        while True:
            newest = self._news.version
            text = await make(self._news.since(version) if version >= 0 else None)
            version = newest
            if text is None:
                yield _event("gone", b"{}")
                return
            if text or clock() - sent_at >= KEEP_ALIVE_S:
                yield text or b": still here\n\n"
                sent_at = clock()
            await asyncio.sleep(max(gap_s, len(text) / BYTES_A_SECOND))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._news.wait_newer(version)


def ender(request: web.Request) -> Callable[[], object]:
    """Return a function that ends the answer to a request by breaking off its connection."""
    return lambda: request.transport.abort() if request.transport is not None else None


async def send(request: web.Request, texts: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send the texts until the client leaves, is too slow or loses the right to read, or until LIFE_S has passed."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    clock = asyncio.get_running_loop().time
    ends_at = clock() + LIFE_S
    with contextlib.suppress(TimeoutError, ConnectionError, BadToken, NotReviewed):
        async for text in texts:
            async with asyncio.timeout(TAKEN_WITHIN_S):
                await response.write(text)
            if clock() > ends_at:
                break
    return response


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
