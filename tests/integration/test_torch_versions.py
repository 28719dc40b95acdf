"""Another torch than the one of this environment: an interpreter that ELASTIC_TEST_TORCH_PYTHON names runs torchrun and its workers.

The repository, the temporary folder and loopback must be the same for it: a virtual environment will do, or a chroot with both mounted.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_training_worlds import assert_exact
from torch_agents import ROOT, Agents, Server, grow_and_lose_worker_0, serving, wait_until
from training_changes import Changes
from training_lab import forking, lab

from elastic.membership.wire import Budget, Expectation
from elastic_training.rendezvous.c10d import PROGRAM, C10dStore, c10d_env

PYTHON = os.environ.get("ELASTIC_TEST_TORCH_PYTHON", "")

OBSTACLE = "from elastic_worker.training.whole import obstacle; print(obstacle())"

pytestmark = [
    pytest.mark.full,
    pytest.mark.integration,
    pytest.mark.torch,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON, reason="no other torch: set ELASTIC_TEST_TORCH_PYTHON to an interpreter that has one"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


def members(*indices: int) -> tuple[str, ...]:
    return tuple(f"train-worker-{index}" for index in indices)


@pytest.mark.parametrize("start", ["warm", "plain"])
def test_a_job_grows_survives_every_loss_and_finishes(server: Server, tmp_path: Path, start: str) -> None:
    agents = Agents(tmp_path / "job", server, job="job", python=PYTHON, library=tmp_path / "library")
    environment = {"ELASTIC_WARM_START": "off"} if start == "plain" else {}
    try:
        server.expect("job", Expectation(members=members(0), min=1, max=3, budget=Budget(max_restarts=1)))
        agents.start("train-worker-0", **environment)
        agents.wait_for_world(1)

        at = time.time()
        server.expect("job", Expectation(members=members(0, 1, 2), min=1, max=3, budget=Budget(max_restarts=1)))
        for name in members(1, 2):
            agents.start(name, **environment)
        agents.wait_for_world(3, after=at)

        at = time.time()
        (agents.folder / "crash-train-worker-1").touch()
        agents.wait_for_world(3, after=at)

        at = time.time()
        agents.signal("train-worker-1", signal.SIGTERM)
        agents.wait_for_world(2, after=at)

        at = time.time()
        agents.kill_pod("train-worker-0")
        agents.wait_for_world(1, after=at)

        (agents.folder / "finish").touch()
        last = agents.processes["train-worker-2"]
        wait_until(lambda: last.poll() is not None, what=lambda: f"the last worker finishes\n{agents.describe()}")
        assert last.returncode == 0, agents.describe()
        wait_until(lambda: (world := server.world("job")) is not None and world.phase == "finished", what=agents.describe, patience_s=10)
        world = server.world("job")
        assert world is not None
        assert world.restarts.get("user") == 1
        assert "starts plainly" not in agents.output("train-worker-2")
        assert ("workers start plainly: ELASTIC_WARM_START is off" in agents.output("train-worker-2")) == (start == "plain")
    finally:
        agents.stop()


def test_worlds_change_while_the_processes_live_on(tmp_path: Path) -> None:
    """A torch for which `elastic_worker.training.whole.obstacle` is empty must pass this."""
    found = subprocess.run(
        [PYTHON, "-c", OBSTACLE], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    if found.stdout.strip():
        pytest.skip(found.stdout.strip())
    with forking(python=PYTHON) as zygote, lab(tmp_path, 3, zygote, compute_s=0.02) as one:
        one.begin(3)
        changes = Changes(one, 3, seed=5, spare=1)
        for kind in ("add", "kill first", "add", "stop", "kill donor", "leave", "add", "kill forming"):
            changes.one(kind)
        assert_exact(one, ranks=len(one.plane.world))


def test_torchs_own_backend_grows_and_outlives_worker_0(tmp_path: Path) -> None:
    agents = Agents(tmp_path / "job", Server(tmp_path), job="c10d", python=PYTHON)
    store = C10dStore(job_name="train", namespace="team", job_uid="c10d", owner={}, template={}, selector={})
    environment = os.environ | {"ELASTIC_STORE_PORT": "0", "ELASTIC_POD_IP": "127.0.0.1"}
    process = subprocess.Popen([PYTHON, "-u", "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line and "without libuv" in (process.communicate()[1] or ""):
            pytest.skip("this build of torch lacks libuv, and torch's own backend works with no other store")
        port = line.split()[-1]
        env = {entry["name"]: entry["value"] for entry in c10d_env(store)} | {"PET_RDZV_ENDPOINT": f"127.0.0.1:{port}"}
        grow_and_lose_worker_0(agents, env)
    finally:
        agents.stop()
        process.terminate()
        process.communicate(timeout=60)
