"""Train a sharded model by the library, under real torchrun agents and a real rendezvous server, while pods of two shards come and go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process_jobs import SCRIPT, Job, compare
from torch_agents import Server, serving, wait_until

from elastic.local.ports import free_port
from elastic.membership.wire import LeaveOrder

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(480)]

SHARDS = 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


@pytest.fixture
def job(tmp_path: Path, server: Server) -> Iterator[Job]:
    made = Job(server, tmp_path / "job", SHARDED="1", SAVES=str(tmp_path / "saves"))
    yield made
    made.agents.stop()


def pids(job: Job, name: str) -> list[int]:
    return [job.pid(name, shard) for shard in range(SHARDS)]


def test_replicas_of_two_shards_come_go_and_lose_a_shard(job: Job) -> None:
    job.expect("w0", "w1")
    job.agents.wait_for_world(4, after=job.start("w0", "w1", workers=SHARDS))
    survivors = pids(job, "w0")
    lost = pids(job, "w1")

    at = time.time()
    os.kill(lost[1], signal.SIGKILL)
    job.agents.wait_for_world(2, after=at)
    job.agents.wait_for_world(4, after=at)  # torchrun starts both shards of the pod again, and they join the world as newcomers
    assert set(pids(job, "w1")).isdisjoint(lost)

    at = time.time()
    job.agents.kill_pod("w1")
    job.agents.wait_for_world(2, after=at)

    job.expect("w0", "w2")
    job.agents.wait_for_world(4, after=job.start("w2", workers=SHARDS))
    assert pids(job, "w0") == survivors

    at = time.time()
    job.expect("w2", leaving=(LeaveOrder(member="w0", by_s=30.0),))
    job.agents.wait_for_world(2, after=at)  # of shards that came with random weights
    job.finish()
    job.ends("w2", size=SHARDS)


@pytest.mark.full
def test_shards_go_on_from_their_save_after_all_of_them_were_lost(job: Job, tmp_path: Path) -> None:
    job.expect("w0")
    job.agents.wait_for_world(2, after=job.start("w0", workers=SHARDS))
    wait_until(lambda: len(list((tmp_path / "saves").glob("*.json"))) >= SHARDS, what=job.agents.describe)
    job.agents.kill_pod("w0")
    at = job.start("w0", workers=SHARDS)
    job.agents.wait_for_world(2, after=at)
    assert all(int(entry["step"]) > 0 for entry in job.agents.log() if float(entry["at"]) > at)
    job.finish()
    job.ends("w0", size=SHARDS)


@pytest.mark.full
def test_shards_that_all_get_sigterm_leave_a_save_of_their_newest_step(tmp_path: Path, server: Server) -> None:
    """Each shard of the first replica writes its own part, and all parts are of one step."""
    job = Job(server, tmp_path / "job", SHARDED="1", SAVES=str(tmp_path / "saves"), SAVE_EVERY_S="1000")
    try:
        job.expect("w0", "w1")
        at = job.start("w0", "w1", workers=SHARDS)
        job.agents.wait_for_world(4, after=at)
        assert not list((tmp_path / "saves").glob("*.json"))
        for name in ("w0", "w1"):
            job.agents.signal(name, signal.SIGTERM)
        for name in ("w0", "w1"):
            job.agents.processes[name].wait(60)
        saves = sorted(path.name for path in (tmp_path / "saves").glob("*.json"))
        assert len(saves) == SHARDS, job.agents.describe()
        (step,) = {int(name.split("-")[1]) for name in saves}
        assert step > 0

        job.expect("w2")
        at = job.start("w2", workers=SHARDS)
        job.agents.wait_for_world(2, after=at)
        assert {int(entry["step"]) for entry in job.agents.log() if float(entry["at"]) > at} == {step}
        job.finish()
        job.ends("w2", size=SHARDS)
    finally:
        job.agents.stop()


@pytest.mark.full
def test_shards_that_cannot_change_worlds_in_process_restart_from_their_saves(tmp_path: Path, server: Server) -> None:
    job = Job(server, tmp_path / "job", SHARDED="1", SAVES=str(tmp_path / "saves"), TEST_OLD_TORCH="1")
    try:
        job.expect("w0", "w1")
        job.agents.wait_for_world(4, after=job.start("w0", "w1", workers=SHARDS))
        first = pids(job, "w0")
        wait_until(lambda: len(list((tmp_path / "saves").glob("*.json"))) >= SHARDS, what=job.agents.describe)
        at = time.time()
        job.expect("w0")
        job.agents.kill_pod("w1")
        job.agents.wait_for_world(2, after=at)
        assert set(pids(job, "w0")).isdisjoint(first)
        assert all(int(entry["step"]) > 0 for entry in job.agents.log() if float(entry["at"]) > at)
        job.finish()
        job.ends("w0", size=SHARDS)
    finally:
        job.agents.stop()


@pytest.mark.full
def test_pods_train_under_stock_torchrun_and_begin_with_the_weights_of_the_first_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={SHARDS}", "--rdzv-backend=c10d"]
    command = [*torchrun, f"--rdzv-endpoint=127.0.0.1:{free_port()}", str(tmp_path / "train.py"), "8", "0", str(tmp_path)]
    processes = [
        subprocess.Popen(command, env={**os.environ, "SHARDED": "1", "ELASTIC_MEMBER": name, "OMP_NUM_THREADS": "1"}) for name in ("a", "b")
    ]
    try:
        assert [process.wait(200) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    results = [json.loads(path.read_text()) for path in tmp_path.glob("result-*")]
    assert [(result["steps"], result["wrong"], result["size"]) for result in results] == [(8, 0, 4)] * 4
    compare(results, tmp_path / "alone")
