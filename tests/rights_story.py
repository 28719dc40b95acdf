"""A life of jobs in which a controller does all it ever does to an API: made, spoiled, in the way of strangers, suspended, run out of time.

There need be no nodes: pods stay pending, and jobs end by their deadlines. PATIENCE_S is for a busy machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from control_plane import ROOT, SYSTEM, controller, install_crds, running
from rights_used import Use

from elastic.api import webhook
from elastic.api.kinds import KINDS
from elastic.api.words import IN_WORLD
from elastic.kube import connect
from elastic.kube.client import Kube, Patch
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
    VOLCANO_POD_GROUPS,
    Object,
    Resource,
)
from elastic.local.installation import ensure_installation
from elastic.local.ports import free_port
from elastic_training.controller.facts.keys import JOBS
from elastic_training.controller.facts.snapshot import pod_from

PATIENCE_S = 200
VOLCANO = "volcano"
OTHER_SCHEDULER = "scheduler-plugins-scheduler"
Which = Callable[[Use], bool]

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
    VOLCANO_POD_GROUPS: {"spec": {"minMember": 7}},
    SERVICES: {"spec": {"ports": [{"name": "changed", "port": 7}]}},
}
"""Changes of our objects that the controller undoes."""
MADE = {PODS, *DRIFT} - {VOLCANO_POD_GROUPS}
"""Kinds that are made if the other gang scheduler is in use."""


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
    """Return a job of each kind that runs out of time at once and is then deleted."""
    policy = {"runPolicy": {"activeDeadlineSeconds": 1, "ttlSecondsAfterFinished": 0}}
    least = {"MPIJob": {"Launcher": 1, "Worker": 1}, "XGBoostJob": {"Master": 1}, "MXJob": {"Scheduler": 1, "Server": 1, "Worker": 1}}
    return [_job(kind, f"short-{kind.lower()}", least.get(kind, {"Worker": 1}), policy) for kind in KINDS]


async def prepare(kubeconfig: Path) -> None:
    """Create the objects of an administrator: the kinds, those of gang schedulers, and the webhook's configuration."""
    await install_crds(kubeconfig, ROOT / "tests" / "operator" / "podgroup-crds.yaml")
    async with connect(kubeconfig) as kube:
        await kube.create(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.configuration({"url": "https://127.0.0.1:1/"}))


@contextlib.contextmanager
def rendezvous(installation: Path, folder: Path) -> Iterator[str]:
    """Run the rendezvous server. Yield its address."""
    ready = folder / "rendezvous.ready"
    args = ["elastic_training.rendezvous.main", "--installation", str(installation), "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
    with running("rendezvous", args, folder=folder, ready=ready):
        yield json.loads(ready.read_text())["listen"][0]


@contextlib.contextmanager
def control_plane(account: Path, folder: Path, *, gang_scheduler: str) -> Iterator[None]:
    """Run controller and rendezvous server, with everything turned on that needs a right of its own."""
    ensure_installation(folder / "installation", addresses=())
    port = free_port()
    with rendezvous(folder / "installation", folder) as address:
        flags = ["--installation", str(folder / "installation"), "--rendezvous-url", f"https://{address}", "--rendezvous-endpoint", address]
        flags += ["--gang-scheduler-name", gang_scheduler, "--webhook-port", str(port)]
        with controller(account, "--leader-elect", "--lease-namespace", SYSTEM, *flags, folder=folder):
            yield


async def owned(kube: Kube, owners: set[str]) -> list[tuple[Resource, Object]]:
    """Return the objects that the controller made for these jobs."""
    found = []
    for resource in (PODS, *DRIFT):
        for item in (await kube.list(resource, namespace="default")).items:
            if any(reference["uid"] in owners for reference in item["metadata"].get("ownerReferences") or ()):
                found.append((resource, item))
    return found


async def made(kube: Kube, owners: set[str], *, of: set[Resource]) -> list[tuple[Resource, Object]]:
    """Return the same, once there is an object of every kind."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await owned(kube, owners)
            if {resource for resource, _ in found} >= of:
                return found
            await asyncio.sleep(0.2)


async def take_names(kube: Kube, found: list[tuple[Resource, Object]], *, prefix: str = "b") -> None:
    """Create objects of somebody else by the names that the jobs of this prefix will want."""
    for resource, item in found:
        kept = {key: value for key, value in item.items() if key in ("apiVersion", "kind", "spec", "data", "rules", "roleRef", "subjects")}
        if resource == PODS:
            kept["spec"] = {"containers": [{"name": "c", "image": "example.com/other:1"}]}
        name = prefix + item["metadata"]["name"].removeprefix("a")
        await kube.create(resource, kept | {"metadata": {"name": name}}, namespace="default")


async def change(kube: Kube, found: list[tuple[Resource, Object]]) -> None:
    for resource, item in found:
        if resource in DRIFT and (resource != SERVICES or item["metadata"]["name"].endswith("-rdzv")):
            await kube.patch(resource, item["metadata"]["name"], DRIFT[resource], namespace="default")
        if resource == PODS and item["spec"].get("readinessGates"):
            await _forge_readiness(kube, item["metadata"]["name"])
    # A Secret is looked at again when a pod is made.
    for resource, item in found:
        if resource == PODS:
            await kube.delete(PODS, item["metadata"]["name"], namespace="default", grace_s=0)


async def _forge_readiness(kube: Kube, pod: str) -> None:
    """Write as somebody else that a worker is in the world, and wait until the controller has taken that back."""
    forged = {"type": IN_WORLD, "status": "True", "reason": "Forged"}
    await kube.patch(PODS, pod, {"status": {"conditions": [forged]}}, namespace="default", kind=Patch.STRATEGIC, subresource="status")
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = pod_from(await kube.get(PODS, pod, namespace="default")).in_world
            if found is not None and not found.is_true:
                return
            await asyncio.sleep(0.2)


async def begin(kube: Kube, wanted: list[Object]) -> set[str]:
    created = [await kube.create(JOBS[job["kind"]], job, namespace="default") for job in wanted]
    return {job["metadata"]["uid"] for job in created}


def is_of_volcano(use: Use) -> bool:
    return use[1] == VOLCANO_POD_GROUPS.group


async def live(kube: Kube, *, until_done: Callable[[Which], Awaitable[None]]) -> None:
    """Play the story of all rights. `until_done` waits until the controller has done everything of the given sort."""
    await begin(kube, short_lived())
    found = await made(kube, await begin(kube, jobs("a")), of=MADE)
    await take_names(kube, found)
    # Each of these stops what comes after it, so each has a job of its own.
    await take_names(kube, [(resource, item) for resource, item in found if resource == ROLES], prefix="d")
    await take_names(kube, [(resource, item) for resource, item in found if resource == ROLE_BINDINGS], prefix="e")
    await begin(kube, [*jobs("b"), *jobs("d"), *jobs("e")])
    await change(kube, found)
    await give_up(kube, pytorch("c-given-up", "elastic"))
    await until_done(lambda use: use[0] != "delete" and not is_of_volcano(use))
    await suspend(kube, jobs("a"))
    await until_done(lambda use: not is_of_volcano(use))


async def give_up(kube: Kube, wanted: Object) -> None:
    """Let a job end whose worker runs."""
    found = await made(kube, await begin(kube, [wanted]), of={PODS})
    resource, name = JOBS[wanted["kind"]], wanted["metadata"]["name"]
    for _, pod in found:
        if _ == PODS:
            running = {"status": {"phase": "Running"}}
            await kube.patch(PODS, pod["metadata"]["name"], running, namespace="default", subresource="status")
    closed = {"status": {"elastic": {"closed": "all restarts that maxRestarts allows are used up"}}}
    await kube.patch(resource, name, closed, namespace="default", subresource="status")


async def live_in_gangs(kube: Kube, *, until_done: Callable[[Which], Awaitable[None]]) -> None:
    """Do the same for pod groups alone: a controller makes those of one gang scheduler."""
    wanted = [pytorch("a-gang", "elastic")]
    found = await made(kube, await begin(kube, wanted), of={VOLCANO_POD_GROUPS})
    await take_names(kube, found)
    await begin(kube, [pytorch("b-gang", "elastic")])
    await change(kube, found)
    await until_done(lambda use: use[0] != "delete")
    await suspend(kube, wanted)
    await until_done(lambda use: True)


async def suspend(kube: Kube, wanted: list[Object]) -> None:
    for job in wanted:
        await kube.patch(JOBS[job["kind"]], job["metadata"]["name"], {"spec": {"runPolicy": {"suspend": True}}}, namespace="default")
