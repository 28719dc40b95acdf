"""The controller uses every right that it is granted and asks for no other: all it ever does to an API is made to happen once.

There are no nodes: pods stay pending, and jobs end by their deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ROOT, SYSTEM, api_server, controller, controller_account, install_crds, running
from rights_used import Use, granted, used

from controller.keys import JOBS
from elastic.api import webhook
from elastic.api.kinds import KINDS
from elastic.api.rights import roles
from elastic.kube import connect
from elastic.kube.client import Kube
from elastic.kube.resources import (
    CONFIG_MAPS,
    HORIZONTAL_POD_AUTOSCALERS,
    NETWORK_POLICIES,
    PLUGIN_POD_GROUPS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Object,
    Resource,
)
from elastic.local.installation import ensure_installation

pytestmark = [pytest.mark.integration, pytest.mark.timeout(700)]

PATIENCE_S = 200
NEVER = {
    **{("update", "kubeflow.org", f"{kind.plural}/finalizers"): "an admission plugin of the server asks" for kind in KINDS.values()},
    **{(verb, "", "pods/exec"): "is only handed on to launchers" for verb in ("create", "get")},
    **{
        (verb, "scheduling.volcano.sh", "podgroups"): "this run has the other gang scheduler"
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    },
}
"""Granted and not used here, and why."""

DRIFT: dict[Resource, Object] = {
    CONFIG_MAPS: {"data": {"hostfile": "changed"}},
    SECRETS: {"data": {"token": "Y2hhbmdlZA=="}},
    SERVICE_ACCOUNTS: {"metadata": {"labels": {"app": "changed"}}},
    ROLES: {"rules": []},
    ROLE_BINDINGS: {"subjects": []},
    HORIZONTAL_POD_AUTOSCALERS: {"spec": {"maxReplicas": 7}},
    POD_DISRUPTION_BUDGETS: {"spec": {"minAvailable": 7}},
    NETWORK_POLICIES: {"spec": {"policyTypes": ["Egress"]}},
    PLUGIN_POD_GROUPS: {"spec": {"minMember": 7}},
    SERVICES: {"spec": {"ports": [{"name": "changed", "port": 7}]}},
}
"""What somebody might do to our objects, and the controller undoes."""


def pytorch(name: str, backend: str) -> Object:
    metrics = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]
    policy = {"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": backend, "metrics": metrics}
    return _job("PyTorchJob", name, {"Worker": 1}, {"elasticPolicy": policy})


def _job(kind: str, name: str, replicas: dict[str, int], spec: Object) -> Object:
    facts = KINDS[kind]
    container = {"name": facts.container, "image": "example.com/train:1", "command": ["python3", "train.py"]}
    types = {type: {"replicas": count, "template": {"spec": {"containers": [container]}}} for type, count in replicas.items()}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {facts.replica_key: types, **spec},
    }


def jobs(prefix: str) -> list[Object]:
    return [
        pytorch(f"{prefix}-own", "elastic"),
        pytorch(f"{prefix}-store", "c10d"),
        _job("MPIJob", f"{prefix}-mpi", {"Launcher": 1, "Worker": 1}, {}),
    ]


def short_lived() -> list[Object]:
    """One of each kind that runs out of time at once and is then deleted."""
    policy = {"runPolicy": {"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 0}}
    least = {"MPIJob": {"Launcher": 1, "Worker": 1}, "XGBoostJob": {"Master": 1}, "MXJob": {"Scheduler": 1, "Server": 1, "Worker": 1}}
    return [_job(kind, f"short-{kind.lower()}", least.get(kind, {"Worker": 1}), policy) for kind in KINDS]


@contextlib.contextmanager
def rendezvous(installation: Path, folder: Path) -> Iterator[str]:
    """The rendezvous server; yields where it listens."""
    ready = folder / "rendezvous.ready"
    args = ["rendezvous.main", "--installation", str(installation), "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
    with running("rendezvous", args, folder=folder, ready=ready):
        yield json.loads(ready.read_text())["listen"][0]


@contextlib.contextmanager
def control_plane(kubeconfig: Path, folder: Path) -> Iterator[None]:
    """Controller and rendezvous server, with everything turned on that takes a right of its own."""
    account = asyncio.run(controller_account(kubeconfig, folder))
    ensure_installation(folder / "installation", addresses=())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with rendezvous(folder / "installation", folder) as address:
        flags = ["--installation", str(folder / "installation"), "--rendezvous-url", f"https://{address}", "--rendezvous-endpoint", address]
        flags += ["--gang-scheduler-name", "scheduler-plugins-scheduler", "--webhook-port", str(port)]
        with controller(account, "--leader-elect", "--lease-namespace", SYSTEM, *flags, folder=folder):
            yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rights")


@pytest.fixture(scope="module")
def kubeconfig(folder: Path) -> Iterator[Path]:
    with api_server(folder) as path:
        asyncio.run(install_crds(path, ROOT / "tests" / "operator" / "podgroup-crds.yaml"))
        asyncio.run(_ask_at_the_door(path))
        with control_plane(path, folder):
            yield path


async def _ask_at_the_door(kubeconfig: Path) -> None:
    async with connect(kubeconfig) as kube:
        body = webhook.configuration({"url": "https://127.0.0.1:1/"})
        await kube.create(VALIDATING_WEBHOOK_CONFIGURATIONS, body)


async def owned(kube: Kube, owners: set[str]) -> list[tuple[Resource, Object]]:
    """What the controller made for these jobs."""
    found = []
    for resource in (PODS, *DRIFT):
        for item in (await kube.list(resource, namespace="default")).items:
            if any(reference["uid"] in owners for reference in item["metadata"].get("ownerReferences") or ()):
                found.append((resource, item))
    return found


async def made(kube: Kube, owners: set[str]) -> list[tuple[Resource, Object]]:
    """The same, once there is something of every kind."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await owned(kube, owners)
            if {resource for resource, _ in found} == {PODS, *DRIFT}:
                return found
            await asyncio.sleep(0.2)


async def take_names(kube: Kube, found: list[tuple[Resource, Object]]) -> None:
    """Somebody else has objects by the names that the jobs of prefix b will want."""
    for resource, item in found:
        kept = {key: value for key, value in item.items() if key in ("apiVersion", "kind", "spec", "data", "rules", "roleRef", "subjects")}
        if resource == PODS:
            kept["spec"] = {"containers": [{"name": "c", "image": "example.com/other:1"}]}
        name = "b" + item["metadata"]["name"].removeprefix("a")
        await kube.create(resource, kept | {"metadata": {"name": name}}, namespace="default")


async def change(kube: Kube, found: list[tuple[Resource, Object]]) -> None:
    for resource, item in found:
        if resource in DRIFT and (resource != SERVICES or item["metadata"]["name"].endswith("-rdzv")):
            await kube.patch(resource, item["metadata"]["name"], DRIFT[resource], namespace="default")
    # A Secret is looked at again when a pod is made.
    for resource, item in found:
        if resource == PODS:
            await kube.delete(PODS, item["metadata"]["name"], namespace="default", grace_s=0)


async def begin(kube: Kube, wanted: list[Object]) -> set[str]:
    created = [await kube.create(JOBS[job["kind"]], job, namespace="default") for job in wanted]
    return {job["metadata"]["uid"] for job in created}


async def test_the_controller_uses_every_right_it_has_and_misses_none(kubeconfig: Path, folder: Path) -> None:
    async with connect(kubeconfig) as kube:
        await begin(kube, short_lived())
        found = await made(kube, await begin(kube, jobs("a")))
        await take_names(kube, found)
        await begin(kube, jobs("b"))
        await change(kube, found)
        await until_all_are_used(folder / "audit.jsonl", but="delete")
        for job in jobs("a"):
            await kube.patch(JOBS[job["kind"]], job["metadata"]["name"], {"spec": {"runPolicy": {"suspend": True}}}, namespace="default")
        await until_all_are_used(folder / "audit.jsonl")
    assert used(folder / "audit.jsonl", allowed=False) == set()


async def until_all_are_used(audit: Path, *, but: str = "") -> None:
    missing: set[Use] = set()
    try:
        async with asyncio.timeout(PATIENCE_S / 2):
            while True:
                missing = {use for use in granted(roles()) - used(audit) if use not in NEVER and use[0] != but}
                if not missing:
                    return
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(f"granted, but never used: {sorted(missing)}; note why, or take it from elastic/api/rights.py")
