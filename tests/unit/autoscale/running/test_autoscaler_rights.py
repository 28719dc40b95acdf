"""Check that the autoscaler uses every right that it is granted, and asks for no other right.

The rights of the metrics API are among them. API server and autoscaler run in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import yaml
from api_in_process import served
from rights_used import Use, granted, used

from elastic.api.crd import crd
from elastic.api.kinds import KINDS
from elastic.api.names import REPLICA_INDEX, REPLICA_TYPE
from elastic.api.rights import AUTOSCALER, METRICS_API, METRICS_API_SERVICES, SYSTEM, as_objects, autoscaler_roles, metrics_api_roles
from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.resources import (
    API_SERVICES,
    CUSTOM_RESOURCE_DEFINITIONS,
    NODES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Object,
    Resource,
)
from elastic_training.autoscale.running.options import Options
from elastic_training.autoscale.running.process import Process

PYTORCH = KINDS["PyTorchJob"]
JOBS = Resource("kubeflow.org", "v1", PYTORCH.plural, kind=PYTORCH.name)
ACCOUNT = f"system:serviceaccount:{SYSTEM}:{AUTOSCALER}"
GRANTED = [*autoscaler_roles([PYTORCH.name]), *metrics_api_roles()]
KINDS_OF_RIGHTS = {
    "Role": ROLES,
    "RoleBinding": ROLE_BINDINGS,
    "ClusterRole": Resource("rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False, kind="ClusterRole"),
    "ClusterRoleBinding": Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", namespaced=False, kind="ClusterRoleBinding"),
}
VALUES = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/desired_workers"
pytestmark = pytest.mark.timeout(360)


async def account(admin: Kube, kubeconfig: Path, folder: Path) -> tuple[Path, str]:
    """Create the autoscaler's account with exactly the rights of the table. Return its kubeconfig and its token."""
    await admin.create(SERVICE_ACCOUNTS, {"metadata": {"name": AUTOSCALER}}, namespace=SYSTEM)
    for role in GRANTED:
        for item in as_objects(role):
            await admin.create(KINDS_OF_RIGHTS[item["kind"]], item, namespace=item["metadata"].get("namespace"))
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = await admin.create(SERVICE_ACCOUNTS, request, namespace=SYSTEM, name=AUTOSCALER, subresource="token")
    config = yaml.safe_load(kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": answer["status"]["token"]}
    path = folder / "autoscaler.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path, answer["status"]["token"]


@contextlib.asynccontextmanager
async def autoscaler(kubeconfig: Path) -> AsyncIterator[int]:
    """Run the whole process as deploy/ starts it, and yield the port of its metrics API."""
    opened = socket.create_server(("127.0.0.1", 0))
    port = opened.getsockname()[1]
    options = Options(
        kubeconfig=kubeconfig,
        namespace=None,
        kinds=(PYTORCH.name,),
        rendezvous_url="",
        rendezvous_token=None,
        rendezvous_ca=None,
        cluster_grows=False,
        pages_through_api=False,
        health_port=0,
        metrics_port=0,
        metrics_api_port=0,
        metrics_api_fd=opened.detach(),
        ready_file=None,
        leader_elect=True,
        lease_namespace=SYSTEM,
        lease_duration_s=60.0,
        identity="test",
    )
    stop = asyncio.Event()
    async with connect(kubeconfig) as kube:
        running = asyncio.create_task(Process(kube, options).run(stop))
        try:
            yield port
        finally:
            stop.set()
            await running


def job() -> Object:
    """Return a job that has three workers by its schedule, and its progress in the log of the first one."""
    policy = {"policy": "schedule", "windows": [{"start": "00:00", "end": "00:00", "replicas": 3}], "cooldownSeconds": 0}
    elastic = {"minReplicas": 1, "maxReplicas": 4, "scalingPolicy": policy, "progress": {"logPattern": "step {step}"}}
    template = {"spec": {"containers": [{"name": "pytorch", "image": "i", "command": ["train"]}]}}
    workers = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    spec = {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": workers}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "job"}, "spec": spec}


async def first_worker(admin: Kube, uid: str) -> None:
    """Create the job's first worker as a running pod on a node without a kubelet, which has room for more pods."""
    await admin.create(NODES, {"metadata": {"name": "nowhere"}})
    room = {"status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}}}
    await admin.patch(NODES, "nowhere", room, kind=Patch.MERGE, subresource="status")
    labels = {REPLICA_TYPE: "worker", REPLICA_INDEX: "0"}
    owner = {"apiVersion": "kubeflow.org/v1", "kind": PYTORCH.name, "name": "job", "uid": uid, "controller": True}
    metadata = {"name": "job-worker-0", "labels": labels, "ownerReferences": [owner]}
    spec = {"containers": [{"name": "pytorch", "image": "i"}], "nodeName": "nowhere"}
    await admin.create(PODS, {"metadata": metadata, "spec": spec}, namespace="default")
    status = {"status": {"phase": "Running"}}
    await admin.patch(PODS, "job-worker-0", status, namespace="default", kind=Patch.MERGE, subresource="status")


async def ask(port: int, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    url = f"https://127.0.0.1:{port}{VALUES}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=False) as answer:
        return answer.status


async def until_only(left: set[Use], audit: Path) -> None:
    """Wait until all rights except these have been used."""
    missing: set[Use] = set()
    try:
        async with asyncio.timeout(100):
            while (missing := granted(GRANTED) - used(audit, account=ACCOUNT)) - left:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"granted, but never used: {sorted(missing - left)}")


async def test_the_autoscaler_uses_every_right_it_has_and_misses_none(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    withdrawal: set[Use] = {("delete", "apiregistration.k8s.io", "apiservices")}
    renewal: set[Use] = {("patch", "", "secrets"), ("patch", "apiregistration.k8s.io", "apiservices")} | withdrawal
    reviews: set[Use] = {("create", "authentication.k8s.io", "tokenreviews"), ("create", "authorization.k8s.io", "subjectaccessreviews")}
    async with served(tmp_path) as kubeconfig, connect(kubeconfig) as admin:
        await admin.create(CUSTOM_RESOURCE_DEFINITIONS, crd(PYTORCH))
        path, token = await account(admin, kubeconfig, tmp_path)
        async with autoscaler(path) as port:
            made = await admin.create(JOBS, job(), namespace="default")
            await first_worker(admin, made["metadata"]["uid"])
            await until_only(renewal | reviews, audit)
            assert await ask(port, token) == 403, "the autoscaler's own account may not read what it serves"
            await until_only(renewal, audit)
        # The stored certificate is damaged, so the next process makes a new one and registers it.
        await admin.patch(SECRETS, METRICS_API, {"data": {"tls.crt": ""}}, namespace=SYSTEM, kind=Patch.MERGE)
        for name in METRICS_API_SERVICES:
            await admin.patch(API_SERVICES, name, {"spec": {"caBundle": ""}}, kind=Patch.MERGE)
        async with autoscaler(path):
            await until_only(withdrawal, audit)
        # Another adapter comes: the next process leaves the group to it.
        await admin.patch(API_SERVICES, "v1beta1.custom.metrics.k8s.io", {"spec": {"service": {"name": "adapter"}}}, kind=Patch.MERGE)
        async with autoscaler(path):
            await until_only(set(), audit)
    assert used(audit, account=ACCOUNT, allowed=False) == set()
