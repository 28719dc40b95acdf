"""Let the kernel enforce containers' memory limits.

Each container with a limit gets a control group below our own, of version 1 or 2. A trial shows whether such groups can be made. If not,
the node agent watches its containers.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic.local.sandbox import NO_GROUP

OURS = "elastic-"
TRIAL_LIMIT = 64 << 20


@dataclass(frozen=True, slots=True)
class Version:
    """The names of a group's files, and the settings that prevent swapping and, if possible, end the group as a whole."""

    limit: str
    events: str
    settings: Callable[[int], dict[str, str]]
    """Settings besides the limit. A setting that the kernel does not know is left out."""
    is_first: bool


FIRST = Version("memory.limit_in_bytes", "memory.oom_control", lambda limit: {"memory.memsw.limit_in_bytes": str(limit)}, is_first=True)
SECOND = Version("memory.max", "memory.events", lambda limit: {"memory.swap.max": "0", "memory.oom.group": "1"}, is_first=False)


@dataclass(frozen=True, slots=True)
class Group:
    """The control group of a container."""

    path: Path
    version: Version

    def has_run_out(self) -> bool:
        """Return whether the kernel has killed a process of the group because it ran out of memory."""
        lines = (self.path / self.version.events).read_text().splitlines()
        return any(name == "oom_kill" and int(count) for name, _, count in (line.partition(" ") for line in lines))


class Groups:
    """All groups of a holder, below the holder's own group."""

    def __init__(self, parent: Path, version: Version) -> None:
        self._parent = parent
        self._version = version
        self._path = parent / f"{OURS}{os.getpid()}"
        self._emptying: list[Group] = []

    def open(self) -> None:
        """Make the holder's group. Raise OSError if the kernel or the machine's administrator does not allow it."""
        for left in self._parent.glob(f"{OURS}*"):
            if not Path("/proc", left.name.removeprefix(OURS)).exists():
                _remove(left)
        if not self._version.is_first:
            _hand_down(self._parent)
        self._path.mkdir()
        if not self._version.is_first:
            _hand_down(self._path)

    def make(self, name: str, *, limit: int) -> Group:
        group = Group(self._path / name.replace("/", "_"), self._version)
        group.path.mkdir()
        (group.path / self._version.limit).write_text(str(limit))
        for file, value in self._version.settings(limit).items():
            # Older kernels, and kernels that do not count swap, do not have the file.
            with contextlib.suppress(FileNotFoundError), (group.path / file).open("r+") as setting:
                setting.write(value)
        return group

    def release(self, group: Group) -> None:
        """Remove a group, now or when its last process has gone."""
        self._emptying.append(group)
        self.tidy()

    def tidy(self) -> None:
        self._emptying = [group for group in self._emptying if not _is_removed(group.path)]

    def close(self) -> None:
        _remove(self._path)


@contextlib.contextmanager
def entrance(group: Group | None) -> Iterator[int]:
    """Yield a descriptor of the group. A process that writes 0 to it enters the group, with all its later children."""
    if group is None:
        yield NO_GROUP
        return
    opened = os.open(group.path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    try:
        yield opened
    finally:
        os.close(opened)


def find() -> Groups | None:
    """Return the groups, or None if memory limits cannot be set here."""
    try:
        place = locate(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    except OSError:
        return None
    if place is None:
        return None
    groups = Groups(*place)
    try:
        groups.open()
        _prove(groups)
    except OSError:
        groups.close()
        return None
    return groups


def locate(own: str, mounts: str) -> tuple[Path, Version] | None:
    """Return the folder of our own memory group, from the two files in which the kernel names it."""
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in own.splitlines())}
    first = next((path for controllers, path in paths.items() if "memory" in controllers.split(",")), None)
    for line in mounts.splitlines():
        mount, _, about = line.partition(" - ")
        root, point = mount.split()[3:5]
        kind, *_, options = about.split()
        if first is not None and kind == "cgroup" and "memory" in options.split(","):
            return _below(point, root, first, FIRST)
        if first is None and kind == "cgroup2" and "" in paths:
            return _below(point, root, paths[""], SECOND)
    return None


def _below(point: str, root: str, path: str, version: Version) -> tuple[Path, Version] | None:
    """Return the folder of a group below a mount, or None if the mount shows only other groups."""
    shown = root.rstrip("/")
    if path != shown and not path.startswith(f"{shown}/"):
        return None
    return Path(point) / path.removeprefix(shown).lstrip("/"), version


def _hand_down(group: Path) -> None:
    """Allow memory limits in the groups below. Version 2 requires this at each level."""
    with (group / "cgroup.subtree_control").open("r+") as file:
        if "memory" not in file.read().split():
            file.write("+memory")


def _prove(groups: Groups) -> None:
    group = groups.make("trial", limit=TRIAL_LIMIT)
    with entrance(group) as opened:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if _enters(opened) else 1)
        if os.waitpid(pid, 0)[1]:
            raise PermissionError("a process may not enter its group")
    group.has_run_out()
    groups.release(group)


def _enters(opened: int) -> bool:
    try:
        os.write(opened, b"0")
    except OSError:
        return False
    return True


def _is_removed(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _remove(path: Path) -> None:
    """Remove a group and the groups below it, if they are empty. The kernel's files in a group go with it."""
    with contextlib.suppress(OSError):
        for below in [entry for entry in path.iterdir() if entry.is_dir()]:
            _remove(below)
        path.rmdir()
