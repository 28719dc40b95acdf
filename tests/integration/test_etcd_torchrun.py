"""torchrun's agents that meet in a real etcd, by hand: no Kubernetes, no control plane."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_server import Etcd, needs_etcd
from etcd_torch_agents import EtcdAgents
from torch_agents import ROOT, wait_until

from elastic_worker.etcd.records import PROGRESS, Progress

pytestmark = [pytest.mark.integration, pytest.mark.torch, needs_etcd, pytest.mark.timeout(480)]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path) as server:
        yield server


@pytest.fixture
def agents(tmp_path: Path, etcd: Etcd) -> Iterator[EtcdAgents]:
    group = EtcdAgents(tmp_path / "job", etcd)
    yield group
    group.stop()


def test_a_job_grows_and_survives_a_terminated_and_a_killed_worker(agents: EtcdAgents) -> None:
    agents.start("w0", nnodes="1:3")
    agents.wait_for_world(1)
    grown = time.time()
    agents.start("w1", nnodes="1:3")
    agents.start("w2", nnodes="1:3")
    agents.wait_for_world(3, after=grown)

    terminated = time.time()
    agents.signal("w1", signal.SIGTERM)
    agents.wait_for_world(2, after=terminated)

    killed = time.time()
    agents.kill_pod("w0")  # rank 0, which held the store
    agents.wait_for_world(1, after=killed)
    assert "ELASTIC_TOKEN is not set: everybody who may write to /elastic-training/by-hand/" in agents.output("w2")

    (agents.folder / "finish").touch()
    assert agents.wait_for_end("w2") == 0, agents.describe()
    world = agents.world()
    assert world is not None
    assert "user" not in world.restarts
    agents.start("w3", nnodes="1:3")
    assert agents.wait_for_end("w3") == 0
    assert "the training has ended" in agents.output("w3")


def test_a_workers_own_crash_is_charged_to_the_job_and_a_spent_budget_ends_it(tmp_path: Path, etcd: Etcd) -> None:
    agents = EtcdAgents(tmp_path / "budget", etcd, conf="max_restarts=1", token="secret")
    try:
        for name in ("w0", "w1"):
            agents.start(name, nnodes="1:2")
        agents.wait_for_world(2)
        crashed = time.time()
        (agents.folder / "crash-w1").touch()
        agents.wait_for_world(2, after=crashed)
        world = agents.world()
        assert world is not None
        assert world.restarts["user"] == 1
        (agents.folder / "crash-w0").touch()
        for name in ("w0", "w1"):
            assert agents.wait_for_end(name) == 1
            assert "Restarts used: 1 of 1." in agents.output(name)
    finally:
        agents.stop()


def test_training_goes_on_while_etcd_restarts(agents: EtcdAgents) -> None:
    for name in ("w0", "w1"):
        agents.start(name, nnodes="2:3")
    agents.wait_for_world(2)
    agents.etcd.kill()
    starts, steps = len(agents.log()), agents.step()
    wait_until(lambda: agents.step() >= steps + 20, what=lambda: "training goes on without etcd")
    agents.etcd.start()
    agents.etcd.compact()
    grown = time.time()
    agents.start("w2", nnodes="2:3")
    agents.wait_for_world(3, after=grown)
    assert len(agents.log()) == starts + 3, "the restart itself restarted nobody"


@pytest.mark.full
def test_training_goes_on_while_one_member_of_three_dies(tmp_path: Path) -> None:
    with Etcd(tmp_path, members=3) as etcd:
        agents = EtcdAgents(tmp_path / "job", etcd)
        try:
            for name in ("w0", "w1"):
                agents.start(name, nnodes="2:3")
            agents.wait_for_world(2)
            etcd.kill(0)  # the one that all of them use
            starts, steps = len(agents.log()), agents.step()
            wait_until(lambda: agents.step() >= steps + 40, what="training goes on")
            assert len(agents.log()) == starts, "nobody was restarted"
            grown = time.time()
            agents.start("w2", nnodes="2:3")
            agents.wait_for_world(3, after=grown)
        finally:
            agents.stop()


@pytest.mark.full
def test_a_wrong_password_ends_an_agent_with_etcds_words(tmp_path: Path, etcd: Etcd) -> None:
    etcd.ask_for_passwords("ann", "secret", "/elastic-training/")
    agents = EtcdAgents(tmp_path / "job", etcd, ELASTIC_ETCD_USER="ann", ELASTIC_ETCD_PASSWORD="guess")
    try:
        agents.start("w0", nnodes="1:1")
        assert agents.wait_for_end("w0") == 1
        assert "authentication failed, invalid user ID or password" in agents.output("w0")
        assert "guess" not in agents.output("w0")
    finally:
        agents.stop()


def test_a_stopped_agent_loses_its_seat_and_comes_back(agents: EtcdAgents) -> None:
    for name in ("w0", "w1"):
        agents.start(name, nnodes="1:2")
    agents.wait_for_world(2)
    stopped = time.time()
    frozen = [agents.processes["w1"].pid, *agents.worker_pids("w1")]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    agents.wait_for_world(1, after=stopped)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    agents.wait_for_world(2, after=time.time())
    assert "the lease of this member ended" in agents.output("w1")


def test_an_etcd_that_is_not_there_is_waited_for_and_named(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path)
    agents = EtcdAgents(tmp_path / "job", etcd, conf="away_timeout=4")
    try:
        agents.start("w0", nnodes="1:1")
        wait_until(lambda: "does not answer" in agents.output("w0"), what="it says so")
        wait_until(lambda: agents.processes["w0"].poll() is not None, what="it gives up")
        assert agents.processes["w0"].returncode == 1
        assert f"etcd at 127.0.0.1:{etcd.ports[0]} could not be reached for 4 s" in agents.output("w0")
    finally:
        agents.stop()


def test_the_examples_script_trains_by_hand(tmp_path: Path, etcd: Etcd) -> None:
    agents = EtcdAgents(tmp_path / "job", etcd, job="example")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "ELASTIC_"))}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path / "job/library")}
    environment |= {"ETCD": etcd.endpoint, "RUN": "example", "NNODES": "2:2", "STEPS": "20", "STEP_SECONDS": "0", "OMP_NUM_THREADS": "1"}
    script = str(ROOT / "examples/pytorch-etcd/by-hand.sh")
    ends = [subprocess.Popen([script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(2)]
    texts = [process.communicate(timeout=200)[0].decode() for process in ends]
    assert [process.returncode for process in ends] == [0, 0], texts
    assert any("step 20 world 2" in text for text in texts), texts
    progress = agents.record(PROGRESS)
    assert isinstance(progress, Progress), "its reports of steps arrive"
    assert (progress.generation, 1 <= progress.in_world <= 20) == (1, True)
    agents.stop()
