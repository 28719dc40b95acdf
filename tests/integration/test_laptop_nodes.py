"""Kill, remove and drain nodes of the laptop cluster, and check the fate of their pods."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from grounds import Ground
from laptop import NAMESPACE, PATIENCE_S, alive, container, get, gone, log_of, phase, pod, shell, until

from elastic.kube.client import Kube
from elastic.kube.resources import NODES, PODS, PRIORITY_CLASSES
from elastic.local import LocalCluster
from elastic.local.agent.asking import NotDone, ask_agents
from elastic.local.agent.control import Add, Kill
from elastic.local.files import ClusterState, Layout
from elastic.local.ownership import AlreadyRunning, sole_owner

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("nodes"), nodes=2, gpus=2, control_plane=False) as running:
        yield running


def on(node: str) -> dict:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


async def test_pods_get_gpus_of_their_own_and_wait_when_there_are_none(kube: Kube, unique: str) -> None:
    wants = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    names = [f"gpu-{index}-{unique}" for index in range(5)]
    for name in names[:4]:
        script = shell('echo "$CUDA_VISIBLE_DEVICES"; sleep 1000', **wants)
        await kube.create(PODS, pod(name, script), namespace=NAMESPACE)
        await phase(kube, name, "Running")
    await kube.create(PODS, pod(names[4], container("true", **wants)), namespace=NAMESPACE)

    async def refused() -> bool:
        return "2 Insufficient nvidia.com/gpu" in json.dumps((await get(kube, names[4]) or {}).get("status"))

    await until(refused, "the last one waits")

    assert await until(lambda: all_told(kube, names[:4]), "four GPUs") == ["0", "1", "2", "3"]
    await kube.delete(PODS, names[0], namespace=NAMESPACE, grace_s=0)
    await phase(kube, names[4], "Succeeded")
    for name in names[1:4]:
        await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)


async def all_told(kube: Kube, names: list[str]) -> list[str]:
    told = sorted([(await log_of(kube, name)).strip() for name in names])
    return told if all(told) else []


async def test_a_more_important_pod_displaces_others_which_are_told_why(kube: Kube, unique: str) -> None:
    important = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": f"high-{unique}"}, "value": 1000}
    await kube.create(PRIORITY_CLASSES, important)
    two = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    for index in range(2):
        held = {"finalizers": ["example.com/held"]}
        await kube.create(PODS, pod(f"low-{index}-{unique}", container("sleep", "1000", **two), metadata=held), namespace=NAMESPACE)
        await phase(kube, f"low-{index}-{unique}", "Running")

    def reasons(found: dict) -> list[str]:
        return [entry["reason"] for entry in found["status"]["conditions"] if entry["type"] == "DisruptionTarget"]

    await kube.create(
        PODS, pod(f"high-{unique}", container("sleep", "1000", **two), priorityClassName=f"high-{unique}"), namespace=NAMESPACE
    )
    await phase(kube, f"high-{unique}", "Running")
    lesser = [await kube.get(PODS, f"low-{index}-{unique}", namespace=NAMESPACE) for index in range(2)]
    assert sorted(map(reasons, lesser)) == [[], ["PreemptionByScheduler"]]
    for found in lesser:
        await kube.patch(PODS, found["metadata"]["name"], {"metadata": {"finalizers": None}}, namespace=NAMESPACE)
    for name in (f"high-{unique}", f"low-0-{unique}", f"low-1-{unique}"):
        if await get(kube, name):
            await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)


async def test_a_killed_node_takes_its_processes_along_and_a_removed_one_its_pods(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    name, node = f"doomed-{unique}", f"spot-{unique}"
    ask_agents(cluster.data_dir, Add(name=node, labels={"spot": "yes"}))
    await kube.create(PODS, pod(name, container("sleep", "1000"), **on(node)), namespace=NAMESPACE)
    await phase(kube, name, "Running")
    pids = await until(lambda: cluster.pids(NAMESPACE, name), "its process")
    ask_agents(cluster.data_dir, Kill(name=node))
    assert alive(pids) == []
    found = await get(kube, name)
    assert found is not None
    assert found["status"]["phase"] == "Running"
    await kube.delete(NODES, node)
    # A real controller manager waits a minute before it believes that a node is gone.
    await gone(kube, name, within_s=2 * PATIENCE_S)
    with pytest.raises(NotDone, match="nodes: node-0, node-1"):
        ask_agents(cluster.data_dir, Kill(name=node))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
async def test_a_drained_node_is_empty(cluster: LocalCluster, kube: Kube, unique: str) -> None:
    node, name = f"drained-{unique}", f"guest-{unique}"
    ask_agents(cluster.data_dir, Add(name=node))
    await kube.create(PODS, pod(name, container("sleep", "1000"), **on(node)), namespace=NAMESPACE)
    await phase(kube, name, "Running")
    command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), "drain", node, "--force", "--timeout=60s"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert await get(kube, name) is None
    ask_agents(cluster.data_dir, Kill(name=node))
    await kube.delete(NODES, node)


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    running = LocalCluster(data_dir=tmp_path_factory.mktemp("orphans"), control_plane=False)
    with running:
        pids = list(running.processes().values())
        running.kill("supervisor")
        deadline = time.monotonic() + PATIENCE_S
        while alive(pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive(pids) == []


def test_a_cluster_starts_once_the_last_process_of_a_killed_supervisor_has_ended(tmp_path: Path) -> None:
    """A server that was still ending would write to the store at the same time as the new one."""
    layout, gate = Layout(tmp_path), tmp_path / "gate"
    os.mkfifo(gate)
    dead = subprocess.Popen(["true"])
    dead.wait()
    state = ClusterState(supervisor=dead.pid, sandbox="none", server="", kubeconfig="", nodes=0, gpus=0, control_plane=False, processes={})
    with sole_owner(layout) as lock:
        last = subprocess.Popen(["cat", str(gate)], pass_fds=[lock])
        layout.write_state(state)
    opened = threading.Timer(0.2, gate.write_text, [""])
    opened.start()
    with sole_owner(layout):
        assert last.wait(PATIENCE_S) == 0
    with sole_owner(layout), pytest.raises(AlreadyRunning, match="elastic down"), sole_owner(layout):
        pass
    opened.join()
