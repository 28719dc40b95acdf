"""Describe the folder of a laptop cluster: who may use it, where its files are, and what other processes read about a running cluster."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from elastic.runtime.files import write_private

LEAST_FREE = 32 << 20
MOST_QUOTED = 4096
"""Bytes of a log that an error quotes at most."""
SQLITE = b"SQLite format 3\0"


def default_data_dir() -> Path:
    return Path.home() / ".elastic"


def last_line(log: Path, *, since: int = 0) -> str:
    """Return the last line that was written after this position; empty without one. The beginning of a long line is left out."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - MOST_QUOTED))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


class FolderError(Exception):
    """A folder in which no cluster can live; the text says why and what to do."""


def take_folder(root: Path) -> None:
    """Create a data folder, or check the existing one. It contains keys and Secrets, so no other user may enter it."""
    other = "choose another with --data-dir"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = root.stat()
        if found.st_uid != os.geteuid():
            raise FolderError(f"the data folder {root} belongs to another user (uid {found.st_uid}); {other}")
        if found.st_mode & 0o077 and (_is_a_clusters(root) or not any(root.iterdir())):
            root.chmod(0o700)
        if (mode := root.stat().st_mode & 0o777) & 0o077:
            raise FolderError(f"other users may enter {root} (mode {mode:o}), which has other things in it; {other}")
        if not os.access(root, os.W_OK):
            raise FolderError(f"the data folder {root} cannot be written to; {other}")
        free = shutil.disk_usage(root).free
        foreign = next(_foreign(Layout(root)), None)
    except OSError as error:
        raise FolderError(f"the data folder {root} cannot be used: {error.strerror}; {other}") from error
    if foreign is not None:
        raise FolderError(f"{foreign} is not what a cluster stores; move it away, or {other}")
    if free < LEAST_FREE:
        raise FolderError(
            f"{free >> 20} MB are free where the data folder {root} is, but {LEAST_FREE >> 20} are needed; make room, or {other}"
        )


def _foreign(layout: Layout) -> Iterator[Path]:
    """Return the files that have the name of a part of a cluster and are something else."""
    yield from (path for path in (layout.installation, layout.dashboard, layout.pods) if path.exists() and not path.is_dir())
    files = (layout.lock, layout.kubeconfig, layout.roster, layout.objects)
    yield from (path for path in files if path.exists() and not path.is_file())
    if layout.objects.exists() and layout.objects.stat().st_size > 0 and not _begins_with(layout.objects, SQLITE):
        yield layout.objects


def _begins_with(file: Path, words: bytes) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(words)) == words


def _is_a_clusters(root: Path) -> bool:
    return (root / "lock").exists() or (root / "ca.key").exists()


def is_alive(pid: int) -> bool:
    """Return whether a process runs. An ended process is listed until its parent asks, and a container's first process may never ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


MOST_NODES, MOST_GPUS = 200, 64
"""That `elastic up` starts, and of each node."""
MOST_BYTES = 1 << 20
"""Limit of a file that a cluster has written about itself."""


class Shape(msgspec.Struct, frozen=True):
    """How `elastic up` starts a cluster: its nodes, the GPUs of each, how pods are isolated, and the folders that stand for images."""

    nodes: Annotated[int, msgspec.Meta(ge=0, le=MOST_NODES)] = 1
    gpus: Annotated[int, msgspec.Meta(ge=0, le=MOST_GPUS)] = 0
    sandbox: Literal["auto", "netns", "loopback"] = "auto"
    images: dict[str, str] = {}


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a running cluster for `elastic status`, `elastic down` and tests. Only its supervisor writes it."""

    supervisor: int
    sandbox: str
    server: str
    kubeconfig: str
    nodes: int
    gpus: int
    control_plane: bool
    processes: dict[str, int]
    has_etcd: bool = True
    """False if no etcd was installed when the cluster started; former releases do not say."""
    python: str = ""
    """The Python environment that started the cluster and runs its containers' commands; former releases do not say."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths in a cluster's data folder."""

    root: Path

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def installation(self) -> Path:
        return self.root / "installation"

    @property
    def dashboard(self) -> Path:
        """The dashboard's own files: its history, and the one-time token that lets a browser in."""
        return self.root / "dashboard"

    @property
    def signals(self) -> Path:
        """Rows that the user adds to the table of signals."""
        return self.root / "signals.yaml"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def ports(self) -> Path:
        return self.root / "ports.json"

    @property
    def roster(self) -> Path:
        """The nodes that were added, and those that were killed."""
        return self.root / "nodes.json"

    @property
    def shape(self) -> Path:
        """The shape with which the cluster was last started."""
        return self.root / "size.json"

    @property
    def audit(self) -> Path:
        """Log of the rights that callers used."""
        return self.root / "audit.jsonl"

    @property
    def working_dir(self) -> Path:
        """Folder in which the cluster was last started. Containers start there unless they name another."""
        return self.root / "working-dir"

    @property
    def objects(self) -> Path:
        """Database of the objects that the API stores."""
        return self.root / "objects.db"

    @property
    def pods(self) -> Path:
        return self.root / "nodes"

    @property
    def kept_logs(self) -> Path:
        """Logs of pods that are gone."""
        return self.root / "kept-logs"

    def log(self, process: str) -> Path:
        return self.root / f"{process}.log"

    def ready(self, process: str) -> Path:
        return self.root / f"{process}.ready"

    def read_state(self) -> ClusterState | None:
        """Return the state of a cluster that runs or has crashed; None if none has run, or the last one was stopped in order."""
        try:
            return msgspec.json.decode(_bounded(self.root / "cluster.json"), type=ClusterState)
        except (OSError, msgspec.DecodeError):
            return None

    def read_ports(self) -> dict[str, int]:
        """Return the ports of the last run by process; none if they cannot be read, because they are a wish."""
        try:
            return msgspec.json.decode(_bounded(self.ports), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            return {}

    def read_shape(self) -> Shape:
        """Return the shape of the last run. The next start takes it unless told otherwise."""
        try:
            return msgspec.json.decode(_bounded(self.shape), type=Shape)
        except (OSError, msgspec.DecodeError):
            return Shape()

    def is_running(self) -> bool:
        state = self.read_state()
        return state is not None and is_alive(state.supervisor)

    def is_held_by(self, pid: int) -> bool:
        """Return whether a process has the folder's lock open, as each process of the cluster has.

        A stored pid may belong to any other process by now.
        """
        try:
            lock, folder = os.lstat(self.lock), f"/proc/{pid}/fd"
            return stat.S_ISREG(lock.st_mode) and any(_is_file(f"{folder}/{number}", lock) for number in os.listdir(folder))
        except OSError:
            return False

    def write_state(self, state: ClusterState) -> None:
        write_private(self.root / "cluster.json", msgspec.json.encode(state))

    def forget_state(self) -> None:
        (self.root / "cluster.json").unlink(missing_ok=True)


def layout_of(kubeconfig: Path) -> Layout | None:
    """Return the layout of the laptop cluster that wrote this kubeconfig, whether it runs or is stopped."""
    layout = Layout(kubeconfig.resolve().parent)
    has_lived = layout.is_running() or (layout.lock.exists() and (layout.root / "ca.key").exists())
    return layout if layout.kubeconfig == kubeconfig.resolve() and has_lived else None


def _is_file(path: str, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), file)
    except OSError:
        return False


def _bounded(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no file", str(path))
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return text
