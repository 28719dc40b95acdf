"""An agent tells a worker that the kernel killed for its memory from one that failed or was killed by somebody else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_worker.agent.memory import OF_GPU, UNLIMITED, MemoryKills

FIRST = ("memory.oom_control", "memory.limit_in_bytes", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n", str(UNLIMITED * 7))
SECOND = ("memory.events", "memory.max", "low 0\nmax 12\noom 1\noom_kill {}\noom_group_kill 0\n", "max\n")
LIMIT = 700 << 20
RAISE = "the kernel killed the worker, because the container used all of its 700 MiB of memory. Raise resources.limits.memory."

Kill = Callable[..., None]


def group(folder: Path, kind: tuple[str, str, str, str], *, limit: int | None) -> Kill:
    """Make a control group; what is returned sets how often the kernel has killed there."""
    events, most, text, unlimited = kind
    folder.mkdir(parents=True)
    (folder / most).write_text(unlimited if limit is None else f"{limit}\n")

    def kill(times: int, *, peak: int | None = limit) -> None:
        """Set the number of kills, and the most memory that was ever used."""
        (folder / events).write_text(text.format(times))
        if peak is not None:
            (folder / ("memory.max_usage_in_bytes" if kind is FIRST else "memory.peak")).write_text(f"{peak}\n")

    kill(0)
    return kill


def watch(root: Path, own: str) -> MemoryKills:
    (root / "own").write_text(own)
    return MemoryKills(own=str(root / "own"), root=str(root))


@pytest.mark.parametrize(
    ("kind", "folder", "own"),
    [
        (FIRST, "memory/pods/a", "7:cpu:/\n4:memory:/pods/a\n0::/\n"),
        (FIRST, "memory", "4:memory,hugetlb:/docker/not-seen-from-here\n0::/\n"),
        (SECOND, ".", "0::/\n"),
        (SECOND, "pods/a", "0::/pods/a\n"),
        (SECOND, ".", "0::/../../not-seen-from-here\n"),
    ],
)
def test_a_kill_for_memory_is_told_with_the_limit_in_each_kind_of_group(
    tmp_path: Path, kind: tuple[str, str, str, str], folder: str, own: str
) -> None:
    root = tmp_path / "cgroup"
    kill = group(root / folder, kind, limit=LIMIT)
    kill(3)
    kills = watch(root, own)
    assert kills.explain(137, "") == ""
    kill(4)
    assert kills.explain(137, "") == RAISE
    assert kills.explain(137, "") == "", "the same kill explains one end"


def test_only_an_end_by_that_signal_is_explained(tmp_path: Path) -> None:
    """A program may survive the kill of a child, and fail of something else later."""
    kill = group(tmp_path / "cgroup", SECOND, limit=LIMIT)
    kills = watch(tmp_path / "cgroup", "0::/\n")
    kill(1)
    assert kills.explain(1, "ValueError: bad batch") == ""
    assert kills.explain(None, "") == ""


def test_a_loader_process_that_was_killed_explains_the_end_of_its_worker(tmp_path: Path) -> None:
    kill = group(tmp_path / "cgroup", SECOND, limit=LIMIT)
    kills = watch(tmp_path / "cgroup", "0::/\n")
    kill(1)
    words = kills.explain(1, "RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed. ")
    assert words == RAISE.replace("the worker", "a process of the worker")


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB", True),
        ("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB", True),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10.76 GiB total capacity)", True),
        ("ValueError: the OutOfMemoryError of the last run", False),
        ("RuntimeError: CUDA error: device-side assert triggered", False),
    ],
)
def test_an_exception_of_a_gpu_whose_memory_is_used_up_is_known(error: str, is_memory: bool) -> None:
    assert bool(OF_GPU.search(error)) is is_memory


@pytest.mark.parametrize("kind", [FIRST, SECOND])
def test_without_a_limit_the_node_ran_out(tmp_path: Path, kind: tuple[str, str, str, str]) -> None:
    root = tmp_path / "cgroup"
    kill = group(root / ("memory" if kind is FIRST else "."), kind, limit=None)
    kills = watch(root, "4:memory:/\n0::/\n" if kind is FIRST else "0::/\n")
    kill(1)
    assert kills.explain(137, "").startswith("the kernel killed the worker, because the memory of its pod or node was used up. Set")


@pytest.mark.parametrize("kind", [FIRST, SECOND])
def test_a_kill_for_the_memory_of_the_node_does_not_blame_the_limit(tmp_path: Path, kind: tuple[str, str, str, str]) -> None:
    """The container has a limit, and was far below it. A higher one would not have helped."""
    root = tmp_path / "cgroup"
    kill = group(root / ("memory" if kind is FIRST else "."), kind, limit=LIMIT)
    kills = watch(root, "4:memory:/\n0::/\n" if kind is FIRST else "0::/\n")
    kill(1, peak=LIMIT // 2)
    assert kills.explain(137, "").startswith("the kernel killed the worker, because the memory of its pod or node was used up. Set")
    kill(2, peak=LIMIT - (9 << 20))
    assert kills.explain(137, "") == RAISE, "the pod has the same limit, and its other container needs a little"


def test_a_kernel_that_knows_no_peak_blames_the_limit(tmp_path: Path) -> None:
    kill = group(tmp_path / "cgroup", SECOND, limit=LIMIT)
    (tmp_path / "cgroup/memory.peak").unlink()
    kills = watch(tmp_path / "cgroup", "0::/\n")
    kill(1, peak=None)
    assert kills.explain(137, "") == RAISE


@pytest.mark.parametrize("text", ["", "oom_kill x\n", "oom_kill " + "9" * 100 + "\n", "\0" * 200_000])
def test_counts_that_cannot_be_read_explain_nothing(tmp_path: Path, text: str) -> None:
    group(tmp_path / "cgroup", SECOND, limit=LIMIT)
    kills = watch(tmp_path / "cgroup", "0::/\n")
    (tmp_path / "cgroup" / "memory.events").write_text(text)
    assert kills.explain(137, "") == ""


def test_a_machine_without_control_groups_explains_nothing(tmp_path: Path) -> None:
    assert MemoryKills(own=str(tmp_path / "none"), root=str(tmp_path)).explain(137, "") == ""
