"""`elastic install --trainjobs` on a real API server, and the controller with the rights that it brings.

The test plays Kubeflow Trainer's controller: it holds its Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from control_plane import controller
from elastic_commands import elastic
from train_job_builders import train_job

from elastic.api import webhook
from elastic.api.trainer.modes import LABEL, TRAINER_LEASE, VALUE, holder_of_trainer
from elastic.api.trainer.shipped import NAMESPACE, objects
from elastic.api.trainer.train_job import MULTI_KUEUE
from elastic.cli.installing.looking_trainer import MUTATING_WEBHOOK_CONFIGURATIONS
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    DEPLOYMENTS,
    LEASES,
    SERVICE_ACCOUNTS,
    TRAIN_JOBS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Object,
    Resource,
)
from elastic.local.ports import free_port

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
IMAGE = "registry.example.com/elastic-training:1"
SYSTEM = "elastic-system"
PATIENCE_S = 120
PYTORCH_JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", kind="PyTorchJob")


@pytest.fixture
def kubeconfig(own_kubeconfig: Path) -> Path:
    return own_kubeconfig


async def account(kube: Kube, kubeconfig: Path, folder: Path) -> Path:
    """Return a kubeconfig of the account that was installed."""
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = await kube.create(SERVICE_ACCOUNTS, asked, namespace=SYSTEM, name="elastic-controller", subresource="token")
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token["status"]["token"]}
    path = folder / "controller.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110 - an object that changes wakes nobody
            await asyncio.sleep(0.2)


async def names(kube: Kube, resource: Resource) -> set[str]:
    return {item["metadata"]["name"] for item in (await kube.list(resource, namespace="default")).items}


def named(name: str, *, labels: dict[str, str] | None = None, **spec: object) -> Object:
    made = train_job(**spec)
    return {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "metadata": {"name": name, "labels": labels or {}},
        "spec": made["spec"],
    }


@contextlib.asynccontextmanager
async def trainers_controller(kube: Kube) -> AsyncIterator[None]:
    """Hold the Lease as Kubeflow Trainer's controller does, which leaves its name there when it ends."""

    async def renew() -> None:
        while True:
            lease = await kube.find(LEASES, TRAINER_LEASE, namespace=NAMESPACE)
            spec = {
                "holderIdentity": "trainer_1",
                "leaseDurationSeconds": 4,
                "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            }
            if lease is None:
                await kube.create(LEASES, {"metadata": {"name": TRAINER_LEASE}, "spec": spec}, namespace=NAMESPACE)
            else:
                await kube.patch(LEASES, TRAINER_LEASE, {"spec": spec}, namespace=NAMESPACE)
            await asyncio.sleep(0.5)

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)


async def test_the_two_controllers_share_a_cluster_or_take_turns(kubeconfig: Path, kube: Kube, tmp_path: Path) -> None:
    said = await elastic(kubeconfig, "install", "--image", IMAGE, "--no-wait", "--trainjobs", "instead")
    assert said.returncode == 0, said.stderr
    shipped = {item["metadata"]["name"] for item in objects() if item["kind"] == CLUSTER_TRAINING_RUNTIMES.kind}
    assert {item["metadata"]["name"] for item in (await kube.list(CLUSTER_TRAINING_RUNTIMES)).items} == shipped
    again = await elastic(kubeconfig, "install", "--no-wait")
    assert (again.returncode, "stays as it is" in again.stderr) == (0, False), again.stderr
    ours = await account(kube, kubeconfig, tmp_path)
    flags = ["--leader-elect", "--lease-namespace", SYSTEM]

    async with trainers_controller(kube):
        await until(lambda: _holds(kube, "trainer_1"))
        refused = await elastic(kubeconfig, "install", "--no-wait")
        assert (refused.returncode, "holds its Lease in kubeflow-system: trainer_1" in refused.stderr) == (1, True), refused.stderr
        said = await elastic(kubeconfig, "install", "--no-wait", "--trainjobs", "beside")
        assert said.returncode == 0, said.stderr
        await kube.create(TRAIN_JOBS, named("theirs"), namespace="default")
        await kube.create(TRAIN_JOBS, named("ours", labels={LABEL: VALUE}, managedBy=MULTI_KUEUE), namespace="default")
        with controller(ours, "--trainjobs", "beside", *flags, folder=tmp_path):
            await until(lambda: _there(kube, "ours"))
            assert await names(kube, PYTORCH_JOBS) == {"ours"}
            assert await _holds(kube, "trainer_1")

    said = await elastic(kubeconfig, "install", "--no-wait", "--trainjobs", "instead")
    assert said.returncode == 0, said.stderr
    port = free_port()
    with controller(ours, "--trainjobs", "instead", "--webhook-port", str(port), *flags, folder=tmp_path):
        await until(lambda: _there(kube, "theirs"))
        assert await _holds(kube, holder_of_trainer(SYSTEM))
        await _asks(kube, port)
    said = await elastic(kubeconfig, "uninstall", "--yes", "--delete-jobs")
    assert said.returncode == 0, said.stderr
    with pytest.raises(KubeError, match="not found"):
        await kube.list(TRAIN_JOBS)


async def test_train_jobs_are_taken_over_from_kubeflow_trainer_and_given_back(kubeconfig: Path, kube: Kube, tmp_path: Path) -> None:
    said = await elastic(kubeconfig, "install", "--image", IMAGE, "--no-wait", "--trainjobs", "instead")  # for the definitions
    assert said.returncode == 0, said.stderr
    said = await elastic(kubeconfig, "install", "--no-wait", "--trainjobs", "off")
    assert said.returncode == 0, said.stderr
    await kube.create(DEPLOYMENTS, trainer_deployment(), namespace=NAMESPACE)
    for resource, name in HOOKS:
        await kube.create(resource, hooks(name))
    await kube.create(TRAIN_JOBS, named("fit", suspend=True), namespace="default")
    file = tmp_path / "kept.json"
    shown = await elastic(kubeconfig, "adopt", "--trainer", "--save", str(file))
    assert (shown.returncode, len(shown.stdout.splitlines()) > 5, file.exists()) == (0, True, False), shown.stderr
    said = await elastic(kubeconfig, "adopt", "--trainer", "--save", str(file), "--yes")
    assert said.returncode == 0, said.stderr
    assert await _serving(kube) == (["--trainjobs=instead"], 0, [False, False])
    said = await elastic(kubeconfig, "adopt", "--back", str(file), "--yes")
    assert said.returncode == 0, said.stderr
    assert await _serving(kube) == ([], 2, [True, True])


HOOKS = [
    (VALIDATING_WEBHOOK_CONFIGURATIONS, "validator.trainer.kubeflow.org"),
    (MUTATING_WEBHOOK_CONFIGURATIONS, "defaulter.trainer.kubeflow.org"),
]


def hooks(name: str) -> Object:
    """Return a configuration of Kubeflow Trainer's that refuses nothing while its server is away, so that the test can go on."""
    rules = [{"apiGroups": ["trainer.kubeflow.org"], "apiVersions": ["v1alpha1"], "resources": ["trainjobs"], "operations": ["CREATE"]}]
    service = {"namespace": NAMESPACE, "name": "kubeflow-trainer-controller-manager", "path": "/x"}
    hook = {"name": name, "rules": rules, "clientConfig": {"service": service}, "failurePolicy": "Ignore", "sideEffects": "None"}
    return {"metadata": {"name": name}, "webhooks": [hook | {"admissionReviewVersions": ["v1"], "timeoutSeconds": 1}]}


def trainer_deployment() -> Object:
    labels = {"app.kubernetes.io/name": "trainer"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "manager", "image": "trainer-controller-manager:v2.3.0"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": pod}
    return {"metadata": {"name": "kubeflow-trainer-controller-manager", "labels": labels}, "spec": spec}


async def _serving(kube: Kube) -> tuple[list[str], int, list[bool]]:
    """Return our controller's flag, the replicas of Kubeflow Trainer's controller, and whether its webhooks are there."""
    ours = await kube.get(DEPLOYMENTS, "elastic-controller", namespace=SYSTEM)
    args = ours["spec"]["template"]["spec"]["containers"][0]["args"]
    theirs = await kube.get(DEPLOYMENTS, "kubeflow-trainer-controller-manager", namespace=NAMESPACE)
    there = [await kube.find(resource, name) is not None for resource, name in HOOKS]
    return [flag for flag in args if flag.startswith("--trainjobs")], theirs["spec"]["replicas"], there


async def _holds(kube: Kube, holder: str) -> bool:
    lease = await kube.find(LEASES, TRAINER_LEASE, namespace=NAMESPACE)
    return ((lease or {}).get("spec") or {}).get("holderIdentity") == holder


async def _there(kube: Kube, name: str) -> bool:
    return name in await names(kube, PYTORCH_JOBS)


async def _asks(kube: Kube, port: int) -> None:
    """Check that a TrainJob is refused by the webhook. The API server hears of the changed configuration a moment later."""
    name = f"{webhook.NAME}{webhook.FOR_TRAIN_JOBS}"
    client = {"url": f"https://127.0.0.1:{port}{webhook.PATH}", "service": None}
    (hook,) = webhook.train_job_configuration(client)["webhooks"]
    change = {"webhooks": [{"name": hook["name"], "clientConfig": client, "timeoutSeconds": 30}]}
    await kube.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, name, change, kind=Patch.STRATEGIC)

    async def is_refused() -> bool:
        try:
            await kube.create(TRAIN_JOBS, named("lost", runtimeRef={"name": "none"}), namespace="default")
        except KubeError as error:
            return "ClusterTrainingRuntime none does not exist; create it or name another" in error.message
        await kube.delete(TRAIN_JOBS, "lost", namespace="default")
        return False

    await until(is_refused)
    await kube.create(TRAIN_JOBS, named("found"), namespace="default")
    await until(lambda: _there(kube, "found"))
