"""Train with elastic Horovod on the laptop cluster, by exec and over ssh, while a launcher, pods, a node and the control plane are lost."""

import contextlib
import itertools
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from example_jobs import NAMESPACE, laptop, resource, run_to_end
from grounds import Ground
from horovod_jobs import BOTH_WAYS, PROGRAM, STEP, Running, example, losses, training, with_library, without_library
from laptop import alive, kill, until
from torch_agents import wait_until

from elastic.kube.client import Kube
from elastic.kube.nodes import cordon
from elastic.kube.resources import NODES, Object
from elastic.local import LocalCluster
from elastic.local.agent.asking import ask_agents
from elastic.local.agent.control import Add, Kill
from elastic.local.reclaim import PLAYABLE, as_seen, show

pytestmark = [
    pytest.mark.integration,
    pytest.mark.torch,
    pytest.mark.heavy,
    pytest.mark.full,
    pytest.mark.framework("horovod"),
    pytest.mark.timeout(1000),
    pytest.mark.sandboxes("netns"),
]
WITHIN_S, PATIENCE_S = 900.0, 300.0
BOTH_PROGRAMS = pytest.mark.parametrize("has_library", [False, True], ids=["unmodified", "library"])
BOTH_LAUNCHERS = pytest.mark.parametrize("observed", ["driver", "pods"])
"""The launcher with our library, which reports what its driver does, and the launcher without it."""


@pytest.fixture(scope="module")
def cluster(ground: Ground) -> Iterator[LocalCluster]:
    with laptop(ground, "horovod", nodes=1) as running:
        yield running


def uids(pods: dict[str, Object]) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


def restarts_in_place(pods: dict[str, Object]) -> int:
    return sum(status["restartCount"] for pod in pods.values() for status in pod["status"].get("containerStatuses") or ())


@BOTH_WAYS
def test_an_evicted_worker_is_replaced_and_nothing_is_charged(cluster: LocalCluster, transport: str) -> None:
    name = f"evicted-{transport.lower()}"
    job = example(name, steps=1000, workers=2, transport=transport)
    job["spec"]["runPolicy"]["backoffLimit"] = 1

    async def meanwhile(kube: Kube) -> None:
        running = Running(kube, job)
        step = await running.until_world(2)
        before = uids(await running.pods())
        await running.evict(f"{name}-worker-1")

        async def is_replaced() -> bool:
            now = uids(await running.pods())
            return len(now) == 2 and before[f"{name}-worker-1"] not in now.values()

        await until(is_replaced, "the evicted worker has a successor", within_s=PATIENCE_S)
        successor = next(worker for worker in await running.workers() if worker != f"{name}-worker-0")
        await until(lambda: training(successor), "the successor trains", within_s=PATIENCE_S)
        await running.until_world(2, after=step)
        assert uids(await running.pods())[f"{name}-worker-0"] == before[f"{name}-worker-0"]
        assert restarts_in_place(await running.pods("launcher")) == 0

    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="horovod", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    assert set(outcome.elastic.get("restarts", {})) <= {"disruption"}, outcome.story
    assert losses(outcome, name)[-1] < 0.01, outcome.story


def test_a_worker_leaves_a_node_that_is_taken_back_and_nothing_is_lost_or_charged(cluster: LocalCluster) -> None:
    """The notice comes two minutes before the machine goes. The worker is exchanged at once, and then the machine vanishes."""
    job = example("reclaimed", steps=1000)
    job["spec"]["runPolicy"]["backoffLimit"] = 1

    async def meanwhile(kube: Kube) -> None:
        running = Running(kube, job)
        await running.until_world(1)
        await cordon(kube, "node-0")
        ask_agents(cluster.data_dir, Add(name="spot"))
        try:
            await running.scale(2)
            step = await running.until_world(2)
            doomed = [name for name, pod in (await running.pods()).items() if pod["spec"]["nodeName"] == "spot"]
            assert doomed == ["reclaimed-worker-1"]
            await cordon(kube, "node-0", is_cordoned=False)
            await show(kube, "spot", as_seen(PLAYABLE["aws-spot"], now=datetime.now(UTC), left_s=None))
            await until(partial(_has_left, running, doomed[0]), "the worker has left the node", within_s=PATIENCE_S)
            ask_agents(cluster.data_dir, Kill(name="spot"))
            await kube.delete(NODES, "spot")
            await running.until_world(2, after=step)
        finally:
            await cordon(kube, "node-0", is_cordoned=False)

    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="horovod", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    assert set(outcome.elastic.get("restarts", {})) <= {"disruption"}, outcome.story
    steps = [int(step) for step, _ in STEP.findall(outcome.logs["reclaimed-launcher"])]
    assert steps == sorted(steps), outcome.story


@BOTH_LAUNCHERS
def test_a_worker_of_a_node_that_may_have_to_go_trains_until_another_takes_its_place(cluster: LocalCluster, observed: str) -> None:
    """First there is no room for the replacement. Then both are exchanged in one change, and the pod goes although the machine stays."""
    name, node = f"warned-{observed}", f"doubtful-{observed}"
    job = _launched(example(name, steps=1000), observed)
    job["spec"]["elasticPolicy"]["scaleInGraceSeconds"] = 10
    job["spec"]["runPolicy"]["backoffLimit"] = 1

    async def meanwhile(kube: Kube) -> None:
        running = Running(kube, job)
        await running.until_world(1)
        await cordon(kube, "node-0")
        ask_agents(cluster.data_dir, Add(name=node))
        try:
            await running.scale(2)
            step = await running.until_world(2)
            await show(kube, node, as_seen(PLAYABLE["aws-rebalance"], now=datetime.now(UTC), left_s=None))
            await until(partial(_is_there, running, f"{name}-worker-2"), "a replacement has been made", within_s=PATIENCE_S)
            await running.until_world(2, after=step + 50)
            assert training(f"{name}-worker-1"), "it trains while its replacement waits for a node"
            await cordon(kube, "node-0", is_cordoned=False)
            await until(partial(_has_left, running, f"{name}-worker-1"), "the worker has left the node", within_s=PATIENCE_S)
            assert training(f"{name}-worker-2")
        finally:
            await cordon(kube, "node-0", is_cordoned=False)
            ask_agents(cluster.data_dir, Kill(name=node))
            await kube.delete(NODES, node)

    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="horovod", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    assert outcome.elastic["observed"] == observed, outcome.story
    assert outcome.elastic.get("restarts", {}) == {}, outcome.story
    worlds = [(int(step), int(size)) for step, size in STEP.findall(outcome.logs[f"{name}-launcher"])]
    assert [step for step, _ in worlds] == list(range(1, 1001)), outcome.story
    assert [size for size, _ in itertools.groupby(size for _, size in worlds)] == [1, 2], outcome.story


async def _is_there(running: Running, worker: str) -> bool:
    return worker in await running.pods()


async def _has_left(running: Running, worker: str) -> bool:
    return worker not in await running.pods()


@BOTH_LAUNCHERS
def test_training_goes_on_while_the_control_plane_is_killed(cluster: LocalCluster, observed: str) -> None:
    """Each process dies once, and the size changes while it is away."""
    name = f"headless-{observed}"
    job = _launched(example(name, steps=1000), observed)

    async def meanwhile(kube: Kube) -> None:
        running = Running(kube, job)
        step = await running.until_world(1)
        cluster.kill("controller")
        await running.scale(2)
        step = await running.until_world(2, after=step)
        await kill(cluster, "rendezvous")
        step = await running.until_world(2, after=step + 10)
        cluster.kill("controller")
        cluster.kill("rendezvous")
        await running.scale(1)
        await running.until_world(1, after=step)
        await running.until_workers(f"{name}-worker-0")

    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="horovod", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    assert outcome.elastic["observed"] == observed, outcome.story
    assert outcome.elastic.get("restarts", {}) == {}, outcome.story


@BOTH_WAYS
@BOTH_PROGRAMS
def test_a_killed_launcher_starts_again_in_its_pod_and_is_charged_once(
    cluster: LocalCluster, transport: str, has_library: bool, tmp_path: Path
) -> None:
    """The second charge reaches backoffLimit."""
    job = _job("killed", transport, steps=5000, limit=2, library=tmp_path if has_library else None)

    async def meanwhile(kube: Kube) -> None:
        running = Running(kube, job)
        launcher = dict[str, str]()

        async def disturb() -> None:
            launcher.update(uids(await running.pods("launcher")))
            _kill_pod(cluster, running.launcher)
            await until(partial(_has_restarted, running), "the launcher's container runs again", within_s=PATIENCE_S)

        await _trains_again(running, disturb, has_library=has_library)
        assert uids(await running.pods("launcher")) == launcher
        assert _state(await kube.get(resource(job), running.name, namespace=NAMESPACE)) == "Running"
        _kill_pod(cluster, running.launcher)

    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="horovod", meanwhile=meanwhile)
    assert outcome.state == "Failed", outcome.story
    _assert_no_orphans(job)


@BOTH_WAYS
@BOTH_PROGRAMS
def test_an_evicted_launcher_is_made_again_uncharged(cluster: LocalCluster, transport: str, has_library: bool, tmp_path: Path) -> None:
    """The launcher's node is drained. It has none of the workers."""
    job = _job("moved", transport, steps=1000, limit=1, library=tmp_path if has_library else None)
    node = f"of-{job['metadata']['name']}"
    launcher_spec = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    launcher_spec["nodeSelector"] = {"kubernetes.io/hostname": node}

    async def meanwhile(kube: Kube) -> None:
        running = Running(kube, job)

        async def disturb() -> None:
            launcher = uids(await running.pods("launcher"))
            await cordon(kube, node)
            await running.evict(running.launcher)
            await cordon(kube, node, is_cordoned=False)
            await until(partial(_is_another, running, launcher), "there is another launcher", within_s=PATIENCE_S)

        ask_agents(cluster.data_dir, Add(name=node))
        await _trains_again(running, disturb, has_library=has_library)

    outcome = run_to_end(cluster, job, within_s=WITHIN_S, framework="horovod", meanwhile=meanwhile)
    assert outcome.state == "Succeeded", outcome.story
    assert set(outcome.elastic.get("restarts", {})) <= {"disruption"}, outcome.story
    _assert_no_orphans(job)


def _launched(job: Object, observed: str) -> Object:
    return without_library(job) if observed == "pods" else job


def _job(name: str, transport: str, *, steps: int, limit: int, library: Path | None) -> Object:
    """Return a job with two workers that fails at this many charges. With a folder for its program, it uses the library."""
    program = with_library(library) if library is not None else PROGRAM
    name = f"{name}-{transport.lower()}-{'library' if library is not None else 'plain'}"
    job = example(name, steps=steps, workers=2, transport=transport, program=program)
    job["spec"]["runPolicy"]["backoffLimit"] = limit
    return job


async def _trains_again(running: Running, disturb: Callable[[], Awaitable[None]], *, has_library: bool) -> None:
    """Lose the launcher. The workers' processes end, their pods stay, and new processes train, with the library from the last commit."""
    workers = [f"{running.name}-worker-0", f"{running.name}-worker-1"]
    last = await running.until_world(2, after=40)
    pods, old = uids(await running.pods()), [pid for worker in workers for pid in training(worker)]
    await disturb()
    await until(lambda: not alive(old), "the old workers end", within_s=PATIENCE_S)
    await running.until_world(2)
    assert uids(await running.pods()) == pods
    first = (await running.steps())[0][0]
    assert (last - 10 < first < last + 100) if has_library else first == 1, f"step {last} or later was the last one, the next is {first}"


def _assert_no_orphans(job: Object) -> None:
    workers = [f"{job['metadata']['name']}-worker-{index}" for index in (0, 1)]
    wait_until(lambda: not any(map(training, workers)), what="no worker's process is left", patience_s=30)


def _kill_pod(cluster: LocalCluster, pod: str) -> None:
    for pid in cluster.pids(NAMESPACE, pod):
        with contextlib.suppress(ProcessLookupError):  # the process ended with its parent
            os.kill(pid, signal.SIGKILL)


async def _has_restarted(running: Running) -> bool:
    pods = await running.pods("launcher")
    statuses = [status for pod in pods.values() for status in pod["status"].get("containerStatuses") or ()]
    return any(status["restartCount"] == 1 and "running" in status["state"] for status in statuses)


async def _is_another(running: Running, before: dict[str, str]) -> bool:
    now = uids(await running.pods("launcher"))
    return bool(now) and not set(now.values()) & set(before.values())


def _state(job: Object) -> str:
    return str(next(one["type"] for one in reversed(job["status"]["conditions"]) if one["status"] == "True"))
