"""Taking over from the Training Operator: the changes, their order, and giving back.

tests/cluster/test_cluster_migration.py does the same on a real API server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_api import Api, elastic, job, running, served, status
from click.testing import Result

from elastic.api.crd import crd
from elastic.api.kinds import KINDS

BOUNDS = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}
WEBHOOK = "validator.training-operator.kubeflow.org"
Object = dict[str, Any]


def deployment(name: str, namespace: str, replicas: int = 1, **labels: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": labels, "uid": f"uid-{name}"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": replicas}}


def operators(*more: Object, replicas: int = 2) -> Api:
    """Return a cluster with the Training Operator, whose definitions are older than ours."""
    definitions = []
    for kind in KINDS.values():
        made = crd(kind)
        made["metadata"] |= {"uid": f"uid-{kind.name}", "resourceVersion": "7", "managedFields": [{"manager": "old"}]}
        made["spec"]["preserveUnknownFields"] = False
        definitions.append({**made, "status": {"storedVersions": ["v1"]}})
    webhook = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    webhook |= {"metadata": {"name": WEBHOOK, "uid": "w"}, "webhooks": [{"name": "one"}]}
    stopped = deployment("training-operator", "kubeflow", replicas, **{"control-plane": "kubeflow-training-operator"})
    return Api(*definitions, webhook, stopped, *more)


def adopt(api: Api, folder: Path, *words: str) -> Result:
    with served(api, folder) as kubeconfig:
        return elastic(kubeconfig, "adopt", "--save", str(folder / "kept.json"), *words)


def changes(api: Api) -> list[tuple[str, str]]:
    return [(method, path.rpartition("/")[2]) for method, path, _ in api.asked if method not in ("GET",)]


def test_it_shows_what_it_would_change_and_changes_nothing(tmp_path: Path) -> None:
    api = operators(job(status=running(), **BOUNDS), job("static", status=running()), job("over", status=ended(), **BOUNDS))
    said = adopt(api, tmp_path)
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines() == [
        "3 jobs, 2 of them not over; they stay, and their pods run on",
        "It would, in this order:",
        "  1. stop deployment kubeflow/training-operator (2 to 0 replicas); pods train on, nothing starts until ours runs",
        f"  2. delete the webhook configuration {WEBHOOK}, which refuses all jobs without its server",
        f"  3. replace {len(KINDS)} definitions of kinds (kubeflow.org); stored jobs stay",
        "Nothing was changed; --yes does it.",
    ]
    assert changes(api) == []
    assert not (tmp_path / "kept.json").exists()


def ended() -> Object:
    status = running()
    status["conditions"].append({"type": "Succeeded", "status": "True"})
    return status


def test_it_takes_over_and_gives_back_what_was_there(tmp_path: Path) -> None:
    api = operators(job(status=running(), **BOUNDS), deployment("elastic-controller", "elastic-system", 2, app="elastic-controller"))
    said = adopt(api, tmp_path, "-y")
    assert said.exit_code == 0, said.output
    assert changes(api)[:2] == [("PATCH", "training-operator"), ("DELETE", WEBHOOK)]
    assert {name for _, name in changes(api)[2:]} == {kind.crd_name for kind in KINDS.values()}
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert (tmp_path / "kept.json").stat().st_mode & 0o777 == 0o600
    assert kept["operators"] == [{"namespace": "kubeflow", "name": "training-operator", "replicas": 2}]
    metadata = [one["metadata"] for one in kept["objects"]]
    assert all("uid" not in one and "resourceVersion" not in one and "managedFields" not in one for one in metadata)

    api.asked.clear()
    api.objects[f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{WEBHOOK}"] = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK},
    }
    back = adopt(api, tmp_path, "--back", str(tmp_path / "kept.json"), "--yes")
    assert back.exit_code == 0, back.output
    assert f"All is given back. {tmp_path}/kept.json has done its work; remove it before you adopt again." in back.stdout
    assert changes(api)[:2] == [("PATCH", "elastic-controller"), ("DELETE", "elastic-webhook")]
    assert changes(api)[-1] == ("PATCH", "training-operator"), "their controller starts when all else is as it was"
    applied = {name for _, name in changes(api)[2:-1]}
    assert applied == {WEBHOOK, *(kind.crd_name for kind in KINDS.values())}
    assert api.objects["/apis/apps/v1/namespaces/kubeflow/deployments/training-operator"]["spec"]["replicas"] == 2


class Refusing(Api):
    """Refuses changes of definitions."""

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        if method == "PATCH" and "/customresourcedefinitions/" in url:
            return status(403, "not for you")
        return super().answer(method, url, body)


def test_a_step_that_fails_is_named_with_what_to_do(tmp_path: Path) -> None:
    said = adopt(Refusing(*operators(job(status=running(), **BOUNDS)).objects.values()), tmp_path, "-y")
    file = tmp_path / "kept.json"
    words = f"broken off at: replace {len(KINDS)} definitions of kinds (kubeflow.org); stored jobs stay: you may not do this: not for you. "
    assert (said.exit_code, words in said.stderr) == (1, True), said.stderr
    assert said.stderr.endswith(f"Once that is mended, `elastic adopt --back {file}` gives back what was done\n")


def test_a_kept_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text("{}")
    api = operators()
    said = adopt(api, tmp_path, "--yes")
    assert (said.exit_code, "is there already, from an earlier take-over" in said.stderr) == (1, True)
    assert changes(api) == []


def test_another_operators_version_is_an_obstacle(tmp_path: Path) -> None:
    api = operators()
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mpijobs.kubeflow.org"
    api.objects[path]["status"]["storedVersions"] = ["v1", "v2beta1"]
    said = adopt(api, tmp_path, "--yes")
    assert said.exit_code == 1
    assert (
        "mpijobs.kubeflow.org has objects of version v2beta1, which are another operator's; `elastic adopt --mpi-operator`" in said.stderr
    )
    assert changes(api) == []


def test_the_mpi_operators_definition_alone_is_answered_with_the_option_for_it(tmp_path: Path) -> None:
    """It was answered with `elastic install`, which would have refused."""
    made = crd(KINDS["MPIJob"])
    made["spec"]["versions"][0]["name"] = "v2beta1"
    said = adopt(Api({**made, "status": {"storedVersions": ["v2beta1"]}}, kinds=False), tmp_path)
    assert (said.exit_code, "`elastic adopt --mpi-operator` takes the MPI Operator's jobs over" in said.stderr) == (1, True), said.output


def test_without_an_operator_there_is_nothing_to_take_over(tmp_path: Path) -> None:
    said = adopt(Api(), tmp_path, "--yes")
    assert (said.exit_code, "no Training Operator is here" in said.stderr) == (1, True)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"operators": []}', '{"operators": [{}], "objects": []}', '{"operators": [], "objects": [{"kind": "Secret"}]}'],
)
def test_a_file_that_it_did_not_write_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    api = operators()
    said = adopt(api, tmp_path, "--back", str(tmp_path / "other.json"), "--yes")
    assert (said.exit_code, "was not written by `elastic adopt`" in said.stderr) == (1, True)
    assert changes(api) == []
