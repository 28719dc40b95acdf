"""Kill a take-over from the MPI Operator at every request.

It goes on when the same command is typed again, and it can still be given back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_api import Api, elastic, path_of, served, status
from click.testing import Result
from test_cli_adopt_mpi import OVER, mpi_job

from elastic.cli.adopting import definitions
from elastic.kube.client import Kube

Object = dict[str, Any]
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/mpijobs.kubeflow.org"
OURS, THEIRS = "/apis/kubeflow.org/v1/", "/apis/kubeflow.org/v2beta1/"
OPERATOR: Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "mpi-operator", "namespace": "mpi-operator", "labels": {"app": "mpi-operator"}, "uid": "uid-operator"},
    "spec": {"replicas": 2},
}


class Cluster(Api):
    """A cluster with the MPI Operator. Its jobs go with their definition, a moment after that was deleted."""

    def __init__(self, *jobs: Object) -> None:
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "mpijobs.kubeflow.org", "uid": "uid-theirs"},
            "spec": {"versions": [{"name": "v1"}, {"name": "v2beta1", "storage": True}]},
        }
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}
        super().__init__(json.loads(json.dumps(OPERATOR)), definition, space)
        self.theirs = list(jobs)

    @property
    def replicas(self) -> int:
        return int(self.objects[path_of(OPERATOR)]["spec"]["replicas"])

    @property
    def stored(self) -> str:
        versions = self.objects.get(CRD, {"spec": {"versions": []}})["spec"]["versions"]
        return next((one["name"] for one in versions if one.get("storage")), "")

    @property
    def made(self) -> dict[str, Object]:
        return {one["metadata"]["name"]: one for path, one in self.objects.items() if path.startswith(f"{OURS}namespaces/a/mpijobs/")}

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        path = url.partition("?")[0]
        if path == CRD and self.objects.get(CRD, {}).get("metadata", {}).get("deletionTimestamp"):
            self.theirs = []
            gone = self.objects.pop(CRD)
            return (200, gone) if method == "GET" else status(409, "it goes")
        if path == CRD and method == "DELETE":
            assert body["preconditions"] == {"uid": self.objects[CRD]["metadata"]["uid"]}
            self.objects[CRD]["metadata"]["deletionTimestamp"] = "now"
            return 200, self.objects[CRD]
        if path.startswith(THEIRS):
            return self._of_theirs(method, path, body)
        if path.startswith(OURS) and self.stored != "v1":
            return status(404, "not served")
        if method == "POST" and path == f"{OURS}namespaces/a/mpijobs" and body["metadata"]["name"] in self.made:
            code, refusal = status(409, "it exists")
            return code, refusal | {"reason": "AlreadyExists"}
        if method == "PATCH" and path not in self.objects:
            self.objects[path] = body | {"metadata": body["metadata"] | {"uid": f"uid-{len(self.asked)}"}}
        return super().answer(method, url, body)

    def _of_theirs(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self.stored != "v2beta1":
            return status(404, "not served")
        if method == "POST":
            self.theirs.append(body)
            return 201, body
        return 200, {"kind": "MPIJobList", "apiVersion": "kubeflow.org/v2beta1", "metadata": {}, "items": self.theirs}


def jobs() -> list[Object]:
    return [mpi_job("over", OVER), mpi_job("rests", suspend=True), mpi_job("waits", suspend=True)]


def adopt(cluster: Cluster, folder: Path, *words: str) -> Result:
    with served(cluster, folder) as kubeconfig:
        return elastic(kubeconfig, "adopt", *words)


def take_over(cluster: Cluster, folder: Path) -> Result:
    return adopt(cluster, folder, "--mpi-operator", "--save", str(folder / "kept.json"), "-y")


def kill_before(call: int, *, patch: pytest.MonkeyPatch) -> None:
    """End the process when it would send the request with this number."""
    send, count = Kube._send, [0]

    async def dying(self: Kube, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == call:
            raise SystemExit(137)
        return await send(self, *args, **kwargs)

    patch.setattr(Kube, "_send", dying)


def calls_of_a_whole_take_over(folder: Path) -> int:
    cluster = Cluster(*jobs())
    folder.mkdir()
    assert take_over(cluster, folder).exit_code == 0
    return len(cluster.asked) + 10  # some are answered before they are counted


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "LOOK_S", 0.01)


def test_it_goes_on_wherever_it_was_killed(tmp_path: Path) -> None:
    was_resumed = 0
    for call in range(1, calls_of_a_whole_take_over(tmp_path / "whole") + 1):
        folder, cluster = tmp_path / str(call), Cluster(*jobs())
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            kill_before(call, patch=patch)
            first = take_over(cluster, folder)
        if first.exit_code == 0:
            break
        assert first.exit_code == 137, first.output
        was_resumed += (folder / "kept.json").exists()
        kept = (folder / "kept.json").read_bytes() if (folder / "kept.json").exists() else None
        second = take_over(cluster, folder)
        assert second.exit_code == 0, second.output
        assert (cluster.replicas, cluster.stored, sorted(cluster.made)) == (0, "v1", ["rests", "waits"]), call
        assert cluster.made["rests"]["spec"]["mpiTransport"] == "SSH"
        assert kept in (None, (folder / "kept.json").read_bytes()), "only the first call knew how many replicas there were"
        back = adopt(cluster, folder, "--back", str(folder / "kept.json"), "-y")
        assert back.exit_code == 0, back.output
        assert (cluster.replicas, cluster.stored) == (2, "v2beta1")
        assert [one["metadata"]["name"] for one in cluster.theirs] == ["rests", "waits"]
    assert was_resumed >= 12, "the operator, the definition, each of ours, each job"


def test_the_rest_is_shown_first(tmp_path: Path) -> None:
    cluster = Cluster(*jobs())
    assert take_over(cluster, tmp_path).exit_code == 0
    del cluster.objects[path_of(cluster.made["waits"])]
    said = adopt(cluster, tmp_path, "--mpi-operator", "--save", str(tmp_path / "kept.json"))
    assert said.exit_code == 0, said.output
    assert [line.split(".", 1)[1].split()[0] for line in said.stdout.splitlines() if line.startswith("  ")] == ["apply", "make"]
    assert "the take-over that wrote it goes on" in said.stdout
    assert "make MPIJob a/waits again" in said.stdout


def test_jobs_that_changed_since_are_named_and_nothing_is_deleted(tmp_path: Path) -> None:
    cluster = Cluster(*jobs())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elastic.cli.adopting.command._carry_out", None)
        take_over(cluster, tmp_path)
    cluster.theirs[1]["spec"]["runPolicy"]["suspend"] = False
    said = take_over(cluster, tmp_path)
    assert said.exit_code == 1
    assert "MPIJob a/rests was created, deleted or changed since" in said.stderr
    assert "elastic adopt --back" in said.stderr
    assert (cluster.stored, cluster.replicas) == ("v2beta1", 2)


def test_a_file_of_another_take_over_is_not_gone_on_with(tmp_path: Path) -> None:
    cluster = Cluster(*jobs())
    assert take_over(cluster, tmp_path).exit_code == 0
    said = take_over(Cluster(*jobs()), tmp_path)
    assert said.exit_code == 0, "the definition is the same"
    other = Cluster(*jobs())
    other.objects[CRD]["metadata"]["uid"] = "uid-other"
    said = take_over(other, tmp_path)
    assert said.exit_code == 1
    assert "its definition mpijobs.kubeflow.org is not the one in this cluster" in said.stderr
    assert (other.stored, other.replicas) == ("v2beta1", 2)
