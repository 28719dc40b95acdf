"""Tell whether a worker ended because the memory of its container was used up.

The kernel then kills one process of the container. Unless the container ends as a whole, nobody but the agent can know: the worker's status
says only that somebody killed it. The kernel counts these kills for each control group.
"""

import os
import re
import typing

SIGKILLED = 137
OF_CHILD = re.compile(r"killed by signal: Killed")
"""Words of torch's error if the process that was killed is a loader process."""
OF_GPU = re.compile(r"^(torch\.)?(cuda\.)?OutOfMemoryError\b|\b(CUDA|HIP) out of memory\b")
"""Line of the exception if a GPU's memory is used up. The line says how much was asked of which GPU."""
UNLIMITED = 1 << 60
MOST_BYTES = 64 * 1024

Group = typing.Tuple[str, str, str]
"""The folder of a control group, and the names of its files with the counts and with the limit."""
Kind = typing.Tuple[str, str, str, str]
"""A controller (none in version 2 of control groups), the folder of its groups below the root, and the two files of a Group."""
FIRST = ("memory", "memory", "memory.oom_control", "memory.limit_in_bytes")
SECOND = ("", "", "memory.events", "memory.max")
PEAKS = {"memory.limit_in_bytes": "memory.max_usage_in_bytes", "memory.max": "memory.peak"}
"""The file with the most memory that was ever used, by the file with the limit."""
NEARLY_ALL = 0.9
"""Part of its limit that a container has used if the limit was the cause. The limit of its pod, which is the same if it is alone there, is
met a little earlier."""


class MemoryKills:
    """Count the kills in this process's control group, of version 1 or 2.

    With memory.oom.group the kernel kills this process too. Then the kubelet gives that as the reason of the container's end.
    """

    def __init__(self, *, own: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> None:
        """Begin to count. `own` is the file that names the control group, `root` the folder of all groups."""
        self._group = next(groups_of(read(own), root, (FIRST, SECOND)), None)
        self._seen = self._count()

    def explain(self, status: typing.Optional[int], error: str) -> str:
        """Say that memory was the cause of a worker's end with this status and exception; return "" if it was another cause."""
        before, self._seen = self._seen, self._count()
        if self._seen <= before or not (status == SIGKILLED or OF_CHILD.search(error)):
            return ""
        victim = "the worker" if status == SIGKILLED else "a process of the worker"
        limit = self._limit()
        if limit is None:
            return (
                "the kernel killed {}, because the memory of its pod or node was used up. "
                "Set resources.requests.memory and limits.memory to what it needs."
            ).format(victim)
        words = "the kernel killed {}, because the container used all of its {:,.0f} MiB of memory. Raise resources.limits.memory."
        return words.format(victim, limit / 2**20)

    def _count(self) -> int:
        if self._group is None:
            return 0
        found = re.search(r"^oom_kill (\d{1,18})$", read(os.path.join(self._group[0], self._group[1])), re.MULTILINE)
        return int(found.group(1)) if found else 0

    def _limit(self) -> typing.Optional[int]:
        """Return the limit that was used up; None without one, or if the container never came near it.

        The kernel also kills here if the node has no memory left, and then a higher limit would not help.
        """
        assert self._group is not None
        limit, peak = self._bytes(self._group[2]), self._bytes(PEAKS[self._group[2]])
        if limit is None or limit >= UNLIMITED or (peak is not None and peak < NEARLY_ALL * limit):
            return None
        return limit

    def _bytes(self, name: str) -> typing.Optional[int]:
        assert self._group is not None
        text = read(os.path.join(self._group[0], name)).strip()
        return int(text) if re.match(r"\d{1,19}$", text) else None


def groups_of(own: str, root: str, kinds: typing.Iterable[Kind]) -> typing.Iterator[Group]:
    """Yield the groups that /proc/self/cgroup names, if they can be seen from here, and those that a container has at the root."""
    entries = [line.split(":", 2) for line in own.splitlines() if line.count(":") >= 2]
    for controller, base, counts, limit in kinds:
        for _, controllers, path in entries:
            if controller not in controllers.split(","):
                continue
            for folder in (os.path.join(root, base) + os.path.normpath("/" + path), os.path.join(root, base)):
                if os.path.isfile(os.path.join(folder, counts)):
                    yield folder, counts, limit


def read(path: str) -> str:
    """Return a small file's text; "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
