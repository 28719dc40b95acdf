"""`elastic install` and `elastic uninstall` on a real API server, as people type them. There are no nodes: a test plays the kubelets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml
from elastic_commands import elastic
from installed_objects import installed_objects

from elastic.api.kinds import KINDS
from elastic.cli.installing import manifests
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import resource_of
from elastic.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
IMAGE = "registry.example.com/elastic-training:1"
SYSTEM = "elastic-system"
JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train, namespace: default}
spec: {pytorchReplicaSpecs: {Worker: {replicas: 1, template: {spec: {containers: [{name: pytorch, image: a}]}}}}}
"""


@pytest.fixture
def kubeconfig(own_kubeconfig: Path) -> Path:
    return own_kubeconfig


async def start_pods(kube: Kube) -> None:
    """Say of each pod what kubelets say, again and again."""
    while True:
        for pod in (await kube.list(PODS, namespace=SYSTEM)).items:
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            if (pod.get("status") or {}).get("phase") != "Running":
                await kube.patch(PODS, pod["metadata"]["name"], {"status": status}, namespace=SYSTEM, subresource="status")
        await asyncio.sleep(0.2)


async def test_it_installs_changes_and_removes_a_whole_control_plane(kubeconfig: Path, kube: Kube) -> None:
    trial = await elastic(kubeconfig, "install", "--image", IMAGE, "--dry-run")
    assert trial.returncode == 0, trial.stderr
    assert [item["metadata"]["name"] for item in (await kube.list(CUSTOM_RESOURCE_DEFINITIONS)).items] == []

    components = ("autoscaler", "autoscaler-metrics-api", "dashboard", "etcd")
    words = [word for name in components for word in ("--component", name)]
    said = await elastic(kubeconfig, "install", "--image", IMAGE, "--no-wait", *words)
    assert said.returncode == 0, said.stderr
    for kind in KINDS.values():
        await kube.list(resource_of(kind))
    for item in installed_objects("standalone", components, namespace=SYSTEM, image=IMAGE):
        await kube.get(manifests.resource(item), item["metadata"]["name"], namespace=item["metadata"].get("namespace"))
    key = (await kube.get(SECRETS, "elastic-installation", namespace=SYSTEM))["data"]["server.key"]

    waiting = await elastic(kubeconfig, "install", "--timeout", "2")
    assert (waiting.returncode, "deployment elastic-controller: 0 of 2 ready" in waiting.stderr) == (1, True), waiting.stderr

    said = await elastic(kubeconfig, "install", "--component", "none", "--no-wait")
    assert said.returncode == 0, said.stderr
    deployments = [one["metadata"]["name"] for one in (await kube.list(DEPLOYMENTS, namespace=SYSTEM)).items]
    assert sorted(deployments) == ["elastic-controller", "elastic-rendezvous"]
    assert (await kube.get(SECRETS, "elastic-installation", namespace=SYSTEM))["data"]["server.key"] == key

    await kube.create(resource_of(KINDS["PyTorchJob"]), yaml.safe_load(JOB), namespace="default")
    said = await elastic(kubeconfig, "uninstall", "--yes")
    assert said.returncode == 0, said.stderr
    assert "keep 1 job, 1 of them not over: PyTorchJob default/train" in said.stdout
    assert (await kube.list(DEPLOYMENTS, namespace=SYSTEM)).items == []
    await kube.get(resource_of(KINDS["PyTorchJob"]), "train", namespace="default")
    await kube.get(SECRETS, "elastic-installation", namespace=SYSTEM)
    with pytest.raises(KubeError, match="not found"):
        await kube.get(VALIDATING_WEBHOOK_CONFIGURATIONS, "elastic-webhook")

    said = await elastic(kubeconfig, "uninstall", "--yes", "--delete-jobs")
    assert said.returncode == 0, said.stderr
    with pytest.raises(KubeError, match="not found"):
        await kube.get(SECRETS, "elastic-installation", namespace=SYSTEM)


async def test_a_user_without_the_right_is_told_it_and_nothing_changes(kubeconfig: Path, kube: Kube, tmp_path: Path) -> None:
    await kube.create(SERVICE_ACCOUNTS, {"metadata": {"name": "poor"}}, namespace="default")
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = await kube.create(SERVICE_ACCOUNTS, asked, namespace="default", name="poor", subresource="token")
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token["status"]["token"]}
    poor = tmp_path / "poor.kubeconfig"
    poor.write_text(yaml.safe_dump(config))
    said = await elastic(poor, "install", "--image", IMAGE)
    assert (said.returncode, "you may not get namespaces, create namespaces, patch namespaces" in said.stderr) == (1, True), said.stderr

    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "installer"}}
    role["rules"] = [
        {"apiGroups": [group], "resources": ["*"], "verbs": ["get", "list", "create", "patch"]}
        for group in ("", "apps", "policy", "rbac.authorization.k8s.io", "networking.k8s.io", "scheduling.k8s.io")
    ]
    role["rules"] += [
        {"apiGroups": [group], "resources": ["*"], "verbs": ["get", "list", "create", "patch"]}
        for group in ("apiextensions.k8s.io", "admissionregistration.k8s.io")
    ]
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "installer"}}
    binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "installer"}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": "poor", "namespace": "default"}]
    await kube.create(CLUSTER_ROLES, role)
    await kube.create(CLUSTER_ROLE_BINDINGS, binding)
    said = await elastic(poor, "install", "--image", IMAGE)
    assert (said.returncode, "attempting to grant RBAC permissions" in said.stderr) == (1, True), said.stderr
    assert (await kube.list(CUSTOM_RESOURCE_DEFINITIONS)).items == []
    with pytest.raises(KubeError, match="not found"):
        await kube.get(NAMESPACES, SYSTEM)


async def test_it_waits_until_the_control_plane_is_ready(real_assets: Path, kubeconfig: Path, kube: Kube) -> None:
    if not (real_assets / "kube-controller-manager").is_file():
        pytest.skip("needs kube-controller-manager, which makes the pods of deployments")
    kubelets = asyncio.create_task(start_pods(kube))
    try:
        said = await elastic(kubeconfig, "install", "--image", IMAGE)
    finally:
        kubelets.cancel()
        await asyncio.gather(kubelets, return_exceptions=True)
    assert said.returncode == 0, said.stderr
    assert "is ready in namespace elastic-system" in said.stdout
