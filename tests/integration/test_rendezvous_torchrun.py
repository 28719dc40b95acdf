"""Real torchrun agents against a real rendezvous server: whatever comes and goes, the others train on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from torch_agents import TRAINING, Agents, Proxy, Server, serving, wait_until

from elastic.local.ports import free_port
from elastic.membership.tokens import control_token
from elastic.membership.wire import Budget, Expectation

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(480)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


@pytest.fixture
def agents(tmp_path: Path, server: Server) -> Iterator[Agents]:
    group = Agents(tmp_path / "job", server, job="0d9f5b1e-job")
    yield group
    group.stop()


QUIET = """
import os, sys, time
with open(os.path.join(sys.argv[3], "log"), "a") as log:
    log.write(f"{time.time():.3f} {os.environ['ELASTIC_MEMBER']} first rank={os.environ['RANK']} size={os.environ['WORLD_SIZE']} step=0\\n")
time.sleep(600)
"""


def names(count: int) -> tuple[str, ...]:
    return tuple(f"train-worker-{index}" for index in range(count))


def test_a_job_grows_and_survives_a_terminated_and_a_killed_worker(server: Server, agents: Agents) -> None:
    server.expect(agents.job, Expectation(members=names(1), min=1, max=3, budget=Budget(max_restarts=0)))
    agents.start("train-worker-0")
    agents.wait_for_world(1)

    grown = time.time()
    server.expect(agents.job, Expectation(members=names(3), min=1, max=3, budget=Budget(max_restarts=0)))
    agents.start("train-worker-1")
    agents.start("train-worker-2")
    agents.wait_for_world(3, after=grown)

    terminated = time.time()
    agents.signal("train-worker-1", signal.SIGTERM)
    agents.wait_for_world(2, after=terminated)
    server.expect(agents.job, Expectation(members=("train-worker-0", "train-worker-2"), min=1, max=3, budget=Budget(max_restarts=0)))

    killed = time.time()
    agents.kill_pod("train-worker-0")
    agents.wait_for_world(1, after=killed)

    (agents.folder / "finish").touch()
    wait_until(lambda: agents.processes["train-worker-2"].poll() is not None, what=lambda: f"the last worker finishes\n{agents.describe()}")
    assert agents.processes["train-worker-2"].returncode == 0, agents.describe()
    # The server still expects worker-0, and waits for it for a while, because it might work on behind a cut connection.
    wait_until(lambda: _phase(server, agents) == "finished", what=lambda: f"the job is finished\n{agents.describe()}")
    world = server.world(agents.job)
    assert world is not None
    assert "user" not in world.restarts


def _phase(server: Server, agents: Agents) -> str:
    world = server.world(agents.job)
    return world.phase if world is not None else ""


def test_a_worker_that_ignores_sigterm_is_ended_after_the_grace_and_not_after_torchs(tmp_path: Path, server: Server) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TRAINING
    agents = Agents(tmp_path / "stubborn", server, job="stubborn", script=stubborn)
    try:
        server.expect(agents.job, Expectation(members=names(1), min=1, max=2, grace_s=2))
        agents.start("train-worker-0")
        agents.wait_for_world(1)
        asked = time.time()
        server.expect(agents.job, Expectation(members=names(2), min=1, max=2, grace_s=2))
        agents.start("train-worker-1")
        agents.wait_for_world(2, after=asked)
        assert "did not stop within 2.0 s" in agents.output("train-worker-0"), "torch kills it in silence, after 30 s"
    finally:
        agents.stop()


def test_a_workers_own_crash_is_charged_and_a_spent_budget_closes_the_world(server: Server, agents: Agents) -> None:
    expectation = Expectation(members=names(2), min=1, max=2, budget=Budget(max_restarts=1))
    server.expect(agents.job, expectation)
    for name in names(2):
        agents.start(name)
    agents.wait_for_world(2)
    crashed = time.time()
    (agents.folder / "crash-train-worker-1").touch()
    agents.wait_for_world(2, after=crashed)
    world = server.world(agents.job)
    assert world is not None
    assert world.restarts["user"] == 1, agents.describe()

    (agents.folder / "crash-train-worker-0").touch()
    wait_until(lambda: closed(server, agents.job) != "", what=lambda: f"the world is closed\n{agents.describe()}")
    assert all(agents.processes[name].poll() is None for name in names(2)), "they know what a new server would have to"
    server.expect(agents.job, replace(expectation, closed=closed(server, agents.job)))
    for name in names(2):
        wait_until(lambda name=name: agents.processes[name].poll() is not None, what=f"{name} ends")  # type: ignore[misc]
        assert agents.processes[name].returncode == 1
        said = agents.output(name)
        assert "a worker of train-worker-0 ended with status 3 (rank " in said
        assert "Restarts used: 1 of 1." in said
        _, line, after = said.partition("ending with status 1: the rendezvous is closed: a worker of train-worker-0")
        assert line, said
        assert "Traceback" not in after, "torchrun's says no more"


def test_an_agent_whose_job_has_finished_ends_without_an_error(server: Server, agents: Agents) -> None:
    """It ended with torchrun's traceback of fifty lines, and then with a line that looked like an error."""
    server.expect(agents.job, Expectation(members=names(1), min=1, max=2))
    agents.start("train-worker-0")
    agents.wait_for_world(1)
    assert server.call("DELETE", f"/v1/jobs/{agents.job}", token=control_token(server.key))[0] in (200, 204)
    agent = agents.processes["train-worker-0"]
    wait_until(lambda: agent.poll() is not None, what=lambda: f"it ends\n{agents.describe()}")
    said = agents.output("train-worker-0")
    assert agent.returncode == 1, said
    assert "sent away" not in said
    assert "Traceback" not in said


def closed(server: Server, job: str) -> str:
    world = server.world(job)
    return world.closed if world is not None else ""


def test_several_workers_per_agent_form_one_world(server: Server, agents: Agents) -> None:
    server.expect(agents.job, Expectation(members=names(2), min=1, max=2))
    for name in names(2):
        agents.start(name, workers=2)
    agents.wait_for_world(4)
    killed = time.time()
    agents.kill_pod("train-worker-1")
    agents.wait_for_world(2, after=killed)


def test_a_stopped_agent_is_found_by_its_silence_and_returns_when_it_runs_again(server: Server, tmp_path: Path) -> None:
    agents = Agents(tmp_path / "long", server, job="long")
    try:
        with server.listening():
            stop_and_return(server, agents)
    finally:
        agents.stop()


def stop_and_return(server: Server, agents: Agents) -> None:
    server.expect(agents.job, Expectation(members=names(2), min=1, max=2, budget=Budget(max_restarts=0)))
    for name in names(2):
        agents.start(name)
    agents.wait_for_world(2)
    stopped = time.time()
    frozen = [agents.processes["train-worker-1"].pid, *agents.worker_pids("train-worker-1")]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    agents.wait_for_world(1, after=stopped)
    assert "was silent" in server.log()
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    agents.wait_for_world(2, after=time.time())
    world = server.world(agents.job)
    assert world is not None
    assert "user" not in world.restarts, agents.describe()


def test_a_group_that_does_no_collective_re_forms_as_well(tmp_path: Path, server: Server) -> None:
    agents = Agents(tmp_path / "quiet", server, job="quiet", script=QUIET)
    try:
        server.expect(agents.job, Expectation(members=names(3), min=1, max=3))
        for name in names(3):
            agents.start(name)
        agents.wait_for_world(3)
        left = time.time()
        agents.signal("train-worker-0", signal.SIGTERM)
        agents.wait_for_world(2, after=left)
        assert agents.processes["train-worker-0"].wait(60) != 0
    finally:
        agents.stop()


def test_training_survives_kill_9_of_the_server(server: Server, agents: Agents) -> None:
    server.expect(agents.job, Expectation(members=names(2), min=2, max=3, budget=Budget(max_restarts=0)))
    for name in names(2):
        agents.start(name)
    agents.wait_for_world(2)
    server.kill()
    starts, steps = len(agents.log()), agents.step()
    wait_until(lambda: agents.step() >= steps + 20, what=lambda: f"training goes on without the server\n{agents.describe()}")
    server.start()
    server.expect(agents.job, Expectation(members=names(2), min=2, max=3, budget=Budget(max_restarts=0), floor=1))
    wait_until(lambda: (world := server.world(agents.job)) is not None and world.phase == "running", what="the world is found again")
    assert len(agents.log()) == starts, "nobody restarted"
    grown = time.time()
    server.expect(agents.job, Expectation(members=names(3), min=3, max=3, budget=Budget(max_restarts=0), floor=1))
    agents.start("train-worker-2")
    agents.wait_for_world(3, after=grown)
    world = server.world(agents.job)
    assert world is not None
    assert world.generation == 2


def test_an_agent_that_was_cut_off_comes_back_and_nobody_is_charged(server: Server, tmp_path: Path) -> None:
    proxy = Proxy(server.port)
    agents = Agents(tmp_path / "cut", server, job="cut")
    try:
        server.expect(agents.job, Expectation(members=names(2), min=1, max=2, budget=Budget(max_restarts=0)))
        agents.start("train-worker-0")
        agents.start("train-worker-1", PET_RDZV_ENDPOINT=f"127.0.0.1:{proxy.port}")
        agents.wait_for_world(2)
        cut = time.time()
        proxy.cut()
        agents.wait_for_world(1, after=cut)
        mended = time.time()
        proxy.mend()
        agents.wait_for_world(2, after=mended)
        world = server.world(agents.job)
        assert world is not None
        assert world.restarts.keys() <= {"disruption", "collateral"}, agents.describe()
    finally:
        agents.stop()
        proxy.close()


def test_a_static_job_runs_next_to_an_elastic_one(server: Server, agents: Agents, tmp_path: Path) -> None:
    server.expect(agents.job, Expectation(members=names(1), min=1, max=1))
    agents.start("train-worker-0")
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    (tmp_path / "static").mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "ELASTIC_"))} | {
        "ELASTIC_MEMBER": "static"
    }
    result = subprocess.run([*command, str(script), "3", "0", str(tmp_path / "static")], env=environment, capture_output=True, timeout=100)
    assert result.returncode == 0, result.stderr
    agents.wait_for_world(1)
