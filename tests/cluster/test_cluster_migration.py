"""`elastic adopt`, and docs/migration.md on the MPI Operator, against a real API server that has the old operators' objects."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from old_operators import OLD, Object, Typed, commands, definition, deployment, job, namespace, operator, webhook

from elastic.api.crd import crd
from elastic.api.kinds import KINDS

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]


def test_the_command_takes_a_cluster_over_and_gives_it_back(typed: Typed, tmp_path: Path) -> None:
    typed.apply(namespace("kubeflow"), namespace("elastic-system"), *operator())
    typed.done("kubectl wait --for=condition=Established crd --all --timeout=60s")
    typed.apply(job("runs"))
    uid = typed.get("pytorchjob runs")["metadata"]["uid"]
    before = typed.get("crd pytorchjobs.kubeflow.org")["spec"]
    typed.apply({**webhook(OLD), "webhooks": [{**webhook(OLD)["webhooks"][0], "failurePolicy": "Ignore"}]})
    adopt = f"cd {tmp_path} && elastic adopt --kubeconfig {typed.kubeconfig}"
    assert "Nothing was changed" in typed.done(adopt)
    assert typed.get("crd pytorchjobs.kubeflow.org")["spec"] == before
    assert "now install" in typed.done(f"{adopt} --yes").lower()
    assert typed.get("deployment -n kubeflow training-operator")["spec"]["replicas"] == 0
    kept = typed.get("pytorchjob runs")
    assert kept["metadata"]["uid"] == uid
    assert typed.run(f"kubectl get validatingwebhookconfiguration {OLD}").returncode != 0
    assert typed.get("crd pytorchjobs.kubeflow.org")["spec"] == crd_as_stored(typed)

    typed.apply(deployment("elastic-controller", "elastic-system", app="elastic-controller"), webhook("elastic-webhook"))
    typed.done(f"{adopt} --back before-adoption.json --yes")
    assert typed.get("deployment -n elastic-system elastic-controller")["spec"]["replicas"] == 0
    assert typed.get("deployment -n kubeflow training-operator")["spec"]["replicas"] == 1
    assert typed.get("crd pytorchjobs.kubeflow.org")["spec"] == before
    assert typed.get(f"validatingwebhookconfiguration {OLD}")["webhooks"][0]["failurePolicy"] == "Ignore"
    assert typed.get("pytorchjob runs")["metadata"]["uid"] == uid
    assert "already" in typed.run(f"{adopt} --yes").stderr, "what is kept of the first time is not written over"


def crd_as_stored(typed: Typed) -> Object:
    """Return our CRD with the defaults that the API server adds."""
    dry = "kubectl apply --server-side --force-conflicts --dry-run=server -o json -f -"
    stored: Object = json.loads(typed.done(dry, json.dumps(crd(KINDS["PyTorchJob"]))))
    return stored["spec"]


def test_the_mpi_operators_definition_must_go_before_ours_comes(typed: Typed, tmp_path: Path) -> None:
    typed.apply(namespace("mpi-operator"), definition("mpijobs", "MPIJob", "v2beta1"), deployment("mpi-operator", "mpi-operator"))
    typed.done("kubectl wait --for=condition=Established crd --all --timeout=60s")
    typed.apply({"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "old", "namespace": "default"}, "spec": {}})
    refused = typed.run("elastic crds MPIJob | kubectl apply --server-side --force-conflicts -f -")
    assert 'status.storedVersions[0]: Invalid value: "v2beta1"' in refused.stderr
    for command in commands("## From the MPI Operator (v2beta1)"):
        typed.done(f"cd {tmp_path} && {command}")
    assert yaml.safe_load((tmp_path / "mpijobs.yaml").read_text())["items"][0]["metadata"]["name"] == "old"
    typed.done("kubectl wait --for=condition=Established crd/mpijobs.kubeflow.org --timeout=60s")
    assert typed.get("crd mpijobs.kubeflow.org")["spec"]["versions"][0]["name"] == crd(KINDS["MPIJob"])["spec"]["versions"][0]["name"]


def mpi_job(name: str, *, suspend: bool) -> Object:
    container = {"name": "mpi", "image": "example.com/mpi:1"}
    replica = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    policy = {"suspend": suspend, "cleanPodPolicy": "Running"}
    spec = {"slotsPerWorker": 2, "runPolicy": policy, "mpiReplicaSpecs": {"Launcher": replica, "Worker": replica}}
    metadata = {"name": name, "namespace": "default", "labels": {"team": "a"}}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": metadata, "spec": spec}


def test_the_command_takes_mpijobs_over_and_gives_them_back(typed: Typed, tmp_path: Path) -> None:
    operator = deployment("mpi-operator", "mpi-operator", app="mpi-operator")
    typed.apply(namespace("mpi-operator"), namespace("elastic-system"), definition("mpijobs", "MPIJob", "v2beta1"), operator)
    typed.done("kubectl wait --for=condition=Established crd --all --timeout=60s")
    typed.apply(mpi_job("rests", suspend=True), mpi_job("runs", suspend=False), mpi_job("done", suspend=False))
    succeeded = json.dumps({"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}})
    typed.done(f"kubectl patch mpijobs.v2beta1.kubeflow.org done --subresource=status --type=merge -p '{succeeded}'")
    adopt = f"cd {tmp_path} && elastic adopt --kubeconfig {typed.kubeconfig}"
    assert "MPIJob default/runs has not finished" in typed.run(f"{adopt} --mpi-operator --yes").stderr
    typed.done("kubectl delete mpijobs.v2beta1.kubeflow.org runs")
    assert "Nothing was changed" in typed.done(f"{adopt} --mpi-operator")
    assert "now install" in typed.done(f"{adopt} --mpi-operator --yes").lower()
    assert typed.get("deployment -n mpi-operator mpi-operator")["spec"]["replicas"] == 0
    made = typed.get("mpijobs.v1.kubeflow.org rests")
    assert (made["spec"]["mpiTransport"], made["spec"]["slotsPerWorker"], made["spec"]["runPolicy"]["suspend"]) == ("SSH", 2, True)
    assert made["metadata"]["labels"] == {"team": "a"}
    assert typed.run("kubectl get mpijobs.v1.kubeflow.org done").returncode != 0, "what is over is not started again"

    typed.apply(deployment("elastic-controller", "elastic-system", app="elastic-controller"))
    back = f"{adopt} --back before-adoption.json --yes"
    typed.apply({**mpi_job("new", suspend=False), "apiVersion": "kubeflow.org/v1"})
    assert "MPIJob default/new has not finished" in typed.run(back).stderr
    typed.done("kubectl delete mpijobs.v1.kubeflow.org new")
    typed.done(back)
    assert typed.get("deployment -n elastic-system elastic-controller")["spec"]["replicas"] == 0
    assert typed.get("deployment -n mpi-operator mpi-operator")["spec"]["replicas"] == 1
    assert typed.get("mpijobs.v2beta1.kubeflow.org rests")["spec"] == mpi_job("rests", suspend=True)["spec"]

    typed.apply(mpi_job("rests", suspend=False))
    resumed = typed.get("mpijobs.v2beta1.kubeflow.org rests")["metadata"]["uid"]
    assert "delete the definition" not in typed.done(back)
    assert typed.get("mpijobs.v2beta1.kubeflow.org rests")["metadata"]["uid"] == resumed, "given back twice, it is theirs and runs"
