"""Puts volumes where a container wants them, inside its own mount namespace.
A path that the host does not have is made without touching the host: its nearest existing folder is replaced, for this container only,
by an empty one in memory that shows everything the original holds.
"""

import os
import re
from collections.abc import Sequence

from elastic.local.sandbox import Mount, linux

MOST_ENTRIES = 4000
_TERMINALS = re.compile(r"(tty|vcs|loop|ram|pty|vd|sd|nbd|dm-).+")
"""Devices that come by the hundred and that no container asks for."""


class Placement:
    """The mounts of one container, made one after the other; `stage` is an empty folder to build in."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._volumes: list[str] = []
        self._mirrors: set[int] = set()

    def place(self, mounts: Sequence[Mount]) -> None:
        for mount in sorted(mounts, key=lambda mount: mount.target.rstrip("/").count("/")):
            target = os.path.realpath(mount.target)
            self._make(target, folder=os.path.isdir(mount.source))
            linux.bind(mount.source, target, read_only=mount.read_only)
            self._volumes.append(target)

    def _make(self, target: str, *, folder: bool) -> None:
        if os.path.exists(target):
            if os.path.isdir(target) != folder:
                raise OSError(0, f"mountPath {target} is a {'file' if folder else 'folder'} here and the volume is not")
            return
        parent = os.path.dirname(target)
        while not os.path.isdir(parent):
            parent = os.path.dirname(parent)
        in_a_volume = any(parent == volume or parent.startswith(f"{volume}/") for volume in self._volumes)
        if not in_a_volume and os.stat(parent).st_dev not in self._mirrors:
            self._mirror(parent)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if folder:
            os.makedirs(target, exist_ok=True)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))

    def _mirror(self, original: str) -> None:
        names = [name for name in os.listdir(original) if original != "/dev" or not _TERMINALS.fullmatch(name)]
        if len(names) > MOST_ENTRIES:
            raise OSError(
                0, f"cannot make a mountPath below {original}: it has {len(names)} entries; use an existing folder or another path"
            )
        linux.mount("tmpfs", self._stage, kind="tmpfs", options="mode=755")
        self._mirrors.add(os.stat(self._stage).st_dev)
        for name in names:
            source, copy = os.path.join(original, name), os.path.join(self._stage, name)
            try:
                _show(source, copy)
            except FileNotFoundError:
                if os.path.lexists(source):
                    raise
                # A folder such as /tmp is everybody's: what another program has removed meanwhile is not there for the container either.
                _remove(copy)
        if original == "/":
            self._become_root()
        else:
            linux.mount(self._stage, original, flags=linux.MS_MOVE)

    def _become_root(self) -> None:
        old = os.path.join(self._stage, ".old")
        os.mkdir(old)
        linux.pivot_root(self._stage, old)
        os.chdir("/")
        linux.detach("/.old")
        os.rmdir("/.old")


def _show(source: str, copy: str) -> None:
    if os.path.islink(source):
        os.symlink(os.readlink(source), copy)
        return
    if os.path.isdir(source):
        os.mkdir(copy)
    else:
        os.close(os.open(copy, os.O_CREAT | os.O_WRONLY, 0o644))
    linux.bind(source, copy)


def _remove(copy: str) -> None:
    if os.path.isdir(copy):
        os.rmdir(copy)
    elif os.path.lexists(copy):
        os.unlink(copy)
