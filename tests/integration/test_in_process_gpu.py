"""Train on a GPU while workers come and go: with NCCL in the lab and under real agents, and with gloo.

All workers share the first GPU, so each of them tells NCCL that it is a host of its own. Without a GPU, the tests are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from in_process_jobs import Job
from torch_agents import Server, serving
from training_changes import Changes
from training_lab import Lab, forking, starting

pytestmark = [
    pytest.mark.integration,
    pytest.mark.torch,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no GPU"),
]

LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture(scope="module")
def zygote() -> Iterator[subprocess.Popen[str]]:
    with forking(LOOPBACK) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path, zygote: subprocess.Popen[str]) -> Iterator[Callable[..., Lab]]:
    with starting(tmp_path, zygote) as begin:
        yield begin


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_changes_use_every_sample_once_and_change_no_weight(start: Callable[..., Lab], backend: str) -> None:
    lab = start(3, device="cuda", backend=backend)
    changes = Changes(lab, 3, seed=4)
    for kind in ("kill", "add", "leave", "add", "stop", "kill first", "add", "kill forming", "add", "kill donor"):
        changes.pause()
        changes.one(kind)
    results = lab.finish()
    assert {(result["steps"], result["wrong"]) for result in results} == {(results[0]["steps"], 0)}
    expected = lab.reference(results[0]["steps"])
    assert all(result["vector"] == pytest.approx(expected, abs=1e-12) for result in results)


def test_pods_join_and_are_lost_under_real_agents(tmp_path: Path, server: Server) -> None:
    job = Job(server, tmp_path / "job", TEST_DEVICE="cuda", SAVES=str(tmp_path / "saves"), **LOOPBACK)
    try:
        job.expect("w0", "w1")
        job.agents.wait_for_world(2, after=job.start("w0", "w1"))
        stays = job.pid("w0")

        job.expect("w0", "w1", "w2")
        job.agents.wait_for_world(3, after=job.start("w2"))

        for name, size in (("w1", 2), ("w2", 1)):
            at = job.start()
            job.agents.kill_pod(name)
            job.agents.wait_for_world(size, after=at)

        assert job.pid("w0") == stays
        job.finish()
        job.ends("w0", size=1)
    finally:
        job.agents.stop()
