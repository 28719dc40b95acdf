"""Find workers that are stopped (SIGSTOP), so that a world in process does not wait for them.

A stopped process keeps its connections open and answers nothing. A debugger stops a process too, and so does a frozen cgroup: both are
left alone.
"""

import typing

STOPPED_S = 0.5
"""Seconds after which a stopped process counts as stopped for too long."""
LEAST_LOOKS = 3
MOST_GAP_S = 1.0
"""Longest time between two looks. After a longer one, this agent was probably stopped or frozen itself, and measures from the start."""
LONGEST = 64 * 1024


class Sight(typing.NamedTuple):
    """A process at one moment."""

    state: str
    began: str
    """Its start time, which differs if another process gets the same number."""
    is_held: bool
    """Whether a debugger or a frozen cgroup holds it."""


class StoppedWorkers:
    """Remember since when each process has been stopped."""

    def __init__(self, look: "typing.Optional[typing.Callable[[int], typing.Optional[Sight]]]" = None) -> None:
        self._look = look or sight
        self._since = {}  # type: typing.Dict[int, typing.Tuple[str, float, int]]
        self._looked_at = float("-inf")

    def over_limit(self, pids: typing.Iterable[int], *, now: float) -> typing.List[int]:
        """Return those of these processes that have been stopped for too long."""
        if now - self._looked_at > MOST_GAP_S:
            self._since = {}
        self._looked_at = now
        since, self._since = self._since, {}
        for pid in pids:
            seen = self._look(pid)
            if seen is None or seen.state != "T" or seen.is_held:
                continue
            began, at, looks = since.get(pid, ("", now, 0))
            self._since[pid] = (began, at, looks + 1) if began == seen.began else (seen.began, now, 1)
        return [pid for pid, (_, at, looks) in self._since.items() if now - at >= STOPPED_S and looks >= LEAST_LOOKS]


def sight(pid: int) -> typing.Optional[Sight]:
    """Look at a process; None if it does not exist, or cannot be seen."""
    folder = "/proc/{}".format(pid)
    try:
        words = _read(folder + "/stat").rpartition(")")[2].split()
        state, began = words[0], words[19]
        is_held = state == "T" and (_is_traced(_read(folder + "/status")) or _is_frozen(_read(folder + "/cgroup")))
    except (OSError, IndexError):
        return None
    return Sight(state, began, is_held)


def _is_traced(status: str) -> bool:
    return any(line.startswith("TracerPid:") and line.split()[1:] != ["0"] for line in status.splitlines())


def _is_frozen(cgroups: str) -> bool:
    """Return whether one of these cgroups, as /proc/PID/cgroup names them, is frozen."""
    for line in cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            events = _read_if_there("/sys/fs/cgroup{}/cgroup.events".format(path))
            is_frozen = "frozen 1" in events.splitlines()
        else:
            state = _read_if_there("/sys/fs/cgroup/freezer{}/freezer.state".format(path)) if controllers == "freezer" else ""
            is_frozen = state.strip() in ("FROZEN", "FREEZING")
        if is_frozen:
            return True
    return False


def _read_if_there(path: str) -> str:
    try:
        return _read(path)
    except OSError:
        return ""


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(LONGEST).decode("latin-1")
