"""Run the controller as in a pod of deploy/: with its account's files, as a user without a name, in a bare environment."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from control_plane import ROOT, SYSTEM, api_server, controller_account, install_crds, wait_for

from elastic.kube import connect
from elastic.kube.resources import LEASES, PODS

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(300)]

POD, NAMELESS = "elastic-controller-0", "65532"
# The namespaces imitate a pod: the host's name is the pod's, /run holds the account's files, and the user has no name.
ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
OUTER = f'hostname "$1" && mount -t tmpfs tmpfs /run && mkdir -p {Path(ACCOUNT).parent} && cp -r "$2" {ACCOUNT}'
INNER = f"exec unshare --user --map-user={NAMELESS} --map-group={NAMELESS}"


def apart(name: str, account: Path, *command: str, environment: dict[str, str]) -> list[str]:
    settings = [f"{key}={value}" for key, value in environment.items()]
    script = f'{OUTER} && shift 2 && {INNER} -- env -i "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "--uts", "sh", "-c", script, "sh", name, str(account), *settings, *command]


def _can_be_apart() -> bool:
    if shutil.which("unshare") is None or Path("/var/run").resolve() != Path("/run"):
        return False
    probe = apart("probe", Path("/etc/hostname"), "true", environment={"PATH": "/usr/bin:/bin"})
    return subprocess.run(probe, capture_output=True, timeout=30).returncode == 0


def account_files(kubeconfig: Path, folder: Path) -> str:
    """Write the account's files as a kubelet does for a pod. Return the API server's address."""
    config = yaml.safe_load(kubeconfig.read_text())
    (user,), (entry,) = config["users"], config["clusters"]
    cluster = entry["cluster"]
    folder.mkdir()
    (folder / "token").write_text(user["user"]["token"])
    (folder / "namespace").write_text(SYSTEM)
    if "certificate-authority" in cluster:
        shutil.copy(kubeconfig.parent / cluster["certificate-authority"], folder / "ca.crt")
    else:
        (folder / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    return str(cluster["server"])


async def prepared(kubeconfig: Path, folder: Path) -> str:
    """Create the CRDs, the account with its files, and the controller's own pod. Return the API server's address."""
    await install_crds(kubeconfig)
    account = await controller_account(kubeconfig, folder)
    pod = {
        "containers": [{"name": "controller", "image": "registry.example/elastic-training:1"}],
        "serviceAccountName": "elastic-controller",
    }
    async with connect(kubeconfig) as kube:
        await kube.create(PODS, {"metadata": {"name": POD}, "spec": pod}, namespace=SYSTEM)
    return account_files(account, folder / "account")


@pytest.mark.skipif(not _can_be_apart(), reason="needs user namespaces")
def test_the_controller_works_as_a_nameless_user_with_the_accounts_files_and_gives_its_lease_back(tmp_path: Path) -> None:
    ready, log = tmp_path / "ready", tmp_path / "controller.log"
    with api_server(tmp_path) as kubeconfig:
        server = urlsplit(asyncio.run(prepared(kubeconfig, tmp_path)))
        environment = {
            "PATH": "/usr/bin:/bin",
            "KUBERNETES_SERVICE_HOST": str(server.hostname),
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        flags = ["--leader-elect", "--worker-image=own", "--mpi-kubectl-delivery-image=own", "--ready-file", str(ready)]
        command = apart(
            POD, tmp_path / "account", sys.executable, "-m", "elastic_training.controller.running.main", *flags, environment=environment
        )
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)
        try:
            wait_for(ready, process, log)
            asyncio.run(_until_it_leads(kubeconfig))
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
        assert asyncio.run(_holder(kubeconfig)) == ""


async def _until_it_leads(kubeconfig: Path) -> None:
    async with asyncio.timeout(60):
        while not (await _holder(kubeconfig)).startswith(POD):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _holder(kubeconfig: Path) -> str:
    async with connect(kubeconfig) as kube:
        leases = (await kube.list(LEASES, namespace=SYSTEM)).items
    return next(
        (str(lease["spec"].get("holderIdentity") or "") for lease in leases if lease["metadata"]["name"] == "elastic-controller"), ""
    )
