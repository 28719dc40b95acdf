"""Give pods of higher priority the room of elastic jobs, by the laptop's scheduler and by a real one.

Workers give way, the launcher and the last minReplicas stay if possible, and workers come back when there is room again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from elastic_runs import elastic_run
from grounds import Ground
from laptop import NAMESPACE, container, get, gone, log_of, phase, pod, until

from elastic.api.names import JOB_NAME
from elastic.api.words import Cause
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.nodes import cordon
from elastic.kube.resources import POD_DISRUPTION_BUDGETS, PODS, PRIORITY_CLASSES, Object
from elastic.kube.submission import Submission
from elastic.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(400)]
PATIENCE_S = 100.0
LISTS_HOSTS = "while :; do /etc/mpi/discover_hosts.sh | grep -v :0 | sort | tr '\\n' ' '; echo; sleep 0.5; done"


@pytest.fixture(scope="module")
def cluster(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with ground.cluster(tmp_path_factory.mktemp("preemption"), nodes=2, gpus=3) as running:
        yield running


@pytest_asyncio.fixture
async def important(kube: Kube, unique: str) -> AsyncIterator[str]:
    """Create a PriorityClass above all others, and yield its name."""
    name = f"first-{unique}"
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    await kube.create(PRIORITY_CLASSES, {**kind, "metadata": {"name": name}, "value": 1000})
    yield name
    await kube.delete(PRIORITY_CLASSES, name)


def asking(name: str, gpus: int, *, node: str | None = None, **spec: Any) -> Object:
    where = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return pod(name, container("sleep", "1000", **wants(gpus)), **where, **spec)


def wants(gpus: int) -> Object:
    return {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}


def launched(name: str, *, workers: int, least: int, node: str) -> Object:
    """Return an elastic MPIJob with its workers on node-0, and its launcher on this node.

    The launcher is the youngest pod by seconds, and prints the list of its hosts again and again. Each pod has a GPU, and so the launcher
    is a host itself.
    """

    def template(*command: str, node: str = "node-0", **spec: Any) -> Object:
        main = container(*command, name="mpi", **wants(1))
        return {"spec": {"containers": [main], "nodeSelector": {"kubernetes.io/hostname": node}, **spec}}

    launcher = {"replicas": 1, "restartPolicy": "OnFailure", "template": template("sh", "-c", LISTS_HOSTS, node=node)}
    slow = container("sleep", "3", name="slow")
    worker = {"replicas": workers, "template": template("sleep", "1000", initContainers=[slow])}
    spec = {
        "slotsPerWorker": 1,
        "launcherCreationPolicy": "WaitForWorkersReady",
        "elasticPolicy": {"minReplicas": least, "maxReplicas": workers, "scaleInGraceSeconds": 2},
        "runPolicy": {"backoffLimit": 0},
        "mpiReplicaSpecs": {"Launcher": launcher, "Worker": worker},
    }
    return {"apiVersion": "kubeflow.org/v1", "kind": "MPIJob", "metadata": {"name": name}, "spec": spec}


async def pods_of(kube: Kube, job: str) -> dict[str, str]:
    """Return the uids of the job's running pods that are not being deleted, by name."""
    found = (await kube.list(PODS, namespace=NAMESPACE, labels=f"{JOB_NAME}={job}")).items
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found if _stays(pod)}


def _stays(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


async def dismiss(kube: Kube, *names: str) -> None:
    for name in names:
        if await get(kube, name):
            await kube.delete(PODS, name, namespace=NAMESPACE, grace_s=0)
            await gone(kube, name)


async def until_spare(kube: Kube, budgets: Mapping[str, int]) -> None:
    """Wait until the status of each budget allows this number of disruptions."""

    async def are_so() -> bool:
        found = {one["metadata"]["name"]: one for one in (await kube.list(POD_DISRUPTION_BUDGETS, namespace=NAMESPACE)).items}
        return all((found.get(name) or {}).get("status", {}).get("disruptionsAllowed") == spare for name, spare in budgets.items())

    await until(are_so, f"budgets have {dict(budgets)} to spare", within_s=PATIENCE_S)


async def test_workers_give_way_and_the_launcher_goes_on_with_the_last_of_them(kube: Kube, unique: str, important: str) -> None:
    """A scheduler takes the youngest of equal pods. It took the launcher, and with it the work of all workers."""
    name, server = f"launched-{unique}", f"server-{unique}"
    submission = Submission(kube, namespace=NAMESPACE)
    key = await submission.create(launched(name, workers=2, least=1, node="node-0"))
    launcher = f"{name}-launcher"
    first, second = (f"{name}-worker-{index}" for index in range(2))

    async def lists(*workers: str) -> bool:
        """Return whether the launcher's newest list names it and these hosts."""
        text = await log_of(kube, launcher, container="mpi") if launcher in await pods_of(kube, name) else ""
        return (text.splitlines() or [""])[-1].split() == [f"{host}:1" for host in sorted([launcher, *workers])]

    async def has(count: int) -> bool:
        return len(await pods_of(kube, name)) == count

    try:
        await until(lambda: lists(first, second), "the launcher has both workers", within_s=PATIENCE_S)
        await until_spare(kube, {name: 1, launcher: 0})
        before = await pods_of(kube, name)
        await kube.create(PODS, asking(server, 1, node="node-0", priorityClassName=important), namespace=NAMESPACE)
        await phase(kube, server, "Running")
        (left,) = (await pods_of(kube, name)).keys() - {launcher}
        assert (await pods_of(kube, name)).items() <= before.items()
        await until(lambda: lists(left), "the launcher goes on with one worker", within_s=PATIENCE_S)
        await dismiss(kube, server)
        await until(lambda: has(3), "there is room for the second worker again", within_s=PATIENCE_S)
        now = await pods_of(kube, name)
        assert {launcher: before[launcher], left: before[left]}.items() <= now.items()
        await until(lambda: lists(*(now.keys() - {launcher})), "the launcher has two workers again", within_s=PATIENCE_S)
        status = (await kube.get(key.resource, name, namespace=NAMESPACE))["status"]
        assert set(status["elastic"].get("restarts", {})) <= {Cause.DISRUPTION}
    finally:
        await dismiss(kube, server)
        assert not await submission.undo()


async def test_a_launcher_is_evicted_only_from_a_node_that_is_cordoned(kube: Kube, unique: str) -> None:
    name = f"moved-{unique}"
    submission = Submission(kube, namespace=NAMESPACE)
    key = await submission.create(launched(name, workers=1, least=1, node="node-1"))
    launcher = f"{name}-launcher"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": launcher, "namespace": NAMESPACE}}

    async def is_evicted() -> bool:
        try:
            await kube.create(PODS, eviction, namespace=NAMESPACE, name=launcher, subresource="eviction")
        except KubeError as error:
            if error.code != 429:
                raise
            return False
        return True

    async def is_another() -> bool:
        return (await pods_of(kube, name)).keys() == before.keys() and (await pods_of(kube, name))[launcher] != before[launcher]

    try:
        await until_spare(kube, {launcher: 0, name: 0})
        await phase(kube, launcher, "Running")
        before = await pods_of(kube, name)
        assert not await is_evicted()
        await cordon(kube, "node-1")
        await until(is_evicted, "the launcher may go", within_s=PATIENCE_S)
        await cordon(kube, "node-1", is_cordoned=False)
        await until(is_another, "there is another launcher", within_s=PATIENCE_S)
        await until_spare(kube, {launcher: 0, name: 0})
        status = (await kube.get(key.resource, name, namespace=NAMESPACE))["status"]
        assert set(status["elastic"].get("restarts", {})) <= {Cause.DISRUPTION}
    finally:
        await cordon(kube, "node-1", is_cordoned=False)
        assert not await submission.undo()


@pytest.mark.torch
async def test_the_last_workers_stay_if_others_can_go(cluster: LocalCluster, kube: Kube, unique: str, important: str) -> None:
    """The first pod displaces the worker above minReplicas.

    The second pod finds older pods of equal priority on the other node, and displaces one of these.
    """
    batch = [f"batch-{index}-{unique}" for index in range(3)]
    servers = [f"server-{index}-{unique}" for index in range(2)]
    for name in batch:
        await kube.create(PODS, asking(name, 1, node="node-1"), namespace=NAMESPACE)
        await phase(kube, name, "Running")
    async with elastic_run(cluster, f"spared-{unique}", workers=3, steps=10**6, gpus=1, minReplicas=2, maxReplicas=3) as run:
        await run.world(3)
        await until_spare(kube, {run.key.name: 1})
        before = await pods_of(kube, run.key.name)
        await kube.create(PODS, asking(servers[0], 1, node="node-0", priorityClassName=important), namespace=NAMESPACE)
        await phase(kube, servers[0], "Running")
        await run.world(2)
        await until_spare(kube, {run.key.name: 0})
        await kube.create(PODS, asking(servers[1], 1, priorityClassName=important), namespace=NAMESPACE)
        running = await phase(kube, servers[1], "Running")
        assert running["spec"]["nodeName"] == "node-1"
        last = await pods_of(kube, run.key.name)
        assert len(last) == 2
        assert last.items() < before.items()
        await dismiss(kube, *servers)
        await run.world(3)
        assert last.items() < (await pods_of(kube, run.key.name)).items()
        assert run.training.repeated <= 1  # rank 0 may have saved the step in which it stopped the others
        assert not [cause for cause in await run.restarts() if Cause(cause).is_charged]
    await dismiss(kube, *batch)
