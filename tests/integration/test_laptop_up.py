"""Type `elastic up`, `status` and `down`, and check the supervisor's promises when it or its children are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic.kube import connect
from elastic.kube.resources import CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NODES
from elastic.local import ClusterError, LocalCluster
from elastic.local.agent.asking import ask_agents
from elastic.local.agent.control import Add, Kill

pytestmark = [pytest.mark.integration]


def elastic(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "elastic.cli", *words], capture_output=True, text=True, timeout=100)


def eventually(what: Callable[[], object], *, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Return whether a process still runs. A zombie does not run."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[Path]:
    started = elastic("up", "--detach", "--data-dir", str(tmp_path))
    assert started.returncode == 0, started.stderr
    assert f"export KUBECONFIG={tmp_path}/kubeconfig" in started.stdout
    yield tmp_path
    elastic("down", "--data-dir", str(tmp_path))


def test_up_status_and_down_tell_the_same_story_and_the_kubeconfig_is_for_nobody_else(detached: Path) -> None:
    folder = str(detached)
    assert (detached / "kubeconfig").stat().st_mode & 0o777 == 0o600
    assert detached.stat().st_mode & 0o077 == 0
    shown = elastic("status", "--data-dir", folder)
    assert shown.returncode == 0
    for process in ("supervisor", "holder", "apiserver", "agents", "rendezvous", "controller"):
        assert f"process     {process}" in shown.stdout
    again = elastic("up", "--detach", "--data-dir", folder)
    assert again.returncode == 1
    assert "already runs" in again.stderr
    pids = [int(line.split()[2]) for line in shown.stdout.splitlines() if line.startswith("process")]
    assert elastic("down", "--data-dir", folder).stdout == "stopped\n"
    assert not [pid for pid in pids if is_alive(pid)]
    gone = elastic("status", "--data-dir", folder)
    assert (gone.returncode, gone.stdout) == (1, f"no cluster runs in {folder}\n")


async def test_stored_objects_and_added_nodes_are_there_after_a_restart_at_the_same_address(tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path, nodes=2, control_plane=False) as cluster:
        for name in ("spare", "lost"):
            ask_agents(tmp_path, Add(name=name))
        ask_agents(tmp_path, Kill(name="lost"))
        server = cluster.state.server
        async with connect(cluster.kubeconfig) as kube:
            await kube.create(CONFIG_MAPS, {"metadata": {"name": "kept"}, "data": {"a": "b"}}, namespace="default")
    with LocalCluster(data_dir=tmp_path, control_plane=False) as cluster:
        assert cluster.state.server == server
        async with connect(cluster.kubeconfig) as kube:
            assert (await kube.get(CONFIG_MAPS, "kept", namespace="default"))["data"] == {"a": "b"}
            assert {node["metadata"]["name"] for node in (await kube.list(NODES)).items} == {"node-0", "node-1", "spare"}


async def test_every_killed_process_is_started_again(tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path) as cluster:
        for name in ("apiserver", "agents", "rendezvous", "controller", "holder"):
            before = cluster.processes()[name]
            cluster.kill(name)
            eventually(lambda name=name, before=before: has_restarted(cluster, name, before))
        async with connect(cluster.kubeconfig) as kube:
            assert (await kube.list(CUSTOM_RESOURCE_DEFINITIONS)).items


def has_restarted(cluster: LocalCluster, name: str, before: int) -> bool:
    try:
        return cluster.processes()[name] != before
    except ClusterError:  # the whole cluster restarts after its holder
        return False


def test_nothing_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    cluster = LocalCluster(data_dir=tmp_path, control_plane=False)
    cluster.start()
    pids = cluster.processes()
    os.kill(pids["supervisor"], signal.SIGKILL)
    eventually(lambda: not [pid for pid in pids.values() if is_alive(pid)])
    cluster.stop()


def test_a_cluster_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = "import pathlib, sys; from elastic.local import LocalCluster; "
    program += "LocalCluster(data_dir=pathlib.Path(sys.argv[1]), control_plane=False).start(); input()"
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE) as owner:
        cluster = LocalCluster(data_dir=tmp_path)
        eventually(lambda: (tmp_path / "cluster.json").exists())
        pids = cluster.processes()
        owner.kill()
    eventually(lambda: not [pid for pid in pids.values() if is_alive(pid)])


def test_a_taken_port_is_one_clear_sentence(tmp_path: Path) -> None:
    with LocalCluster(data_dir=tmp_path / "first", control_plane=False) as first:
        port = first.state.server.rpartition(":")[2]
        refused = elastic("up", "--data-dir", str(tmp_path / "second"), "--port", port)
    assert refused.returncode == 1
    assert f"port {port} on 127.0.0.1: Address already in use; choose another with --port" in refused.stderr


def test_sandbox_and_folders_for_images_are_those_of_the_last_time(tmp_path: Path) -> None:
    """`elastic resume` started jobs without the environment of their image, because `up` had remembered only nodes and GPUs."""
    lab, venv = str(tmp_path / "lab"), tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    up = ("up", "--detach", "--cluster-only", "--data-dir", lab)
    try:
        first = elastic(*up, "--sandbox", "loopback", "--image", f"example.com/train={venv}")
        assert first.returncode == 0, first.stderr
        elastic("down", "--data-dir", lab)
        assert f"example.com/train={venv}" in elastic(*up).stdout
        shown = elastic("status", "--data-dir", lab).stdout
        assert f"image       example.com/train={venv}\n" in shown
        assert "sandbox     loopback\n" in shown
        elastic("down", "--data-dir", lab)
        (venv / "bin").rmdir()
        assert f"{venv}, which stood for image example.com/train the last time, is gone" in elastic(*up).stderr
        elastic("down", "--data-dir", lab)
        assert "example.com/train" not in elastic(*up, "--image", "none").stdout
    finally:
        elastic("down", "--data-dir", lab)
