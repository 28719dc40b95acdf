"""Keep the records in a SQLite file, so that they survive a restart and a SIGKILL on the laptop.

A thread writes the file every 5 s as long as there is little to write, and at least every 30 s. If the file cannot be read or written,
only the history is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import msgspec

from elastic_training.autoscale.deciding.training import Spent, Training
from elastic_training.dashboard.history.book import MOST_JOBS, Book
from elastic_training.dashboard.history.record import MOST_RESCALES, STEPS, JobRecord
from elastic_training.dashboard.history.series import Row, Series
from elastic_training.dashboard.watching.seen import RescaleSeen

log = logging.getLogger(__name__)
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 30.0
BYTES_A_SECOND = 32 * 1024
"""Bytes written per second, unless the longest pause says otherwise, so that the disk does not wear out."""
BUSY_S = 5.0
MOST_BYTES = 1024 * 1024
"""Bytes of one record. We write no longer ones."""


class Stored(msgspec.Struct, array_like=True, frozen=True):
    """A record as the file has it."""

    series: list[bytes]
    rescales: list[RescaleSeen]
    lost_ms: dict[str, int]
    seconds: dict[Spent, float]
    columns: list[str]
    """Columns of the rows in `series`; an earlier release had others."""
    step: int | None = None
    loss: float | None = None
    unit: str = STEPS


_decode = msgspec.msgpack.Decoder(Stored)


def packed(record: JobRecord, monotonic: float) -> bytes:
    seconds: dict[Spent, float] = {spent: s for spent, s in record.training.spent_until(monotonic).items() if spent is not Spent.OVER}
    return msgspec.msgpack.encode(
        Stored(
            series=record.series.stored(),
            rescales=list(record.rescales.values()),
            lost_ms=record.lost_ms,
            seconds=seconds,
            columns=list(Row._fields),
            step=record.step,
            loss=record.loss,
            unit=record.unit,
        )
    )


def unpacked(data: bytes) -> JobRecord:
    """ValueError for what `packed` did not give."""
    stored = _decode.decode(data)
    if tuple(stored.columns) != Row._fields:
        raise ValueError("its rows have other columns")
    rescales = {rescale.id: rescale for rescale in stored.rescales[-MOST_RESCALES:]}
    training = Training(seconds=stored.seconds)
    return JobRecord(
        series=Series.of(stored.series),
        training=training,
        rescales=rescales,
        lost_ms=stored.lost_ms,
        unit=stored.unit,
        step=stored.step,
        loss=stored.loss,
    )


def pause_s(written: int) -> float:
    """Return the pause after this many bytes. A SIGKILL costs the news of this time."""
    return min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, written / BYTES_A_SECOND))


class HistoryStore:
    def __init__(self, file: Path, book: Book) -> None:
        self._file, self._book = file, book
        self._stored: set[str] = set()
        self._trouble = ""

    async def load(self) -> None:
        """Load the stored history, before anything is heard."""
        found = await asyncio.to_thread(self._read)
        self._stored = {uid for uid, _ in found}
        self._book.restore(found)

    async def keep(self) -> None:
        """Store the history until cancelled, and the rest at the end."""
        try:
            written = 0
            while True:
                await asyncio.sleep(pause_s(written))
                written = await self.save()
        finally:
            await asyncio.shield(self.save())

    async def save(self) -> int:
        """Write the changed records. Return how many bytes they have."""
        monotonic = self._book.monotonic()
        unsaved = {uid for uid in self._book.unsaved if self._book.get(uid) is not None}
        rows = [(uid, packed(record, monotonic)) for uid in unsaved if (record := self._book.get(uid)) is not None]
        gone = self._stored - set(self._book.known())
        self._book.unsaved -= unsaved
        if not rows and not gone:
            return 0
        try:
            await asyncio.to_thread(self._write, rows, gone)
        except (sqlite3.Error, OSError) as error:
            self._book.unsaved |= unsaved
            self._say("the history cannot be stored", error)
        else:
            self._stored = (self._stored - gone) | unsaved
            self._trouble = ""
        return sum(len(record) for _, record in rows)

    def _read(self) -> list[tuple[str, JobRecord]]:
        try:
            with contextlib.closing(self._opened()) as opened:
                rows = opened.execute("SELECT uid, record FROM jobs ORDER BY at DESC LIMIT ?", (MOST_JOBS,)).fetchall()
        except (sqlite3.Error, OSError) as error:
            self._say("the history cannot be read, and begins again", error)
            with contextlib.suppress(OSError):
                self._file.replace(self._file.with_suffix(".unreadable"))
            return []
        found = []
        for uid, data in reversed(rows):
            try:
                if not isinstance(data, bytes) or len(data) > MOST_BYTES:
                    raise ValueError("it is no record of ours")
                found.append((str(uid), unpacked(data)))
            except ValueError as error:
                self._say("the history of a job cannot be read", error)
        return found

    def _write(self, rows: Iterable[tuple[str, bytes]], gone: Iterable[str]) -> None:
        with contextlib.closing(self._opened()) as opened, opened:
            opened.executemany("INSERT OR REPLACE INTO jobs (uid, record, at) VALUES (?, ?, julianday('now'))", rows)
            opened.executemany("DELETE FROM jobs WHERE uid = ?", [(uid,) for uid in gone])
            opened.execute("DELETE FROM jobs WHERE uid NOT IN (SELECT uid FROM jobs ORDER BY at DESC LIMIT ?)", (MOST_JOBS,))

    def _opened(self) -> sqlite3.Connection:
        opened = sqlite3.connect(self._file, timeout=BUSY_S)
        try:
            self._file.chmod(0o600)
            opened.execute("PRAGMA journal_mode = WAL")
            opened.execute("CREATE TABLE IF NOT EXISTS jobs (uid TEXT PRIMARY KEY, record BLOB NOT NULL, at REAL NOT NULL)")
        except BaseException:
            opened.close()
            raise
        return opened

    def _say(self, message: str, error: Exception) -> None:
        if str(error) != self._trouble:
            log.warning(message, extra={"file": str(self._file), "error": str(error)})
        self._trouble = str(error)
