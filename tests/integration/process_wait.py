"""Waits for something that processes do. A wait gives up early only if none of them moves, and says in what state they are."""

import time
from collections.abc import Iterator
from pathlib import Path

LOOK_EVERY_S = 0.5
"""How often processes are looked for: that reads all of /proc."""
IDLE_S = 30.0
"""How long a wait goes on while no process uses CPU time. A starved machine gives each one some time within it."""
MOST_S = 200.0
SIGNALS = ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")


class Wait:
    """A wait for `what`. Its processes are those whose temporary folder is `folder`."""

    def __init__(self, folder: Path, what: str) -> None:
        self._folder = folder
        self._what = what
        self._began = self._moved = self._looked = time.monotonic()
        self._used = self._cpu_times()

    def check(self) -> None:
        """Fail if it takes too long."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked, used = now, self._cpu_times()
        if used != self._used:
            self._used, self._moved = used, now
        if now - self._moved > IDLE_S or now - self._began > MOST_S:
            raise AssertionError(
                f"{self._what}: not after {now - self._began:.0f} s, the last {now - self._moved:.0f} s without any CPU time\n"
                + "\n".join(map(state, self._processes()))
            )

    def _processes(self) -> Iterator[int]:
        wanted = f"\0TMPDIR={self._folder}".encode()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and wanted in b"\0" + (entry / "environ").read_bytes():
                    yield int(entry.name)
            except OSError:
                continue

    def _cpu_times(self) -> dict[int, list[str]]:
        found = {}
        for pid in self._processes():
            text = _read(pid, "stat")
            if text:
                found[pid] = text.rpartition(")")[2].split()[11:13]
        return found


def state(pid: int) -> str:
    """Return a line with the process's command, its wait in the kernel, and its sets of signals as the kernel's masks."""
    lines = dict(line.split(":\t", 1) for line in _read(pid, "status").splitlines() if ":\t" in line)
    signals = " ".join(f"{name}={lines.get(name, '?').lstrip('0') or '0'}" for name in SIGNALS)
    command = _read(pid, "cmdline").replace("\0", " ").strip()
    call = _read(pid, "syscall").strip()
    parent, word = lines.get("PPid", "?"), lines.get("State", "gone")
    return f"{pid} (child of {parent}) {word}, waits in {_read(pid, 'wchan') or '?'}, call {call}, {signals}: {command[:120]}"


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
