"""In a namespace that admits restricted pods only, a job whose own containers fit gets all its pods: our containers in them fit too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from control_plane import running
from rights_story import rendezvous

from elastic.api.kinds import KINDS
from elastic.kube.client import Kube
from elastic.kube.resources import EVENTS, NAMESPACES, PODS, Object
from elastic.local.installation import ensure_installation
from elastic_training.controller.facts.keys import JOBS

pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 120
CONTEXT = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
ELASTIC = {"minReplicas": 1, "maxReplicas": 3}
HEADS: dict[str, tuple[str, ...]] = {"MPIJob": ("Launcher",), "MXJob": ("Scheduler", "Server"), "TFJob": ("PS",), "JAXJob": ()}


def restricted_job(kind: str, name: str, *types: str, **spec: Any) -> Object:
    facts = KINDS[kind]
    container = {"name": facts.container, "image": "example.com/train:1", "command": ["python3", "t.py"], "securityContext": CONTEXT}
    replicas = {type: {"replicas": 1, "template": {"spec": {"containers": [container]}}} for type in types}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": name}, "spec": {facts.replica_key: replicas, **spec}}


def restricted_jobs() -> list[Object]:
    plain = [restricted_job(kind, kind.lower(), *HEADS.get(kind, ("Master",)), "Worker") for kind in KINDS]
    return [
        *plain,
        restricted_job("PyTorchJob", "own", "Worker", elasticPolicy=ELASTIC),
        restricted_job("PyTorchJob", "store", "Worker", elasticPolicy=ELASTIC | {"rdzvBackend": "c10d"}),
        restricted_job("MPIJob", "ssh", "Launcher", "Worker", mpiTransport="SSH", launcherCreationPolicy="AtStartup"),
    ]


def pods_of(job: Object) -> set[str]:
    name, types = job["metadata"]["name"], job["spec"][KINDS[job["kind"]].replica_key]
    made = {f"{name}-launcher" if type == "Launcher" else f"{name}-{type.lower()}-0" for type in types}
    return made | ({f"{name}-rdzv"} if job["spec"].get("elasticPolicy", {}).get("rdzvBackend") == "c10d" else set())


async def test_jobs_of_every_kind_get_all_their_pods(served: str, kube: Kube, kubeconfig: Path, tmp_path: Path) -> None:
    await kube.patch(NAMESPACES, served, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    ensure_installation(tmp_path / "installation", addresses=())
    ready, wanted = tmp_path / "ready", restricted_jobs()
    with rendezvous(tmp_path / "installation", tmp_path) as address:
        flags = [
            "elastic_training.controller.running.main",
            "--kubeconfig",
            str(kubeconfig),
            "--namespace",
            served,
            "--ready-file",
            str(ready),
        ]
        flags += [
            "--installation",
            str(tmp_path / "installation"),
            "--rendezvous-url",
            f"https://{address}",
            "--rendezvous-endpoint",
            address,
        ]
        flags += ["--mpi-kubectl-delivery-image", "own", "--pytorch-init-container-image", "own"]
        with running("controller", flags, folder=tmp_path, ready=ready):
            for job in wanted:
                await kube.create(JOBS[job["kind"]], job, namespace=served)
            await _until_made(kube, served, {name for job in wanted for name in pods_of(job)})


async def test_a_job_that_does_not_fit_says_why_in_its_condition(served: str, kube: Kube, kubeconfig: Path, tmp_path: Path) -> None:
    """Only an Event said it: the job stood at Created without a word."""
    await kube.patch(NAMESPACES, served, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    plain = restricted_job("PyTorchJob", "plain", "Worker")
    del plain["spec"][KINDS["PyTorchJob"].replica_key]["Worker"]["template"]["spec"]["containers"][0]["securityContext"]
    ready = tmp_path / "ready"
    flags = ["elastic_training.controller.running.main", "--kubeconfig", str(kubeconfig), "--namespace", served, "--ready-file", str(ready)]
    with running("controller", flags, folder=tmp_path, ready=ready):
        await kube.create(JOBS["PyTorchJob"], plain, namespace=served)
        said = await _condition(kube, served, "plain", holds=lambda message: "violates PodSecurity" in message)
        assert "to create pods again: the API server refused the last" in said
        await kube.patch(NAMESPACES, served, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": None}}})
        await _until_made(kube, served, {"plain-worker-0"})
        await _condition(kube, served, "plain", holds=lambda message: "It waits" not in message)


async def _condition(kube: Kube, namespace: str, name: str, *, holds: Callable[[str], bool]) -> str:
    """Return the message of the newest condition, once it holds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            job = await kube.get(JOBS["PyTorchJob"], name, namespace=namespace)
            message = "".join(condition["message"] for condition in (job.get("status") or {}).get("conditions", ())[-1:])
            if holds(message):
                return message
            await asyncio.sleep(0.2)


async def _until_made(kube: Kube, namespace: str, names: set[str]) -> None:
    missing: set[str] = names
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                missing = names - {pod["metadata"]["name"] for pod in (await kube.list(PODS, namespace=namespace)).items}
                if not missing:
                    return
                await asyncio.sleep(0.2)
    except TimeoutError:
        told = {e["message"] for e in (await kube.list(EVENTS, namespace=namespace)).items if e["reason"] == "FailedCreatePod"}
        pytest.fail(f"never made: {sorted(missing)}; {sorted(told)}")
