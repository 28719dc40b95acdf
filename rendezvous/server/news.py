"""Number the changes of jobs, so that each listener gets only those after the last one that it has."""

import asyncio
import itertools


class News:
    """The newest change of each job, and the newest jobs that are gone. A listener costs work only for changes."""

    def __init__(self, *, most_forgotten: int) -> None:
        self.version = 0
        self._most_forgotten = most_forgotten
        self._changed_at: dict[str, int] = {}
        """The version of each job's newest change, the newest last."""
        self._forgotten_at: dict[str, int] = {}
        self._more = asyncio.Event()

    def __contains__(self, uid: str) -> bool:
        return uid in self._changed_at

    def __len__(self) -> int:
        return len(self._changed_at)

    def publish(self, uid: str) -> None:
        """Note a change of the job."""
        self._note(uid, self._changed_at)

    def forget(self, uid: str) -> None:
        """Note that the job is gone."""
        self._changed_at.pop(uid, None)
        self._note(uid, self._forgotten_at)
        while len(self._forgotten_at) > self._most_forgotten:
            del self._forgotten_at[next(iter(self._forgotten_at))]

    def forgotten_at(self, uid: str) -> int | None:
        """Return the version at which the job was forgotten last; None if it never was, or long ago."""
        return self._forgotten_at.get(uid)

    def since(self, version: int) -> tuple[list[str], list[str]]:
        """Return the jobs that changed after this version, and those that are gone. A listener that begins (-1) knows of none."""
        gone = [uid for uid in _newer(self._forgotten_at, version) if uid not in self._changed_at] if version >= 0 else []
        return _newer(self._changed_at, version), gone

    async def wait_newer(self, version: int) -> int:
        """Wait until something changed after this version. Return the newest version."""
        while self.version <= version:
            await self._more.wait()
        return self.version

    def _note(self, uid: str, versions: dict[str, int]) -> None:
        self.version += 1
        versions.pop(uid, None)
        versions[uid] = self.version
        more, self._more = self._more, asyncio.Event()
        more.set()


def _newer(versions: dict[str, int], version: int) -> list[str]:
    """Return the jobs with a later version, the oldest first."""
    return list(itertools.takewhile(lambda uid: versions[uid] > version, reversed(versions)))[::-1]
