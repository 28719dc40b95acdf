"""Run `elastic install` against an API server that keeps objects. tests/cluster checks that a real one takes them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_api import namespace, path_of
from click.testing import CliRunner
from installed_objects import installed_objects
from installing_cluster import IMAGE, OURS, SYSTEM, Cluster, deployment, install, installed, names

from elastic import certificates
from elastic.api.crd import crd
from elastic.api.kinds import KINDS
from elastic.cli import main
from elastic.cli.installing import readiness, shared_secret
from elastic.kube.resources import Object
from elastic.membership.tokens import load_keys


def test_kinds_come_first_then_what_others_refer_to_and_the_key_is_made(tmp_path: Path) -> None:
    cluster = Cluster()
    said = install(cluster, tmp_path, "--image", IMAGE)
    assert said.exit_code == 0, said.output
    kinds = [body["kind"] for _, body in cluster.applied]
    assert kinds[: len(KINDS)] == ["CustomResourceDefinition"] * len(KINDS)
    assert kinds[len(KINDS)] == "Namespace"
    assert kinds[-1] == "ValidatingWebhookConfiguration"
    assert said.stdout.splitlines()[-1].startswith(f"elastic-training {OURS} is ready in namespace {SYSTEM}; ")
    assert {name for name in names(cluster) if "Deployment" in name} == {
        f"Deployment {SYSTEM}/elastic-controller",
        f"Deployment {SYSTEM}/elastic-rendezvous",
    }
    images = {
        deployment(cluster, f"elastic-{name}")["spec"]["template"]["spec"]["containers"][0]["image"]
        for name in ("controller", "rendezvous")
    }
    assert images == {IMAGE}
    secret = cluster.objects[f"/api/v1/namespaces/{SYSTEM}/secrets/elastic-installation"]
    files = {name: base64.b64decode(text) for name, text in secret["data"].items()}
    assert files.keys() == {"server.key", "ca.crt", "tls.crt", "tls.key"}
    assert certificates.covers(files["tls.crt"], shared_secret.names(SYSTEM))
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert len(load_keys(tmp_path)) == 1


def test_the_same_again_changes_no_key_and_needs_no_image(tmp_path: Path) -> None:
    cluster = installed(tmp_path)
    path = f"/api/v1/namespaces/{SYSTEM}/secrets/elastic-installation"
    before = cluster.objects[path]
    said = install(cluster, tmp_path)
    assert said.exit_code == 0, said.output
    assert cluster.objects[path] is before
    assert deployment(cluster)["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE


def test_components_are_remembered_and_removed_once_they_are_not_chosen(tmp_path: Path) -> None:
    cluster = installed(tmp_path, "--component", "dashboard", "--component", "autoscaler")
    assert {f"Deployment {SYSTEM}/elastic-dashboard", f"Deployment {SYSTEM}/elastic-autoscaler"} < names(cluster)
    said = install(cluster, tmp_path)
    assert "components: autoscaler, dashboard" in said.stdout
    shown = install(cluster, tmp_path, "--component", "autoscaler", "--dry-run").stdout.splitlines()
    assert f"would delete Deployment {SYSTEM}/elastic-dashboard" in shown
    assert shown[-1] == "Nothing was changed."
    assert f"Deployment {SYSTEM}/elastic-dashboard" in names(cluster)
    said = install(cluster, tmp_path, "--component", "autoscaler")
    assert said.exit_code == 0, said.output
    assert {name for name in names(cluster) if "dashboard" in name} == set()
    assert f"Deployment {SYSTEM}/elastic-autoscaler" in names(cluster)
    said = install(cluster, tmp_path, "--component", "none")
    assert said.exit_code == 0, said.output
    assert {name for name in names(cluster) if "autoscaler" in name} == set()


def test_a_trial_changes_nothing_and_names_what_it_would_make(tmp_path: Path) -> None:
    cluster = Cluster()
    said = install(cluster, tmp_path, "--image", IMAGE, "--dry-run")
    assert said.exit_code == 0, said.output
    lines = said.stdout.splitlines()
    assert lines[0] == f"would apply {len(KINDS)} definitions of kinds, 0 of them there already"
    assert f"would create Deployment {SYSTEM}/elastic-controller" in lines
    assert f"would create Secret {SYSTEM}/elastic-installation, with a new key" in lines
    assert cluster.applied == []
    assert all(method in ("GET", "POST") and "secrets" not in path for method, path, _ in cluster.asked if method != "GET")


def test_objects_are_printed_without_a_cluster() -> None:
    said = CliRunner().invoke(
        main, ["install", "--image", IMAGE, "-o", "yaml", "-n", "team", "--component", "etcd"], env={"KUBECONFIG": ""}
    )
    assert said.exit_code == 0, said.output
    found = list(yaml.load_all(said.stdout, Loader=yaml.CSafeLoader))
    assert [item["kind"] for item in found].count("CustomResourceDefinition") == len(KINDS)
    assert {item["metadata"]["namespace"] for item in found if "namespace" in item["metadata"]} == {"team"}
    assert "StatefulSet" in {item["kind"] for item in found}
    said = CliRunner().invoke(main, ["install", "--image", IMAGE, "-o", "json"], env={"KUBECONFIG": ""})
    assert json.loads(said.stdout)["kind"] == "List"
    without = CliRunner().invoke(main, ["install", "-o", "yaml"], env={"KUBECONFIG": ""})
    assert (without.exit_code, "--image is missing; build and push it" in without.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--image", "a b"], "'a b' is no name of an image"),
        (["--namespace", "A"], "'A' is no name of a namespace"),
        (["--overlay", "namespaced"], "is for the jobs of one namespace; name it with --namespace"),
        (["--component", "none", "--component", "etcd"], "--component none and --component etcd exclude each other"),
        (["--component", "autoscaler-metrics-api"], "component autoscaler-metrics-api needs component autoscaler; add it"),
        (["--component", "dashboard", "--overlay", "namespaced", "-n", "a"], "component dashboard needs the overlay standalone"),
        ([], "--image is missing; build and push it"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(tmp_path: Path, words: list[str], said: str) -> None:
    cluster = Cluster(*map(crd, KINDS.values()), namespace("a"))
    refused = install(cluster, tmp_path, *words)
    assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr
    assert cluster.applied == []


def test_a_missing_right_is_named_before_anything_changes(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.denied = {("create", "clusterroles"), ("patch", "customresourcedefinitions")}
    said = install(cluster, tmp_path, "--image", IMAGE)
    assert said.exit_code == 1
    assert (
        "you may not create clusterroles.rbac.authorization.k8s.io, patch customresourcedefinitions.apiextensions.k8s.io (2 of"
        in said.stderr
    )
    assert "ask an administrator of the cluster, or install for one namespace with --overlay namespaced" in said.stderr
    assert cluster.applied == []


def test_rights_for_components_that_are_remembered_are_asked_for_too(tmp_path: Path) -> None:
    cluster = installed(tmp_path, "--component", "etcd")
    cluster.denied = {("patch", "statefulsets")}
    said = install(cluster, tmp_path)
    assert (said.exit_code, cluster.applied) == (1, [])
    assert "you may not patch statefulsets.apps in namespace elastic-system (1 of" in said.stderr


def test_rights_that_one_cannot_grant_are_refused_before_anything_changes(tmp_path: Path) -> None:
    class Strict(Cluster):
        def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
            if "/clusterroles/" in url and "dryRun=All" in url:
                return 403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "is attempting to grant RBAC permissions"}
            return super().answer(method, url, body)

    cluster = Strict()
    said = install(cluster, tmp_path, "--image", IMAGE)
    assert (said.exit_code, cluster.applied) == (1, [])
    assert "ClusterRole elastic-controller: is attempting to grant RBAC permissions" in said.stderr


def operator(replicas: int) -> Object:
    labels = {"control-plane": "kubeflow-training-operator"}
    described = {"name": "training-operator", "namespace": "kubeflow", "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": described, "spec": {"replicas": replicas}}


def foreign(kind: str) -> Object:
    made = crd(KINDS[kind])
    del made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["elastic"]
    return made


def test_another_operator_is_not_run_over(tmp_path: Path) -> None:
    cluster = Cluster(operator(1), foreign("PyTorchJob"))
    said = install(cluster, tmp_path, "--image", IMAGE, "--force-conflicts")
    assert (said.exit_code, cluster.applied) == (1, [])
    assert "the Training Operator is here (deployment kubeflow/training-operator)" in said.stderr
    assert "take its jobs over with `elastic adopt` (docs/migration.md)" in said.stderr
    cluster = Cluster(operator(0), foreign("PyTorchJob"))
    said = install(cluster, tmp_path, "--image", IMAGE)
    assert (said.exit_code, cluster.applied) == (1, [])
    assert "another operator has defined pytorchjobs.kubeflow.org" in said.stderr
    said = install(cluster, tmp_path, "--image", IMAGE, "--force-conflicts")
    assert said.exit_code == 0, said.output


def test_after_a_take_over_it_installs(tmp_path: Path) -> None:
    cluster = Cluster(operator(0), *map(crd, KINDS.values()))
    said = install(cluster, tmp_path, "--image", IMAGE)
    assert said.exit_code == 0, said.output


def of_release(tmp_path: Path, version: str) -> Cluster:
    cluster = installed(tmp_path)
    deployment(cluster)["metadata"]["labels"]["app.kubernetes.io/version"] = version
    cluster.applied.clear()
    return cluster


def test_an_older_release_is_upgraded_only_when_asked_for(tmp_path: Path) -> None:
    cluster = of_release(tmp_path, "0.0.9")
    said = install(cluster, tmp_path, "--image", IMAGE)
    assert (said.exit_code, cluster.applied) == (1, [])
    assert f"version 0.0.9 is installed, and this command is {OURS}; upgrade with `elastic install --upgrade --image IMAGE`" in said.stderr
    without_image = install(cluster, tmp_path, "--upgrade")
    assert (without_image.exit_code, "--image is missing" in without_image.stderr) == (2, True)
    said = install(cluster, tmp_path, "--upgrade", "--image", IMAGE)
    assert said.exit_code == 0, said.output
    assert deployment(cluster)["metadata"]["labels"]["app.kubernetes.io/version"] == OURS


def test_a_newer_release_is_never_replaced(tmp_path: Path) -> None:
    cluster = of_release(tmp_path, "99.1.0")
    said = install(cluster, tmp_path, "--upgrade", "--force-conflicts", "--image", IMAGE)
    assert (said.exit_code, cluster.applied) == (1, [])
    assert "take the command of release 99.1.0" in said.stderr


def test_an_installation_by_kubectl_or_helm_is_taken_over_only_when_asked_for(tmp_path: Path) -> None:
    cluster = Cluster()
    for item in installed_objects("standalone", (), namespace=SYSTEM, image="old"):
        cluster.objects[path_of(item)] = item
    said = install(cluster, tmp_path, "--image", IMAGE)
    assert (said.exit_code, cluster.applied) == (1, [])
    assert f"deployment {SYSTEM}/elastic-controller is here, but this command did not create it" in said.stderr
    said = install(cluster, tmp_path, "--image", IMAGE, "--force-conflicts")
    assert said.exit_code == 0, said.output


def test_two_control_planes_do_not_come_to_act_on_the_same_jobs(tmp_path: Path) -> None:
    cluster = installed(tmp_path)
    cluster.applied.clear()
    for words in (["-n", "other"], ["-n", "default", "--overlay", "namespaced"]):
        said = install(cluster, tmp_path, "--image", IMAGE, *words)
        assert (said.exit_code, cluster.applied) == (1, []), words
        assert f"a control plane (standalone) is in namespace {SYSTEM} already" in said.stderr
    said = install(cluster, tmp_path, "--overlay", "namespaced", "-n", SYSTEM, "--image", IMAGE)
    assert "is of the overlay standalone, not namespaced" in said.stderr


def test_one_namespace_needs_the_kinds_and_no_right_beyond_it(tmp_path: Path) -> None:
    cluster = Cluster(namespace("team"))
    cluster.has_kinds = False
    words = ["--overlay", "namespaced", "-n", "team", "--image", IMAGE]
    said = install(cluster, tmp_path, *words)
    assert (said.exit_code, "the overlay namespaced does not define kinds; let an administrator run" in said.stderr) == (1, True)
    cluster.has_kinds = True
    cluster.denied = {("patch", "customresourcedefinitions"), ("create", "clusterroles"), ("create", "namespaces")}
    said = install(cluster, tmp_path, *words)
    assert said.exit_code == 0, said.output
    assert all("/namespaces/team/" in path for path, _ in cluster.applied)
    gone = install(cluster, tmp_path, "--overlay", "namespaced", "-n", "gone", "--image", IMAGE)
    assert (gone.exit_code, "there is no namespace gone" in gone.stderr) == (1, True)


def test_an_old_cluster_and_a_missing_prometheus_operator_are_said(tmp_path: Path) -> None:
    cluster = Cluster()
    said = install(cluster, tmp_path, "--image", IMAGE, "--component", "monitoring")
    assert (said.exit_code, "component monitoring needs the Prometheus operator" in said.stderr) == (1, True)
    cluster.kubernetes = "v1.26.9-eks-1"
    said = install(cluster, tmp_path, "--image", IMAGE)
    assert (said.exit_code, "this cluster is Kubernetes v1.26.9-eks-1, but 1.27 or later is needed" in said.stderr) == (1, True)
    assert cluster.applied == []


def test_a_namespace_that_others_made_keeps_its_labels(tmp_path: Path) -> None:
    cluster = Cluster(namespace("tools"))
    said = install(cluster, tmp_path, "--image", IMAGE, "-n", "tools")
    assert said.exit_code == 0, said.output
    assert "namespace tools is there already and stays as it is" in said.stderr
    assert "labels" not in cluster.objects["/api/v1/namespaces/tools"]["metadata"]


def test_a_control_plane_that_does_not_start_is_said_with_its_reason(tmp_path: Path) -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    cluster = Cluster(works=False)
    pod = {"name": "elastic-controller-1", "namespace": SYSTEM, "labels": {"app": "elastic-controller"}}
    cluster.objects[f"/api/v1/namespaces/{SYSTEM}/pods/elastic-controller-1"] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": pod,
        "status": {"phase": "Pending", "containerStatuses": [waiting]},
    }
    said = install(cluster, tmp_path, "--image", IMAGE, "--timeout", "6")
    assert said.exit_code == 1
    assert "deployment elastic-controller: 0 of 2 ready (pod elastic-controller-1: ImagePullBackOff: no such image)" in said.stderr
    assert "Error: after 6 s it still waits for deployment elastic-controller: 0 of 2 ready" in said.stderr
    assert install(cluster, tmp_path, "--no-wait").exit_code == 0


PULL = "failed to pull and unpack image: " + "failed to do request: " * 20 + "connect: connection refused"
BACK_OFF = f'Back-off pulling image "elastic:1": ErrImagePull: {PULL}'


def workload(name: str) -> Object:
    return {"kind": "Deployment", "metadata": {"name": name, "generation": 1}, "spec": {"replicas": 1}, "status": {"observedGeneration": 1}}


def starting(name: str, made: int, *, last: Object | None = None, **waiting: str) -> Object:
    container = {"state": {"waiting": waiting}, "lastState": {"terminated": last} if last else {}}
    metadata = {"name": name, "namespace": SYSTEM, "creationTimestamp": f"2026-11-22T21:00:0{made}Z"}
    return {"metadata": metadata, "status": {"phase": "Pending", "containerStatuses": [container]}}


def test_a_problem_of_several_workloads_is_said_once_and_with_its_cause() -> None:
    one = [starting("a-1", 1, reason="ImagePullBackOff", message=BACK_OFF)]
    other = [starting("b-1", 1, reason="ErrImagePull", message=PULL)]
    words = readiness.of_workloads([(workload("a"), one), (workload("b"), other)])
    assert words.startswith("deployment a: 0 of 1 ready (pod a-1: ErrImagePull: failed to pull and unpack image: ")
    assert words.endswith("connect: connection refused); deployment b: 0 of 1 ready")
    assert len(words) < 420


def test_a_new_image_is_not_blamed_for_the_problem_of_the_former_images_pod() -> None:
    former, newest = starting("a-1", 1, reason="ImagePullBackOff", message=BACK_OFF), starting("a-2", 2, reason="ContainerCreating")
    going = starting("a-3", 3, reason="ContainerCreating")
    going["metadata"]["deletionTimestamp"] = "2026-11-22T21:00:09Z"
    assert readiness.of_workloads([(workload("a"), [going, former, newest])]) == "deployment a: 0 of 1 ready (pod a-2: ContainerCreating)"
    assert readiness.of_workloads([(workload("a"), [going])]) == "deployment a: 0 of 1 ready (pod a-3: Terminating)"


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ({"exitCode": 128, "reason": "StartError", "message": 'exec: "x": not found'}, 'exit code 128; exec: "x": not found'),
        ({"exitCode": 2, "reason": "Error"}, f"exit code 2; see `kubectl logs -n {SYSTEM} a-1 --previous`"),
    ],
)
def test_a_crash_says_how_it_ended_not_how_long_the_kubelet_waits(last: Object, words: str) -> None:
    pod = starting("a-1", 1, last=last, reason="CrashLoopBackOff", message="back-off 10s restarting failed container")
    found = readiness.of_workloads([(workload("a"), [pod])])
    assert found == f"deployment a: 0 of 1 ready (pod a-1: CrashLoopBackOff: {words})"


def test_the_laptop_cluster_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic.cli.cluster_choice._folder_of", lambda kubeconfig: tmp_path)
    cluster = Cluster()
    said = install(cluster, tmp_path, "--image", IMAGE)
    assert (said.exit_code, cluster.asked) == (1, [])
    assert "has its own control plane and needs none installed" in said.stderr
