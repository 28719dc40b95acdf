"""Hold the records of all jobs: at most 2,000, about 100 MB with full series. Further ones replace those without news for longest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from elastic.membership.training import TrainingProgress
from elastic_training.dashboard.history.record import JobRecord
from elastic_training.dashboard.watching.seen import JobSeen

MOST_JOBS = 2000


class Book:
    def __init__(
        self,
        *,
        job_of_uid: Callable[[str], JobSeen | None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job_of_uid = job_of_uid
        self.clock, self.monotonic = clock, monotonic
        self._records: dict[str, JobRecord] = {}
        self.unsaved: set[str] = set()
        """Jobs of which more is known than is stored."""

    def __len__(self) -> int:
        return len(self._records)

    def get(self, uid: str) -> JobRecord | None:
        return self._records.get(uid)

    def hear(self, progress: TrainingProgress) -> None:
        """Take in one message of the rendezvous server."""
        if progress.forgotten:
            if (record := self._records.get(progress.job)) is not None:
                record.forget_training(self.monotonic())
            return
        self._touched(progress.job).hear(progress, self._job_of_uid(progress.job), now=self.clock(), monotonic=self.monotonic())

    def see(self, uid: str) -> None:
        """Take in the job as the API has it now."""
        if (seen := self._job_of_uid(uid)) is not None:
            self._touched(uid).see(seen, now=self.clock())

    def drop(self, uid: str) -> None:
        """Forget a job that is gone."""
        self._records.pop(uid, None)
        self.unsaved.discard(uid)

    def drop_all_but(self, there: Iterable[str]) -> None:
        """Forget the jobs that went while nobody looked."""
        kept = set(there)
        for uid in [uid for uid in self._records if uid not in kept]:
            self.drop(uid)

    def restore(self, records: Iterable[tuple[str, JobRecord]]) -> None:
        for uid, record in records:
            self._records.setdefault(uid, record)
        self._trim()

    def known(self) -> list[str]:
        return list(self._records)

    def _touched(self, uid: str) -> JobRecord:
        record = self._records.pop(uid, None) or JobRecord()
        self._records[uid] = record
        self.unsaved.add(uid)
        self._trim()
        return record

    def _trim(self) -> None:
        while len(self._records) > MOST_JOBS:
            self.drop(next(iter(self._records)))
