"""The kernel kills a worker in a real control group of this machine, and its agent, or the end of its container, says why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_worker.agent import memory

pytestmark = pytest.mark.integration
ROOT = Path("/sys/fs/cgroup")
LIMIT_MIB = 96
AGENT = """
import os, subprocess, sys
from elastic_worker.agent.memory import MemoryKills
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
kills = MemoryKills()
worker = subprocess.run([sys.executable, "-c", "held = b'x' * (400 << 20)"])
print(kills.explain(128 - worker.returncode, ""))
killed = subprocess.run(["sh", "-c", "kill -9 $$"])
print("then:", kills.explain(128 - killed.returncode, ""))
"""
SAID = f"the kernel killed the worker, because the container used all of its {LIMIT_MIB} MiB of memory. Raise resources.limits.memory."


def made(parent: Path, limit: str) -> Path | None:
    """Return a new control group with a limit below this one; None if this machine does not let us make one."""
    folder = parent / f"elastic-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(LIMIT_MIB << 20))
    except OSError:
        if folder.is_dir():
            folder.rmdir()
        return None
    return folder


def groups(version: int) -> Path | None:
    own = Path("/proc/self/cgroup").read_text()
    kind = (memory.FIRST, memory.SECOND)[version - 1]
    folder, _, limit = next(memory.groups_of(own, str(ROOT), (kind,)), ("", "", ""))
    return made(Path(folder), limit) if folder else None


@pytest.fixture(params=[1, 2])
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = groups(request.param)
    if folder is None:
        pytest.skip(f"this machine lets us make no memory group of version {request.param}")
    yield folder
    folder.rmdir()


def agent(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", AGENT, str(folder)], capture_output=True, text=True, timeout=60, check=False)


def test_an_agent_that_lives_on_explains_the_end_of_its_worker(group: Path) -> None:
    """So it is with version 1, and with version 2 if the kubelet sets singleProcessOOMKill."""
    ended = agent(group)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [SAID, "then: "], "the second kill was not the kernel's"


def test_with_oom_group_the_container_ends_as_a_whole(group: Path) -> None:
    """The kubelet's default with version 2: it reports the end as OOMKilled, and no agent is left to say anything."""
    switch = group / "memory.oom.group"
    if not switch.exists():
        pytest.skip("version 1 has no memory.oom.group")
    switch.write_text("1")
    ended = agent(group)
    assert (ended.returncode, ended.stdout) == (-9, "")
