"""An agent tells how much the kernel throttles its container, in control groups of version 1 and 2, and without any."""

from pathlib import Path

import pytest

from elastic_worker.agent.throttling import Throttling


class Group:
    """A control group in files."""

    def __init__(self, root: Path, folder: str, own: str, *, is_first: bool, limit: str) -> None:
        self.root, self._folder, self._is_first = root, root / folder, is_first
        self._folder.mkdir(parents=True, exist_ok=True)
        (root / "own").write_text(own)
        if is_first:
            quota, period = limit.split()
            (self._folder / "cpu.cfs_quota_us").write_text(quota + "\n")
            (self._folder / "cpu.cfs_period_us").write_text(period + "\n")
        else:
            (self._folder / "cpu.max").write_text(limit + "\n")
        self.count(100, 10)

    def count(self, periods: int, throttled: int) -> None:
        first = f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 5000000\n"
        second = f"usage_usec 12\nuser_usec 7\nsystem_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 5000\n"
        (self._folder / "cpu.stat").write_text(first if self._is_first else second)

    def watch(self) -> Throttling:
        return Throttling(own=str(self.root / "own"), root=str(self.root))


PLACES = [
    ("cpu/pods/a", "4:memory:/pods/a\n1:cpu:/pods/a\n0::/\n", True),
    ("cpu", "1:cpu,cpuacct:/not-seen-from-here\n", True),
    (".", "0::/\n", False),
    ("pods/a", "0::/pods/a\n", False),
    (".", "0::/../../not-seen-from-here\n", False),
]


@pytest.mark.parametrize(("folder", "own", "is_first"), PLACES)
def test_the_share_of_throttled_periods_since_the_last_question_is_told(tmp_path: Path, folder: str, own: str, is_first: bool) -> None:
    group = Group(tmp_path, folder, own, is_first=is_first, limit="150000 100000")
    found = group.watch()
    assert (found.share(), found.limit()) == (0.0, 1.5)
    group.count(200, 97)
    assert found.share() == 0.87
    assert found.share() == 0.0, "no period has passed since"
    group.count(300, 97)
    assert found.share() == 0.0


@pytest.mark.parametrize("limit", ["max 100000", "x y", "1", "", "100000 0"])
def test_without_a_limit_none_is_told(tmp_path: Path, limit: str) -> None:
    assert Group(tmp_path, ".", "0::/\n", is_first=False, limit=limit).watch().limit() == 0.0


@pytest.mark.parametrize("limit", ["-1 100000", "100000 0", "x 100000"])
def test_without_a_limit_in_version_1_none_is_told(tmp_path: Path, limit: str) -> None:
    assert Group(tmp_path, "cpu", "1:cpu:/\n", is_first=True, limit=limit).watch().limit() == 0.0


@pytest.mark.parametrize("text", ["", "usage_usec 12\n", "nr_periods x\nnr_throttled 3\n", "nr_periods -4\nnr_throttled 3\n", "\x00\xff"])
def test_counts_that_are_absent_or_no_numbers_count_as_no_throttling(tmp_path: Path, text: str) -> None:
    """The root of all groups has a cpu.stat without periods."""
    group = Group(tmp_path, ".", "0::/\n", is_first=False, limit="max 100000")
    (tmp_path / "cpu.stat").write_text(text)
    assert (group.watch().share(), group.watch().limit()) == (0.0, 0.0)


def test_counts_that_go_backwards_or_vanish_count_as_no_throttling(tmp_path: Path) -> None:
    group = Group(tmp_path, ".", "0::/\n", is_first=False, limit="100000 100000")
    found = group.watch()
    group.count(50, 5)
    assert found.share() == 0.0
    group.count(150, 3)
    assert found.share() == 0.0
    (tmp_path / "cpu.stat").unlink()
    assert found.share() == 0.0
    group.count(10, 500)
    assert found.share() == 1.0, "a kernel that counts wrong makes no share above all"


def test_a_machine_without_control_groups_has_no_throttling(tmp_path: Path) -> None:
    found = Throttling(own=str(tmp_path / "absent"), root=str(tmp_path / "neither"))
    assert (found.share(), found.limit()) == (0.0, 0.0)
