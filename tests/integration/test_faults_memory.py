"""A worker of a job on the laptop cluster uses up its container's memory: the job says so, goes on, and charges the memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from elastic_runs import JOB_FILE, elastic_run
from grounds import Ground

from elastic.local import LocalCluster
from elastic.local.sandbox.groups import locate

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(300)]

LIMIT_MIB = 1200
GROUPS = os.geteuid() == 0 and locate(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()) is not None
"""Whether the kernel holds containers of the laptop cluster to their limits."""
SCRIPT = """
import os, pathlib, runpy, sys

marker = pathlib.Path(os.environ["MARKER"])
if os.environ["RANK"] == "1" and not marker.exists():
    marker.touch()
    held = bytearray({limit} << 20)
sys.argv = [{train!r}]
runpy.run_path({train!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def cluster(ground: Ground, shared: Callable[[Ground], LocalCluster]) -> LocalCluster:
    return shared(ground)


async def test_a_worker_that_uses_up_its_containers_memory_is_charged_to_memory(cluster: LocalCluster, tmp_path: Path) -> None:
    """It was a failure of the program with status 137, whose message was the last line of its output."""
    script = tmp_path / "hungry.py"
    script.write_text(SCRIPT.format(limit=LIMIT_MIB, train=str(JOB_FILE.parent / "train.py")))
    job = yaml.safe_load(JOB_FILE.read_text())
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["command"] = ["torchrun", str(script)]
    container["resources"] = {"limits": {"memory": f"{LIMIT_MIB}Mi"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    env = {"MARKER": str(tmp_path / "marker")}
    async with elastic_run(cluster, "hungry", workers=2, steps=5000, file=tmp_path / "job.yaml", env=env) as run:
        await run.step(5, world=2)
        assert (tmp_path / "marker").exists()
        assert {cause: count for cause, count in (await run.restarts()).items() if cause != "collateral"} == {"outOfMemory": 1}
        if not GROUPS:
            return  # the node agent watches the container, and ends it as a whole
        words = "the kernel killed the worker, because the container used all of its 1,200 MiB of memory. Raise resources.limits.memory."
        await run.training.until("an Event with the cause", lambda t: any(words in event.message for event in run.training.events))
