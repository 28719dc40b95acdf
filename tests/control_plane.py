"""Run the laptop cluster's API server and the controller as real processes without nodes.

Pods are pending until a test sets their status.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, Object, Resource

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 180.0
SYSTEM = "elastic-system"
RIGHTS = {
    "Namespace": NAMESPACES,
    "ServiceAccount": SERVICE_ACCOUNTS,
    "Role": ROLES,
    "RoleBinding": ROLE_BINDINGS,
    "ClusterRole": Resource("rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False),
    "ClusterRoleBinding": Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", namespaced=False),
}


def wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a process writes the file that says that it is ready."""
    end = time.monotonic() + PATIENCE_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"{process.args!r} is not ready:\n{log.read_text()[-3000:]}")
        time.sleep(0.05)


@contextlib.contextmanager
def running(name: str, args: Sequence[str], *, folder: Path, ready: Path | None) -> Iterator[Path]:
    """Run one of our processes during a block, and yield its log."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", *args], stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        if ready is not None:
            wait_for(ready, process, log)
        yield log
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def api_server(folder: Path, *flags: str) -> Iterator[Path]:
    """Run an API server with garbage collection and deletion of namespaces, and yield an admin's kubeconfig."""
    data = folder / "data"
    ready = folder / "apiserver.ready"
    args = ["elastic.local.apiserver", "--data-dir", str(data), "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
    args += ["--audit-file", str(folder / "audit.jsonl"), *flags]
    with running("apiserver", args, folder=folder, ready=ready):
        kubeconfig, agents = data / "kubeconfig", folder / "agents.ready"
        args = ["elastic.local.agents", "--kubeconfig", str(kubeconfig), "--data-dir", str(data), "--nodes", "0"]
        args += ["--cwd", str(folder), "--ready-file", str(agents)]
        with running("agents", args, folder=folder, ready=agents):
            yield kubeconfig


@contextlib.contextmanager
def controller(kubeconfig: Path, *flags: str, folder: Path) -> Iterator[Path]:
    """Run the controller, and yield its log once its caches are filled."""
    ready = folder / "controller.ready"
    ready.unlink(missing_ok=True)
    args = ["elastic_training.controller.running.main", "--kubeconfig", str(kubeconfig), "--ready-file", str(ready), *flags]
    with running("controller", args, folder=folder, ready=ready) as log:
        yield log


async def controller_account(kubeconfig: Path, folder: Path) -> Path:
    """Return a kubeconfig of the controller's own service account, with exactly the rights of deploy/overlays/standalone."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "elastic-controller", "namespace": SYSTEM}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    rights = yaml.safe_load_all((ROOT / "deploy" / "overlays" / "standalone" / "rights.yaml").read_text())
    async with connect(kubeconfig) as kube:
        for item in (namespace, account, *rights):
            if item is not None:
                await _applied(kube, RIGHTS[item["kind"]], item)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
        answer = await kube.create(SERVICE_ACCOUNTS, request, namespace=SYSTEM, name="elastic-controller", subresource="token")
    config = yaml.safe_load(kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": answer["status"]["token"]}
    path = folder / "controller.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def install_crds(kubeconfig: Path, *more: Path, kinds: str = "*") -> None:
    """Apply our CRDs as to a cluster, and further ones that a test needs."""
    async with connect(kubeconfig) as kube:
        for path in (*sorted((ROOT / "deploy" / "crds").glob(f"{kinds}.kubeflow.org.yaml")), *more):
            for item in yaml.safe_load_all(path.read_text()):
                await _applied(kube, CUSTOM_RESOURCE_DEFINITIONS, item)


async def _applied(kube: Kube, resource: Resource, item: Object) -> None:
    name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
    await kube.patch(resource, name, item, namespace=namespace, kind=Patch.APPLY, field_manager="test", force=True)
