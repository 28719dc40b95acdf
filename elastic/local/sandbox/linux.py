"""Call the system calls for namespaces, mounts and process trees that Python 3.11 does not offer. This module decides nothing."""

import ctypes
import os
import signal
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    _call("unshare", flags)


def enter(namespace: int, kind: int) -> None:
    """Move this thread into the namespace behind a file descriptor. For a PID namespace, only its future children move."""
    _call("setns", namespace, kind)


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    name = kind.encode() if kind else None
    data = options.encode() if options else None
    try:
        _call("mount", source.encode(), target.encode(), name, ctypes.c_ulong(flags), data)
    except OSError as error:
        raise OSError(error.errno, f"cannot mount {source} at {target}: {os.strerror(error.errno or 0)}") from error


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        # Inside a user namespace, a remount must keep the restrictions of the outer mount.
        kept = _locked_flags(target)
        mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def _locked_flags(path: str) -> int:
    has = os.statvfs(path).f_flag
    return sum(flag for flag in (MS_NOSUID, MS_NODEV, MS_NOEXEC) if has & flag)


def detach(target: str) -> None:
    _call("umount2", target.encode(), MNT_DETACH)


def pivot_root(new: str, old: str) -> None:
    _call("syscall", ctypes.c_long(_SYS_PIVOT_ROOT[os.uname().machine]), new.encode(), old.encode())


def set_hostname(name: str) -> None:
    _call("sethostname", name.encode(), ctypes.c_size_t(len(name.encode())))


def die_with_parent(with_signal: int = signal.SIGKILL) -> None:
    """Let the kernel send us this signal when the process that started us ends."""
    _call("prctl", _PR_SET_PDEATHSIG, ctypes.c_ulong(with_signal), 0, 0, 0)


def adopt_orphans() -> None:
    """Let descendants whose parent ends become our children instead of those of process 1."""
    _call("prctl", _PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def parents() -> dict[int, int]:
    """Return every process that we can see, with its parent."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            # The command is in parentheses, and may itself contain spaces and parentheses.
            found[int(entry)] = int(text.rpartition(")")[2].split()[1])
    return found


def descendants(root: int) -> list[int]:
    """Return the whole process tree below a process, whatever sessions and groups its members have made."""
    children: dict[int, list[int]] = {}
    for process, parent in parents().items():
        children.setdefault(parent, []).append(process)
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found
