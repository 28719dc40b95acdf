"""Keep the logs of pods that are gone, so that `elastic logs` shows a job's whole run.

A job loses pods when it is suspended, shrinks, or its nodes are taken away. A node's agent then moves their logs into a folder of the
job's, and forgets the oldest ones if all of them together take too much room.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_OF_ONE = 16 * 1024 * 1024
"""Bytes that are kept of one run of a container. The beginning of a longer log is dropped."""
MOST_OF_ALL = 512 * 1024 * 1024
MOST_LOGS = 5000
LONGEST_LINE = 64 * 1024
"""A cut log begins in the middle of a line that is longer, as of a progress bar that never ends its line."""
PIECE = 1024 * 1024
LONGEST_NOTE = 64
"""Bytes of the line that stands for the beginning of a longer log."""
_OWNER = re.compile(r"[0-9A-Za-z-]{1,64}")
"""A uid. Users may write anything into ownerReferences, and this becomes the name of a folder."""
_NAME = re.compile(r"(?P<ended>\d{20})~(?P<pod>[^~/]+)~(?P<container>[^~/]+)~(?P<attempt>\d+)\.log")


@dataclass(frozen=True, slots=True)
class KeptLog:
    """The output of one run of a container."""

    pod: str
    container: str
    path: Path

    def pieces(self) -> Iterator[bytes]:
        """Yield the content. A log that was forgotten meanwhile has none."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as file:
            while piece := file.read(PIECE):
                yield piece


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """The kept logs of a cluster, in a folder for each owner of pods."""

    folder: Path

    def of(self, owner: str, container: str | None) -> list[KeptLog]:
        """Return the logs of this container, or of all, in pods of an owner that are gone, in the order in which they ended."""
        found = sorted(self.folder.joinpath(owner).glob("*.log")) if _OWNER.fullmatch(owner) else []
        named = [(path, match) for path in found if (match := _NAME.fullmatch(path.name)) is not None]
        return [KeptLog(match["pod"], match["container"], path) for path, match in named if container in (None, match["container"])]

    def keep(self, log: Path, *, owner: str, pod: str, container: str, attempt: int) -> None:
        """Move the log of a run that has ended here. An empty log is not kept, and neither is that of a pod without an owner.

        If the log cannot be kept, for example because the disk is full, it goes with its pod: that the pod ends is more important.
        """
        with contextlib.suppress(OSError):
            size = log.stat().st_size
            if not _OWNER.fullmatch(owner) or not size:
                return
            folder = self.folder / owner
            folder.mkdir(parents=True, exist_ok=True)
            if size > MOST_OF_ONE:
                _keep_end(log, size)
            log.replace(folder / f"{time.time_ns():020d}~{pod}~{container}~{attempt}.log")
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Forget the oldest logs if there are too many. The agents of several nodes may do it at once."""
        room, newest_first = MOST_OF_ALL, sorted(self.folder.glob("*/*.log"), key=lambda path: path.name, reverse=True)
        for number, path in enumerate(newest_first):
            with contextlib.suppress(OSError):
                room -= path.stat().st_size
                if room < 0 or number >= MOST_LOGS:
                    path.unlink()
                    path.parent.rmdir()  # fails while it has other logs


def _keep_end(path: Path, size: int) -> None:
    """Replace a log by its last lines."""
    draft = path.with_suffix(".end")
    with path.open("rb") as whole, draft.open("wb") as end:
        whole.seek(size - MOST_OF_ONE + LONGEST_NOTE)
        whole.readline(LONGEST_LINE)
        end.write(b"... %d bytes of this log are left out\n" % whole.tell())
        while piece := whole.read(PIECE):
            end.write(piece)
    draft.replace(path)
