"""Run `elastic uninstall` against an API server that keeps objects. tests/cluster checks that a real one takes it."""

from __future__ import annotations

from pathlib import Path

from cli_api import job, path_of, running
from installed_objects import installed_objects
from installing_cluster import SYSTEM, Cluster, installed, uninstall

from elastic.api.kinds import KINDS
from elastic.kube.resources import Object


def test_uninstalling_leaves_kinds_jobs_and_key_and_takes_the_apis_first(tmp_path: Path) -> None:
    cluster = installed(tmp_path, "--component", "autoscaler", "--component", "autoscaler-metrics-api")
    for one in (job(status=running()), api_service()):
        cluster.objects[path_of(one)] = one
    cluster.asked.clear()
    shown = uninstall(cluster, tmp_path)
    assert shown.exit_code == 0, shown.output
    assert "keep 1 job, 1 of them not over: PyTorchJob default/train" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "Nothing was changed; --yes does it."
    assert deleted(cluster) == []
    said = uninstall(cluster, tmp_path, "--yes")
    assert said.exit_code == 0, said.output
    assert deleted(cluster)[0] == "v1beta1.external.metrics.k8s.io"
    assert deleted(cluster).index("elastic-webhook") < deleted(cluster).index("elastic-controller")
    ended = max(at for at, (method, path, _) in enumerate(cluster.asked) if method == "GET" and path.endswith("/pods"))
    rights = [at for at, (method, path, _) in enumerate(cluster.asked) if method == "DELETE" and "rbac.authorization" in path]
    assert min(rights) > ended, "a controller without rights cannot give up its Lease"
    assert {one["kind"] for one in cluster.objects.values()} == {"Namespace", "Secret", "CustomResourceDefinition", "PyTorchJob"}
    again = uninstall(cluster, tmp_path, "--yes")
    assert (again.exit_code, "nothing that `elastic install --overlay standalone` made" in again.stderr) == (1, True)


def api_service() -> Object:
    labels = {"app.kubernetes.io/managed-by": "elastic-autoscaler"}
    described = {"name": "v1beta1.external.metrics.k8s.io", "labels": labels}
    return {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": described}


def deleted(cluster: Cluster) -> list[str]:
    return [path.rpartition("/")[2] for method, path, _ in cluster.asked if method == "DELETE"]


def test_jobs_go_only_when_named_and_before_the_control_plane(tmp_path: Path) -> None:
    cluster = installed(tmp_path)
    cluster.objects[path_of(job())] = job()
    cluster.asked.clear()
    shown = uninstall(cluster, tmp_path, "--delete-jobs")
    assert "1. delete 1 job, 1 of them not over: PyTorchJob default/train, and wait until their pods are gone" in shown.stdout
    assert deleted(cluster) == []
    said = uninstall(cluster, tmp_path, "--delete-jobs", "--yes")
    assert said.exit_code == 0, said.output
    order = deleted(cluster)
    assert order[0] == "train"
    assert order[-2:] == ["elastic-installation", SYSTEM]
    assert set(order[-2 - len(KINDS) : -2]) == {kind.crd_name for kind in KINDS.values()}
    assert [one["metadata"]["name"] for one in cluster.objects.values()] == ["default"]


def test_an_installation_of_others_is_not_removed(tmp_path: Path) -> None:
    cluster = Cluster()
    for item in installed_objects("standalone", (), namespace=SYSTEM, image="old"):
        cluster.objects[path_of(item)] = item
    said = uninstall(cluster, tmp_path, "--yes")
    assert (said.exit_code, deleted(cluster)) == (1, [])
    assert "what kubectl or Helm brought goes with them" in said.stderr
