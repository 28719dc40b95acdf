"""Lay out a pod's folder on this machine: its volumes, its logs, and the records of its runs, which are read back after a restart."""

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from elastic.api.owners import controller_uid
from elastic.local.agent.environment import Object
from elastic.local.agent.lifecycle import main_containers
from elastic.local.agent.logtimes import beside
from elastic.local.agent.runs import Run
from elastic.local.kept_logs import KeptLogs
from elastic.local.sandbox import Record

MOST_MESSAGE = 4096
FALLBACK_LINES, FALLBACK_BYTES = 80, 2048
KEPT_LOGS = 2


class PodNote(msgspec.Struct, frozen=True):
    """Facts about a pod that the agent must know without the API server."""

    uid: str
    namespace: str
    name: str
    started_at: float
    gpus: dict[str, list[int]] = {}
    """Numbers of the GPUs that its containers hold."""
    owner: str = ""
    """The uid of its controller."""
    main: list[str] = []
    """Its containers except init containers. Their logs outlive it."""


def note_of(pod: Object, started_at: float) -> PodNote:
    metadata, main = pod["metadata"], [container["name"] for container in main_containers(pod)]
    names = metadata["uid"], metadata["namespace"], metadata["name"]
    return PodNote(*names, started_at, owner=controller_uid(metadata), main=main)


@dataclass(frozen=True, slots=True)
class PodFolder:
    """The layout of a pod's folder."""

    path: Path

    @property
    def hosts(self) -> Path:
        return self.path / "hosts"

    def write_hosts(self, text: str) -> None:
        """Write the file in place, because it is mounted into running containers, which would not see a new file of this name.

        If the folder has just been removed with its pod, nobody reads the file any more.
        """
        content = text.encode()
        with contextlib.suppress(FileNotFoundError):
            if self.hosts.exists() and self.hosts.read_bytes() == content:
                return
            with self.hosts.open("r+b" if self.hosts.exists() else "w+b", buffering=0) as file:
                file.write(content)
                file.truncate()

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    def container(self, name: str) -> Path:
        return self.path / "containers" / name

    def log(self, container: str, attempt: int) -> Path:
        return self.container(container) / f"{attempt}.log"

    def record(self, container: str, attempt: int) -> Path:
        return self.container(container) / f"{attempt}.json"

    def message(self, container: str, attempt: int) -> Path:
        return self.container(container) / f"{attempt}.message"

    def note(self) -> PodNote | None:
        try:
            return msgspec.json.decode((self.path / "pod.json").read_bytes(), type=PodNote)
        except (OSError, msgspec.DecodeError):
            return None

    def write_note(self, note: PodNote) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "pod.json").write_bytes(msgspec.json.encode(note))

    def runs(self, container: Object) -> tuple[Run, ...]:
        """Return every run so far, oldest first."""
        folder = self.container(container["name"])
        found = []
        for path in folder.glob("*.json"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                record = msgspec.json.decode(path.read_bytes(), type=Record)
                found.append(self._run(container, int(path.stem), record))
        return tuple(sorted(found, key=lambda run: run.attempt))

    def running(self, container: str) -> Record | None:
        """Return the record of the present run."""
        for path in self.container(container).glob("*.json"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                record = msgspec.json.decode(path.read_bytes(), type=Record)
                if record.running and record.pid:
                    return record
        return None

    def _run(self, container: Object, attempt: int, record: Record) -> Run:
        if record.running:
            return Run(record.id, attempt, record.started_at)
        reason = "StartError" if record.error else "OOMKilled" if record.oom else ""
        message = record.error or self._message(container, attempt, failed=record.exit_code != 0)
        return Run(record.id, attempt, record.started_at, record.finished_at, record.exit_code, reason, message)

    def _message(self, container: Object, attempt: int, *, failed: bool) -> str:
        with contextlib.suppress(OSError):
            text = self.message(container["name"], attempt).read_bytes()[-MOST_MESSAGE:].decode(errors="replace")
            if text:
                return text
        if failed and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return tail(self.log(container["name"], attempt), lines=FALLBACK_LINES, most=FALLBACK_BYTES)
        return ""

    def lose(self, run: Run, container: str, *, now: float) -> None:
        """Note the end of a run that nobody saw, because its watcher was gone too."""
        record = Record(id=run.id, started_at=run.started_at, finished_at=now, exit_code=137, error="")
        self.record(container, run.attempt).write_bytes(msgspec.json.encode(record))

    def clear(self) -> None:
        """Remove everything that no request needs after the pod's end. Its logs stay until the pod is deleted."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.rmtree(self.path / "volumes", ignore_errors=True)

    def remove(self, kept: KeptLogs) -> None:
        """Remove the folder of a pod that is gone; its logs stay in `kept`."""
        for log in sorted(self.path.glob("containers/*/*.log"), key=lambda log: int(log.stem)):
            self._keep(log, kept)
        shutil.rmtree(self.path, ignore_errors=True)

    def keep_old_logs(self, kept: KeptLogs, container: str, *, attempt: int) -> None:
        """Move logs of runs before the last ones, which no request for logs of the pod can name."""
        for old in range(attempt - KEPT_LOGS + 1):
            self._keep(self.log(container, old), kept)
            beside(self.log(container, old)).unlink(missing_ok=True)

    def _keep(self, log: Path, kept: KeptLogs) -> None:
        if (note := self.note()) is not None and log.parent.name in note.main:
            kept.keep(log, owner=note.owner, pod=note.name, container=log.parent.name, attempt=int(log.stem))
        log.unlink(missing_ok=True)


def tail(path: Path, *, lines: int, most: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - most))
            text = file.read(most).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
