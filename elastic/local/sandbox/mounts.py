"""Mount volumes at the paths that a container asks for, inside its own mount namespace.

A path that the host does not have is made without changing the host: for this container only, its nearest existing folder is replaced by a
folder in memory that shows everything in the original.
"""

import contextlib
import os
import re
from collections.abc import Sequence

from msgspec import structs

from elastic.local.sandbox import Mount, linux

MOST_ENTRIES = 4000
_TERMINALS = re.compile(r"(tty|vcs|loop|ram|pty|vd|sd|nbd|dm-).+")
"""Numerous devices that no container needs."""


class Placement:
    """Makes the mounts of a container, one after the other. `stage` is an empty folder to build in."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._volumes: list[str] = []
        self._mirrors: set[int] = set()

    def place(self, mounts: Sequence[Mount]) -> None:
        """Make outer mounts before inner ones. Mounts that hide the stage or sources, for example on /tmp, come last."""
        needed = [os.path.realpath(path) for path in (self._stage, *(mount.source for mount in mounts))]
        targets = {mount: os.path.realpath(mount.target) for mount in mounts}
        hiding = [target for target in targets.values() if any(_is_in(path, target) for path in needed)]
        late = [mount for mount in mounts if any(_is_in(targets[mount], hidden) for hidden in hiding)]
        self._place_in_order([mount for mount in mounts if mount not in late])
        with contextlib.ExitStack() as stack:
            self._place_in_order([structs.replace(mount, source=_kept(stack, mount.source)) for mount in late])

    def _place_in_order(self, mounts: Sequence[Mount]) -> None:
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
                # Other programs may remove entries of a folder such as /tmp meanwhile. The container does not see these either.
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


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _kept(stack: contextlib.ExitStack, path: str) -> str:
    """Return a path through a descriptor, which stays valid whatever is mounted over the original path."""
    descriptor = os.open(path, os.O_PATH)
    stack.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"


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
