"""Follow the records of one job in its etcd: report its world, and keep the record `expected` there on a lease.

An etcd that does not answer, or answers nonsense, harms only its own job: each call has a deadline, and the size of the records is bounded.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from elastic.etcd import observed
from elastic.etcd.messages import NotInstalled
from elastic.etcd.place import EtcdPlace
from elastic.etcd.records import (
    EXPECTED,
    FINDINGS,
    MEMBERS,
    PROGRESS,
    WORLD,
    Expected,
    Findings,
    Member,
    Progress,
    Record,
    Records,
    Seal,
    Unusable,
    World,
)
from elastic.etcd.room import Room
from elastic.etcd.store import Away, Compacted, Entry, Full, Store, StoreRefused
from elastic.membership import bounds, wire

log = logging.getLogger(__name__)

LEASE_S = 60
"""Agents keep to the expectation for this long after the controller stops. Then they decide without it."""
KEEP_S = 10.0
CHECK_S = 5.0
PAUSE_S = 0.05
"""The follower pauses at least this long between two looks at the changes."""
SHARE = 20
"""The pause after a look is this many times as long as the look."""
ENTRY_S, BYTE_S = 1e-5, 2e-9
"""Reading a change takes ENTRY_S, and BYTE_S more for each of its bytes."""
FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 0.2, 15.0
FIRST_PATIENCE_S, PATIENCE_S = 6.0, 60.0
"""An etcd may be away for this long, at first and later, before the job's pods are counted instead."""
NOTICE_S = 15.0
"""Agents notice the end of another agent within this time: its lease expires, and then they report it."""
ANSWER_S = 4.0
UNREAD = ("news/", "exchange/")
"""Keys that only members read. Their values are not kept here."""
MOST_KEYS = 4 * bounds.MAX_MEMBERS
MOST_BYTES = 12 * 1024 * 1024
"""The records of a job with 8,192 members may take this much."""
MOST_LOGGED = 20

Visit = Callable[[EtcdPlace], Awaitable[Store]]
"""A visit opens the etcd of a place. It raises Away, Refused or NotInstalled."""
Emit = Callable[[wire.WorldReport], None]


class Follower:
    """The follower of one job, for one event loop. `run` follows until it is cancelled."""

    def __init__(
        self,
        job: str,
        place: EtcdPlace,
        *,
        seal: Seal,
        visit: Visit,
        emit: Emit,
        room: Room,
        clock: Callable[[], float],
        worked_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self.place = place
        self._job = job
        self._seal = seal
        self._visit = visit
        self._emit = emit
        self._room = room
        self._clock = clock
        self._worked_s = worked_s
        self._wake = asyncio.Event()
        self._wanted: wire.Expectation | None = None
        self._expected: Expected | None = None
        self._answered = asyncio.Event()
        self._kept: wire.Expectation | None = None
        """The newest expectation that etcd is known to have."""
        self._lease = 0
        self._entries: dict[str, Entry] = {}
        self._records: dict[str, tuple[int, Record | None]] = {}
        self._bytes = self._logged = 0
        self._away_since: float | None = clock()
        self._was_reached = self._is_counted = False
        self._trouble = "no answer yet"
        self._said: wire.WorldReport | None = None
        self._seen: dict[str, float] = {}
        self._since: tuple[int, float] = (0, clock())
        self._marks: dict[str, float] = {}
        self._found: tuple[int, float] = (0, clock())
        """The revision of the newest findings, and when it was seen first."""
        self._baseline = 0
        self.last_step: int | None = None
        """The highest step seen. Its record is lost with the lease of the agent that wrote it."""

    # --- for the membership

    async def expect(self, expectation: wire.Expectation) -> None:
        """Store what is expected, and return once agents can read it. Raise Away if they cannot."""
        self._wanted, self._expected = expectation, observed.expected_of(expectation)
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                while self._kept is not expectation and self._wanted is expectation:
                    await self._answered.wait()
        if self._kept is not expectation:
            raise Away(self._trouble)

    async def clear(self) -> None:
        """Remove all records, once no agent is left that would write them again. `run` has ended."""
        store = await self._visit(self.place)
        try:
            async for page in store.pages(self.place.prefix):
                if any(not member.left and not member.finished for member in self._members_in(page.entries)):
                    raise Away("agents of the job are still there")
            await store.remove(self.place.prefix)
        finally:
            await store.close()

    def _members_in(self, entries: tuple[Entry, ...]) -> list[Member]:
        found = [self._opened(entry) for entry in entries if entry.key.startswith(MEMBERS)]
        return [record for record in found if isinstance(record, Member)]

    # --- the loop

    async def run(self) -> None:
        back_off_s = FIRST_BACK_OFF_S
        while True:
            began = self._clock()
            try:
                await self._stay()
            except Full as error:
                self._note_away(str(error), patience_s=0.0)
            except (Away, StoreRefused, NotInstalled) as error:
                self._note_away(str(error))
            except Compacted:
                self._note_away("history was compacted")
                continue
            except Exception as error:
                log.exception("following a job in etcd failed", extra={"uid": self._job})
                self._note_away(f"an error of the controller: {type(error).__name__}")
            back_off_s = FIRST_BACK_OFF_S if self._clock() - began > 2 * LONGEST_BACK_OFF_S else min(2 * back_off_s, LONGEST_BACK_OFF_S)
            await asyncio.sleep(back_off_s)

    async def _stay(self) -> None:
        """Connect, and follow the records until the connection breaks."""
        async with _closing(await self._visit(self.place)) as store:
            revision = 0
            try:
                async for page in store.pages(self.place.prefix):
                    revision = page.revision
                    self._merge(page.entries)
                watch = asyncio.create_task(self._watch(store, revision + 1))
                try:
                    await self._keep(store, watch)
                finally:
                    watch.cancel()
                    await asyncio.gather(watch, return_exceptions=True)
            finally:
                self._drop()

    async def _watch(self, store: Store, since: int) -> None:
        async for entries in store.watch(self.place.prefix, since):
            self._merge(entries)
            self._wake.set()
            # A flood of changes is read as slowly as this; etcd holds the rest.
            worked = sum(ENTRY_S + BYTE_S * len(entry.value or b"") for entry in entries)
            await asyncio.sleep(max(PAUSE_S / 2, SHARE * worked))

    async def _keep(self, store: Store, watch: "asyncio.Task[None]") -> None:
        keep_at, check_at, doubt = 0.0, self._clock() + CHECK_S, None
        while True:
            self._wake.clear()
            now = self._clock()
            if now >= keep_at:
                await self._keep_lease(store)
                keep_at = now + KEEP_S
            if now >= check_at:
                if await store.is_full():
                    raise Full
                doubt = await self._check(store, doubt)
                check_at = self._clock() + CHECK_S
            await self._write(store)
            if self._away_since is not None:  # an etcd that only lets itself be read is as good as away
                self._note_reached()
            worked = self._worked_s()
            self._say()
            if watch.done():
                if not watch.cancelled():  # as an exception, this would end the follower for ever
                    watch.result()
                raise Away("etcd ended the watch")
            # This pause bounds the share of this thread that one job takes, however much is written to its etcd.
            await asyncio.sleep(max(PAUSE_S, SHARE * (self._worked_s() - worked)))
            waking = asyncio.create_task(self._wake.wait())
            pause_s = max(0.0, min(keep_at, check_at, self._next_notice()) - self._clock())
            try:
                await asyncio.wait([waking, watch], timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waking.cancel()

    async def _keep_lease(self, store: Store) -> None:
        # Ask first, because a refused lease does not say what to do.
        if await store.is_full():
            raise Full
        if not self._lease or not await store.keep(self._lease):
            self._lease, self._kept = await store.grant(LEASE_S), None

    async def _check(self, store: Store, doubt: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return our state if etcd's differs. Raise Away if a second check finds our state unchanged, because the watch is then silent."""
        self._hold()
        there = await store.newest(self.place.prefix)
        here = (max((entry.written for entry in self._entries.values()), default=0), len(self._entries))
        if there == here:
            return None
        if doubt == here:
            raise Away("the watch is silent")
        return here

    async def _write(self, store: Store) -> None:
        """Put what is expected where agents read it, on our lease."""
        wanted, record, known = self._wanted, self._expected, self._record(EXPECTED)
        if wanted is None or record is None or (self._kept is wanted and known == record):
            return
        if isinstance(known, Expected) and known.term > record.term:
            raise StoreRefused("another controller leads")
        if known != record or self._kept is None:
            key, there = self.place.prefix + EXPECTED, self._entries.get(EXPECTED)
            value, before = self._seal.close(EXPECTED, record), there.written if there is not None else 0
            revision = await store.put(key, value, lease=self._lease, unchanged=before)
            if not revision:
                return  # somebody wrote it: the watch brings that, and this is tried again
            self._merge((Entry(EXPECTED, value, revision),))
        self._kept = wanted
        self._trouble = ""
        self._answered.set()
        self._answered = asyncio.Event()

    # --- the records

    def _merge(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            if entry.value is not None and entry.key.startswith(UNREAD):
                entry = entry._replace(value=b"")
            before = self._entries.get(entry.key)
            if before is not None and before.written >= entry.written:
                continue
            self._bytes += len(entry.value or b"") - len((before.value or b"") if before is not None else b"")
            if entry.value is None:
                self._entries.pop(entry.key, None)
                self._records.pop(entry.key, None)
            else:
                self._entries[entry.key] = entry
        self._hold()

    def _hold(self) -> None:
        has_room = self._room.has(self._job, self._bytes)
        if len(self._entries) > MOST_KEYS or self._bytes > MOST_BYTES or not has_room:
            raise StoreRefused(f"{len(self._entries)} keys of {self._bytes} bytes lie under {self.place.prefix}, which is too much")

    def _drop(self) -> None:
        """Forget everything that was read from etcd."""
        self._entries, self._records, self._bytes = {}, {}, 0
        self._room.free(self._job)

    def _record(self, key: str) -> Record | None:
        """Return the record of a key, and open each value only once."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        known = self._records.get(key)
        if known is None or known[0] != entry.written:
            known = self._records[key] = (entry.written, self._opened(entry))
        return known[1]

    def _opened(self, entry: Entry) -> Record | None:
        try:
            return self._seal.open(entry.key, entry.value or b"")
        except Unusable as error:
            self._logged += 1
            if self._logged <= MOST_LOGGED:
                log.warning("a value in etcd is ignored", extra={"uid": self._job, "key": entry.key[:300], "error": str(error)})
            return None

    def _all(self) -> Records:
        world, expected, progress, findings = (self._record(key) for key in (WORLD, EXPECTED, PROGRESS, FINDINGS))
        members = {key[len(MEMBERS) :]: self._record(key) for key in self._entries if key.startswith(MEMBERS)}
        return Records(
            members={name: record for name, record in members.items() if isinstance(record, Member)},
            world=world if isinstance(world, World) else None,
            expected=expected if isinstance(expected, Expected) else None,
            progress=progress if isinstance(progress, Progress) else None,
            findings=findings if isinstance(findings, Findings) else None,
        )

    # --- reports

    def _say(self) -> None:
        records, now = self._all(), self._clock()
        self._time(records, now)
        if records.progress is not None:
            self.last_step = max(records.progress.step, self.last_step or 0)
        ended = {observed.end_id(end) for end in self._wanted.ended} if self._wanted is not None else set()
        self._seen = {id: self._seen.get(id, now) for id in ended}
        silent = {id for id, at in self._seen.items() if now - at >= NOTICE_S}
        phases = {name: max(0, round(1000 * seconds)) for name, seconds in self._phases().items()}
        if (entry := self._entries.get(FINDINGS)) is not None and entry.written != self._found[0]:
            self._found = (entry.written, now)
        world = observed.heard(
            self._job,
            records,
            self._wanted,
            age_s=now - self._since[1],
            phases=phases,
            silent=silent,
            found_s=now - self._found[1],
            baseline=self._baseline,
        )
        if self._said is None or _without_ages(world) != _without_ages(self._said):
            self._said = world
            self._emit(world)

    def _next_notice(self) -> float:
        waiting = [at + NOTICE_S for at in self._seen.values() if at + NOTICE_S > self._clock()]
        return min(waiting, default=float("inf"))

    def _time(self, records: Records, now: float) -> None:
        """Note since when the world stands, and how long its forming took, by our clock."""
        generation = records.world.generation if records.world is not None else 0
        phase = observed.phase_of(records)
        if phase in ("re-forming", "forming"):
            self._marks.setdefault("broken", now)
        if generation != self._since[0]:
            broken = self._marks.pop("broken", None)
            self._marks = {"sealed": now} | ({"round": now - broken} if broken is not None else {})
            self._since = (generation, now)
        if "sealed" in self._marks and "start" not in self._marks and observed.has_started(records):
            self._marks["start"] = now - self._marks["sealed"]
        if "start" in self._marks and "firstStep" not in self._marks and observed.has_stepped(records):
            self._marks["firstStep"] = now - self._marks["sealed"] - self._marks["start"]

    def _phases(self) -> dict[str, float]:
        return {name: self._marks[name] for name in ("round", "start", "firstStep") if name in self._marks}

    def _note_reached(self) -> None:
        if self._is_counted:
            world = self._record(WORLD)
            self._baseline = world.generation if isinstance(world, World) else self._baseline
            log.info("the etcd of a job answers again", extra={"uid": self._job})
        self._away_since = None
        self._was_reached, self._is_counted, self._trouble = True, False, ""
        self._said = None

    def _note_away(self, words: str, *, patience_s: float | None = None) -> None:
        now = self._clock()
        self._trouble = words
        if self._away_since is None:
            self._away_since = now
            log.warning("the etcd of a job does not answer", extra={"uid": self._job, "error": words})
        if patience_s is None:
            patience_s = PATIENCE_S if self._was_reached else FIRST_PATIENCE_S
        if now - self._away_since >= patience_s:
            said = observed.unreached(self._job, words, generation=self._since[0])
            if not self._is_counted or self._said != said:
                self._said = said
                self._emit(said)
            self._is_counted = True


def _without_ages(world: wire.WorldReport) -> wire.WorldReport:
    hang = replace(world.hang, ago_s=0.0) if world.hang is not None else None
    return replace(world, standing=None, hang=hang) if world.standing is not None else world


@contextlib.asynccontextmanager
async def _closing(store: Store) -> AsyncIterator[Store]:
    try:
        yield store
    finally:
        await store.close()
