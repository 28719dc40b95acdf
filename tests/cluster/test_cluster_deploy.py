"""deploy/ on a real API server: kubectl applies the overlays, and controllers under the account and rights that they make keep the door."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import ROOT, SYSTEM, running
from written_jobs import job, merged

from elastic.api import webhook
from elastic.certificates import Pair, issue
from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    LEASES,
    NAMESPACES,
    PODS,
    SECRETS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Object,
    Resource,
)
from elastic.local.ports import free_port
from elastic.runtime.certificate import LIFE
from elastic_training.controller.facts.keys import JOBS

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl"),
]
PATIENCE_S = 120
MONITORS = ROOT / "tests" / "fixtures" / "monitoring-crds.yaml"
NOBODY = {"spec": {"jaxReplicaSpecs": {"Worker": {"replicas": 0}}}}


def applied(kubeconfig: Path, folder: Path) -> None:
    command = ["kubectl", "--kubeconfig", str(kubeconfig), "apply", "--server-side", "--force-conflicts", "-k", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def kustomization(folder: Path, overlay: str, *components: str, namespace: str = "") -> Path:
    """Write a kustomization as a user does next to a checkout."""
    folder.mkdir()

    def here(kind: str, name: str) -> str:
        return os.path.relpath(ROOT / "deploy" / kind / name, folder)

    made: Object = {"resources": [here("overlays", overlay)], "components": [here("components", name) for name in components]}
    made |= {"namespace": namespace} if namespace else {}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(made))
    return folder


async def until(is_so: Callable[[], Awaitable[Any]]) -> Any:
    """Return the first result that is true."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if found := await is_so():
                return found
            await asyncio.sleep(0.1)


async def account_of(admin: Kube, kubeconfig: Path, folder: Path, *, namespace: str = SYSTEM) -> Path:
    """Return a kubeconfig of the service account that an overlay made."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    answer = await admin.create(SERVICE_ACCOUNTS, request, namespace=namespace, name="elastic-controller", subresource="token")
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    config["contexts"][0]["context"]["namespace"] = namespace
    path = folder / "controller.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def may(kube: Kube, verb: str, resource: str, *, group: str = "", namespace: str = "", name: str = "") -> bool:
    plain, _, sub = resource.partition("/")
    asked = {"verb": verb, "group": group, "resource": plain, "subresource": sub, "namespace": namespace, "name": name}
    body = {"apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": asked}}
    return bool((await kube.create(SELF_SUBJECT_ACCESS_REVIEWS, body))["status"]["allowed"])


@pytest.fixture
async def standalone(kube: Kube, kubeconfig: Path) -> None:
    with contextlib.suppress(KubeError):  # an earlier test had it point to this machine
        await kube.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.NAME)
    applied(kubeconfig, ROOT / "deploy" / "overlays" / "standalone")
    await until(lambda: _served(kube))


async def _served(kube: Kube) -> bool:
    try:
        await asyncio.gather(*(kube.list(resource) for resource in JOBS.values()))
    except KubeError:
        return False
    return True


def _dry_run(kubeconfig: Path, body: Object, namespace: str) -> str:
    """Return the words of kubectl other than its result."""
    command = ["kubectl", "--kubeconfig", str(kubeconfig), "-n", namespace, "create", "--dry-run=server", "-f", "-"]
    ended = subprocess.run(command, input=json.dumps(body), capture_output=True, text=True, timeout=100)
    return ended.stderr if ended.returncode == 0 else ""


class Replica:
    """A controller as its Deployment runs it, and the door it keeps."""

    def __init__(self, kubeconfig: Path, folder: Path, *flags: str) -> None:
        folder.mkdir()
        self.port = free_port()
        ready = folder / "ready"
        args = [
            "elastic_training.controller.running.main",
            "--kubeconfig",
            str(kubeconfig),
            "--ready-file",
            str(ready),
            "--leader-elect",
            *flags,
        ]
        args += ["--webhook-port", str(self.port)]
        self._running = running("controller", args, folder=folder, ready=ready)
        self.log = folder / "controller.log"

    def __enter__(self) -> Replica:
        self._running.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__(None, None, None)

    @property
    def leads(self) -> bool:
        return '"holds the lease"' in self.log.read_text()

    def refused(self, name: str) -> bool:
        lines = self.log.read_text().splitlines()
        return any('"the webhook refused a job"' in line and f'"{name}"' in line for line in lines)

    def shows(self, trusted: bytes) -> bytes:
        """Return the certificate that a client sees if it trusts these authorities."""
        context = ssl.create_default_context(cadata=trusted.decode())
        name = f"{webhook.NAME}.{SYSTEM}.svc"
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname=name) as tls,
        ):
            return ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True) or b"").encode()


@pytest.fixture
async def replicas(standalone: None, kube: Kube, kubeconfig: Path, tmp_path: Path) -> AsyncIterator[tuple[Replica, Replica]]:
    account = await account_of(kube, kubeconfig, tmp_path)
    with Replica(account, tmp_path / "one") as one, Replica(account, tmp_path / "two") as two:
        yield one, two


async def asked_at(kube: Kube, replica: Replica, namespace: str) -> None:
    """Let the API server ask this replica, on this machine, and fail if it cannot.

    The server learns of a changed configuration a moment later, and uses the former one until then. So wait until the replica has refused
    a job.
    """
    client = {"url": f"https://127.0.0.1:{replica.port}{webhook.PATH}", "service": None}
    (hook,) = webhook.configuration(client)["webhooks"]
    change = {"webhooks": [{"name": hook["name"], "clientConfig": client, "failurePolicy": "Fail", "timeoutSeconds": 30}]}
    await kube.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.NAME, change, kind=Patch.STRATEGIC)
    probe = named("probe", NOBODY)

    async def is_asked() -> bool:
        with contextlib.suppress(KubeError):
            await kube.patch(JOBS[probe["kind"]], "probe", probe, namespace=namespace, kind=Patch.APPLY, field_manager="test", dry_run=True)
        return replica.refused("probe")

    await until(is_asked)


async def outcome(kube: Kube, body: Object, namespace: str) -> KubeError | None:
    """Return the answer of the API server to a new job, once its webhook has answered: it may be busy."""

    async def tried() -> tuple[KubeError | None] | None:
        try:
            await kube.create(JOBS[body["kind"]], body, namespace=namespace)
        except KubeError as error:
            return None if error.code == 500 else (error,)
        return (None,)

    (said,) = await until(tried)
    return said


def named(name: str, *patches: Object) -> Object:
    made = job("jax", {"metadata": {"name": name, "namespace": None}})
    for patch in patches:
        made = merged(made, patch)
    return made


async def credentials(kube: Kube) -> dict[str, bytes]:
    secret = await kube.get(SECRETS, webhook.NAME, namespace=SYSTEM)
    return {name: base64.b64decode(part) for name, part in (secret.get("data") or {}).items()}


async def test_every_replica_refuses_a_bad_job_with_its_fields_and_only_one_works(
    replicas: tuple[Replica, Replica], kube: Kube, namespace: str
) -> None:
    for number, replica in enumerate(replicas):
        await asked_at(kube, replica, namespace)
        said = await outcome(kube, named(f"bad{number}", NOBODY), namespace)
        assert said is not None
        assert (said.code, said.reason) == (422, "Invalid")
        assert said.body["details"]["causes"][0]["field"] == "spec.jaxReplicaSpecs.Worker.replicas"
        assert "there are no replicas at all" in said.message
        assert await outcome(kube, named(f"good{number}"), namespace) is None

    async def one_leads() -> bool:
        return any(replica.leads for replica in replicas)

    await until(one_leads)
    assert [replica.leads for replica in replicas].count(True) == 1
    lease = await kube.get(LEASES, "elastic-controller", namespace=SYSTEM)
    assert lease["spec"]["holderIdentity"]


async def test_kubectl_shows_the_warnings_of_a_job_that_comes_in(
    replicas: tuple[Replica, Replica], kube: Kube, kubeconfig: Path, namespace: str
) -> None:
    await asked_at(kube, replicas[0], namespace)
    body = named("odd", {"spec": {"jaxReplicaSpecs": {"worker": job("jax")["spec"]["jaxReplicaSpecs"]["Worker"], "Worker": None}}})

    async def told() -> str:
        return _dry_run(kubeconfig, body, namespace)

    assert "Warning: spec.jaxReplicaSpecs.worker: worker is taken as Worker" in await until(told)


async def test_a_job_stored_broken_can_be_labelled_suspended_and_let_go_but_not_made_worse(
    replicas: tuple[Replica, Replica], kube: Kube, namespace: str
) -> None:
    """It came in while no controller was there to be asked, which keeps nobody from his jobs."""
    nowhere = {"clientConfig": {"url": "https://127.0.0.1:1/", "service": None}, "failurePolicy": "Ignore"}
    (hook,) = webhook.configuration({})["webhooks"]
    change = {"webhooks": [{"name": hook["name"], **nowhere}]}
    await kube.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.NAME, change, kind=Patch.STRATEGIC)
    resource = JOBS["JAXJob"]

    async def came_in() -> bool:
        with contextlib.suppress(KubeError):
            return bool(await kube.create(resource, named("broken", NOBODY), namespace=namespace))
        return False

    await until(came_in)
    await asked_at(kube, replicas[0], namespace)
    assert await outcome(kube, named("bad", NOBODY), namespace) is not None
    await kube.patch(resource, "broken", {"metadata": {"labels": {"a": "b"}, "finalizers": ["test/held"]}}, namespace=namespace)
    await kube.patch(resource, "broken", {"spec": {"runPolicy": {"suspend": True}}}, namespace=namespace)
    with pytest.raises(KubeError, match="backoffLimit"):
        await kube.patch(resource, "broken", {"spec": {"runPolicy": {"backoffLimit": -1}}}, namespace=namespace)
    await kube.delete(resource, "broken", namespace=namespace)
    await kube.patch(resource, "broken", {"metadata": {"finalizers": None}}, namespace=namespace)


async def test_a_certificate_near_its_end_is_renewed_while_both_replicas_serve(
    replicas: tuple[Replica, Replica], kube: Kube, namespace: str
) -> None:
    there = await credentials(kube)
    authority = Pair(there["ca.crt"], there["ca.key"])
    names = (f"{webhook.NAME}.{SYSTEM}.svc", "localhost", "127.0.0.1")
    old = issue(authority, "old", names=names, life=LIFE / 3 - timedelta(days=1))
    data = {"tls.crt": base64.b64encode(old.certificate).decode(), "tls.key": base64.b64encode(old.key).decode()}
    await kube.patch(SECRETS, webhook.NAME, {"data": data}, namespace=SYSTEM)

    async def both_show_another() -> bool:
        stored = (await credentials(kube))["tls.crt"]
        shown = {replica.shows(there["ca.crt"]) for replica in replicas}
        return stored not in (old.certificate, there["tls.crt"]) and shown == {stored}

    await until(both_show_another)
    await asked_at(kube, replicas[1], namespace)
    assert await outcome(kube, named("bad", NOBODY), namespace) is not None


async def test_the_controllers_writes_outlive_another_apply(replicas: tuple[Replica, Replica], kube: Kube, kubeconfig: Path) -> None:
    before = await credentials(kube)
    applied(kubeconfig, ROOT / "deploy" / "overlays" / "standalone")
    assert await credentials(kube) == before
    (hook,) = (await kube.get(VALIDATING_WEBHOOK_CONFIGURATIONS, webhook.NAME))["webhooks"]
    assert base64.b64decode(hook["clientConfig"]["caBundle"]) == before["ca.crt"]


async def test_pods_of_the_control_plane_are_admitted_if_only_restricted_pods_are(standalone: None, kube: Kube) -> None:
    labels = (await kube.get(NAMESPACES, SYSTEM))["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"

    async def made() -> bool:
        owners = [item["metadata"]["labels"].get("app") for item in (await kube.list(PODS, namespace=SYSTEM)).items]
        return sorted(owners) == ["elastic-controller", "elastic-controller", "elastic-rendezvous"]

    await until(made)


async def test_the_account_may_do_what_it_needs_and_nothing_beside(standalone: None, kube: Kube, kubeconfig: Path, tmp_path: Path) -> None:
    async with connect(await account_of(kube, kubeconfig, tmp_path)) as controller:
        group = "admissionregistration.k8s.io"
        assert await may(controller, "patch", "validatingwebhookconfigurations", group=group, name=webhook.NAME)
        assert not await may(controller, "patch", "validatingwebhookconfigurations", group=group, name="another")
        assert not await may(controller, "update", "pytorchjobs", group="kubeflow.org", namespace="default")
        assert not await may(controller, "create", "deployments", group="apps", namespace="default")
        assert not await may(controller, "patch", "nodes")
        assert await may(controller, "create", "pods/exec", namespace="default")


async def test_a_namespaced_control_plane_without_mpi_runs_its_jobs_and_sees_nothing_else(
    standalone: None, kube: Kube, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    applied(kubeconfig, kustomization(tmp_path / "team", "namespaced", "without-mpi", namespace=namespace))
    deployment = await kube.get(DEPLOYMENTS, "elastic-controller", namespace=namespace)
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    (kinds,) = [flag for flag in args if flag.startswith("--enable-kinds")]
    account = await account_of(kube, kubeconfig, tmp_path, namespace=namespace)
    async with connect(account) as controller:
        for verb, resource in (("list", "nodes"), ("list", "pods"), ("get", "secrets")):
            assert not await may(controller, verb, resource, namespace="" if resource == "nodes" else "default")
        assert not await may(controller, "create", "pods/exec", namespace=namespace)
    ready = tmp_path / "ready"
    flags = [
        "elastic_training.controller.running.main",
        "--kubeconfig",
        str(account),
        "--ready-file",
        str(ready),
        "--leader-elect",
        "--namespace",
        namespace,
        kinds,
    ]
    with running("controller", flags, folder=tmp_path, ready=ready):
        await kube.create(JOBS["JAXJob"], named("ours", {"spec": {"runPolicy": None}}), namespace=namespace)

        async def has_services() -> bool:
            return any(item["metadata"]["name"] == "ours-worker-0" for item in (await kube.list(SERVICES, namespace=namespace)).items)

        await until(has_services)


async def test_monitors_and_dashboard_are_applied_if_their_kind_exists(
    standalone: None, kube: Kube, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    for item in yaml.safe_load_all(MONITORS.read_text()):
        name = item["metadata"]["name"]
        await kube.patch(CUSTOM_RESOURCE_DEFINITIONS, name, item, kind=Patch.APPLY, field_manager="test", force=True)
    kinds = [Resource("monitoring.coreos.com", "v1", plural) for plural in ("servicemonitors", "podmonitors", "prometheusrules")]

    async def served() -> bool:
        with contextlib.suppress(KubeError):
            for kind in kinds:
                await kube.list(kind)
            return True
        return False

    await until(served)
    applied(kubeconfig, kustomization(tmp_path / "watched", "namespaced", "monitoring", namespace=namespace))
    assert [len((await kube.list(kind, namespace=namespace)).items) for kind in kinds] == [2, 2, 1]
