"""Tell how much the kernel throttles the CPUs of this container.

A container's CPU limit is an amount of CPU time in each period of 0.1 s. Once it is used up, all threads of the container stand still until
the next period. The kernel counts such periods for each control group.
"""

import os
import re
import typing

from elastic_worker.agent.memory import groups_of, read

PERIODS = re.compile(r"^nr_periods (\d{1,18})$", re.MULTILINE)
THROTTLED = re.compile(r"^nr_throttled (\d{1,18})$", re.MULTILINE)
SECOND = ("", "", "cpu.stat", "cpu.max")
FIRST = ("cpu", "cpu", "cpu.stat", "cpu.cfs_quota_us")
"""The controller and its folder, and the files with the counts and the limit, in version 2 and 1 of control groups."""


class Throttling:
    """Count throttled periods in this process's control group, of version 1 or 2."""

    def __init__(self, *, own: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> None:
        """Begin to count. own, root: the file that names the control group, and the folder of all of them."""
        found = next((group for group in groups_of(read(own), root, (FIRST, SECOND)) if _counts(group) is not None), None)
        self._group = found
        self._seen = self._counts()

    def share(self) -> float:
        """Return the part of the periods since the last call in which the CPU was throttled; 0 if nobody counts them."""
        (periods, throttled), self._seen = self._seen, self._counts()
        more = self._seen[0] - periods
        return min(1.0, max(0, self._seen[1] - throttled) / more) if more > 0 else 0.0

    def limit(self) -> float:
        """Return the limit in CPUs; 0 without a limit, or if nobody knows it."""
        if self._group is None:
            return 0.0
        folder, _, name = self._group
        words = read(os.path.join(folder, name)).split()
        if name == "cpu.cfs_quota_us":
            words += read(os.path.join(folder, "cpu.cfs_period_us")).split()
        if len(words) != 2 or not all(re.match(r"\d{1,12}\Z", word) for word in words) or not int(words[1]):
            return 0.0
        return int(words[0]) / int(words[1])

    def _counts(self) -> typing.Tuple[int, int]:
        return (_counts(self._group) if self._group is not None else None) or (0, 0)


def _counts(group: typing.Tuple[str, str, str]) -> typing.Optional[typing.Tuple[int, int]]:
    text = read(os.path.join(group[0], group[1]))
    periods, throttled = PERIODS.search(text), THROTTLED.search(text)
    return (int(periods.group(1)), int(throttled.group(1))) if periods and throttled else None
