"""Check that the node agent is a node of a real API server, as it is of the laptop's.

Pods run, find each other, give their logs, and end.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import NODES, PODS, SECRETS, SERVICE_ACCOUNTS, SERVICES

PATIENCE_S = 90.0
Object = dict[str, Any]
ASK = """\
fetch='import urllib.request as u; print(u.urlopen("http://server:8123/page").read().decode().strip())'
for attempt in $(seq 200); do python -c "$fetch" 2>/dev/null && break; sleep 0.1; done
echo $TOKEN; exit 4
"""


@pytest.fixture(scope="module", params=["netns", "loopback"])
def node(request: pytest.FixtureRequest, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the agent as its own process, and yield the name of its node."""
    name, folder = f"laptop-{uuid.uuid4().hex[:6]}", tmp_path_factory.mktemp(request.param)
    ready, log = folder / "ready", folder / "agent.log"
    command = [sys.executable, "-m", "elastic.local.agent", "--kubeconfig", str(kubeconfig), "--node", name]
    command += ["--data-dir", str(folder / "data"), "--sandbox", request.param, "--ready-file", str(ready)]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        end = time.monotonic() + PATIENCE_S
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield name
    finally:
        process.terminate()
        process.wait(30)
        subprocess.run(
            ["kubectl", "--kubeconfig", str(kubeconfig), "delete", "node", name, "--wait=false"], check=False, capture_output=True
        )


def pod(name: str, node: str, script: str, **fields: Any) -> Object:
    main = {"name": "main", "image": "any", "command": ["sh", "-c", script], **fields}
    spec = {"nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main]}
    # A new node may still have the taint that a real controller gives it at first. The pod names its node, so no scheduler acts.
    spec["tolerations"] = [{"operator": "Exists"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


async def phase(kube: Kube, namespace: str, name: str, *wanted: str) -> Object:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await kube.get(PODS, name, namespace=namespace)
            if found["status"].get("phase") in wanted:
                return found
            await asyncio.sleep(0.1)


async def account(kube: Kube, namespace: str) -> None:
    """Create the account that pods need, unless a controller manager has created it."""
    try:
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}, "automountServiceAccountToken": False}
        await kube.create(SERVICE_ACCOUNTS, body, namespace=namespace)
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise


async def test_pods_run_on_the_agents_node_and_tell_how_it_went(kube: Kube, namespace: str, node: str) -> None:
    await account(kube, namespace)
    assert (await kube.get(NODES, node))["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("elastic://")
    token = base64.b64encode(b"s3cret").decode()
    await kube.create(
        SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sec"}, "data": {"token": token}}, namespace=namespace
    )
    ports = {"clusterIP": "None", "selector": {"app": "server"}, "ports": [{"port": 8123}]}
    await kube.create(SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"}, "spec": ports}, namespace=namespace)
    await kube.create(PODS, pod("server", node, 'cd "$TMPDIR"; echo served > page; exec python -m http.server 8123'), namespace=namespace)
    env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "token"}}}]
    await kube.create(PODS, pod("client", node, ASK, env=env), namespace=namespace)
    done = await phase(kube, namespace, "client", "Failed", "Succeeded")
    assert done["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    text = b"".join([chunk async for chunk in kube.logs("client", namespace=namespace, follow=True)]).decode()
    assert text == "served\ns3cret\n"
    await kube.delete(PODS, "server", namespace=namespace)
    await gone(kube, namespace, "server")


async def test_a_pod_that_had_another_address_keeps_its_status(kube: Kube, namespace: str, node: str, tmp_path: Path) -> None:
    """An agent that restarted with another data folder gave a pod another address. A server merges both addresses, and refuses them."""
    await account(kube, namespace)
    await kube.create(PODS, pod("moved", node, f"until [ -e {tmp_path}/go ]; do sleep 0.1; done"), namespace=namespace)
    here = (await phase(kube, namespace, "moved", "Running"))["status"]["podIP"]
    before = {"podIP": "10.98.7.6", "podIPs": [{"ip": "10.98.7.6"}, {"$patch": "replace"}]}
    await kube.patch(PODS, "moved", {"status": before}, namespace=namespace, kind=Patch.STRATEGIC, subresource="status")
    (tmp_path / "go").touch()
    done = await phase(kube, namespace, "moved", "Succeeded")
    assert done["status"]["podIPs"] == [{"ip": here}]


async def gone(kube: Kube, namespace: str, name: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await kube.get(PODS, name, namespace=namespace)
            except KubeError as error:
                if error.code != 404:
                    raise
                return
            await asyncio.sleep(0.1)


async def remove(kubeconfig: Path, node: str) -> None:
    async with connect(kubeconfig) as kube:
        await kube.delete(NODES, node)
