"""Find our own memory group, and read a group's files."""

from pathlib import Path

import pytest

from elastic.local.sandbox.groups import FIRST, SECOND, Group, Groups, locate

ROOT = "25 30 0:22 / /proc rw,nosuid - proc proc rw\n"
V1_MOUNT = "36 32 0:29 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
V2_MOUNT = "33 32 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("own", "mounts", "found"),
    [
        ("4:memory:/jobs/7\n1:cpu:/\n0::/\n", ROOT + V1_MOUNT, (Path("/sys/fs/cgroup/memory/jobs/7"), FIRST)),
        ("4:cpu,memory:/\n", ROOT + V1_MOUNT.replace("rw,memory", "rw,cpu,memory"), (Path("/sys/fs/cgroup/memory"), FIRST)),
        ("0::/user.slice/x.scope\n", ROOT + V2_MOUNT, (Path("/sys/fs/cgroup/user.slice/x.scope"), SECOND)),
        # Both are mounted, and version 1 has the memory.
        ("4:memory:/a\n0::/\n", V2_MOUNT + V1_MOUNT, (Path("/sys/fs/cgroup/memory/a"), FIRST)),
        # The first container sees only its own groups, and the second one does not see them at all.
        ("4:memory:/docker/ab/x\n", V1_MOUNT.replace("0:29 / ", "0:29 /docker/ab "), (Path("/sys/fs/cgroup/memory/x"), FIRST)),
        ("4:memory:/docker/abc\n", V1_MOUNT.replace("0:29 / ", "0:29 /docker/ab "), None),
        ("1:name=systemd:/\n", ROOT + V1_MOUNT, None),
        ("", "", None),
    ],
)
def test_our_own_group_is_found_in_the_kernels_files(own: str, mounts: str, found: object) -> None:
    assert locate(own, mounts) == found


@pytest.mark.parametrize(("version", "file"), [(FIRST, "memory.oom_control"), (SECOND, "memory.events")])
def test_a_group_has_run_out_when_the_kernel_has_killed_in_it(tmp_path: Path, version: object, file: str) -> None:
    group = Group(tmp_path, version)
    (tmp_path / file).write_text("oom_kill_disable 0\nunder_oom 0\noom 3\noom_kill 0\n")
    assert not group.has_run_out()
    (tmp_path / file).write_text("oom 3\noom_kill 1\noom_group_kill 1\n")
    assert group.has_run_out()


def test_version_2_hands_memory_down_before_it_makes_groups(tmp_path: Path) -> None:
    """Ordinary files stand for the kernel's. Our own group therefore lacks its file, and opening fails after the level above it."""
    (tmp_path / "cgroup.subtree_control").write_text("cpu")
    with pytest.raises(FileNotFoundError):
        Groups(tmp_path, SECOND).open()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu+memory"


def test_groups_of_killed_holders_are_swept_and_groups_of_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / "elastic-999999999" / "pod").mkdir(parents=True)
    (tmp_path / "elastic-1" / "pod").mkdir(parents=True)
    groups = Groups(tmp_path, FIRST)
    groups.open()
    assert not (tmp_path / "elastic-999999999").exists()
    assert (tmp_path / "elastic-1" / "pod").exists()
    groups.close()
    assert [path.name for path in tmp_path.iterdir()] == ["elastic-1"]
