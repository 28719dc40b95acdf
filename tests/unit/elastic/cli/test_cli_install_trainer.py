"""`elastic install --trainjobs` brings what TrainJobs need, keeps what others made, and refuses to run each TrainJob twice."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from cli_api import path_of
from installing_cluster import IMAGE, SYSTEM, Cluster, deployment, install, installed, names, uninstall
from train_job_builders import owned, train_job

from elastic.api.trainer.crd import definitions
from elastic.api.trainer.modes import TRAINER_LEASE, Mode, holder_of_trainer
from elastic.api.trainer.shipped import objects
from elastic.cli.installing import trainer
from elastic.cli.installing.looking_trainer import JOB_SETS
from elastic.kube.resources import Object

INSTEAD = ("--trainjobs", "instead")
RUNTIME = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes/torch-distributed"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/elastic-webhook-trainjobs"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kubeflow-system/leases/{TRAINER_LEASE}"


class Renewing(Cluster):
    """A cluster in which the Lease is renewed whenever somebody looks."""

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        if (lease := self.objects.get(LEASE)) is not None:
            lease["spec"]["renewTime"] = str(len(self.asked))
        return super().answer(method, url, body)


def lease(holder: str) -> Object:
    metadata = {"name": TRAINER_LEASE, "namespace": "kubeflow-system"}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 1, "renewTime": "0"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def trainers(replicas: int) -> Object:
    metadata = {"name": "kubeflow-trainer-controller-manager", "namespace": "kubeflow-system"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": replicas}}


def public(version: str) -> Object:
    metadata = {"name": "kubeflow-trainer-public", "namespace": "kubeflow-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"kubeflow_trainer_version": version}}


def defined() -> list[Object]:
    """Return upstream's definitions, as upstream applies them."""
    return [one | {"status": {"conditions": [{"type": "Established", "status": "True"}]}} for one in copy.deepcopy(list(definitions()))]


def flags(cluster: Cluster) -> list[str]:
    args: list[str] = deployment(cluster)["spec"]["template"]["spec"]["containers"][0]["args"]
    return [flag for flag in args if flag.startswith(trainer.FLAG)]


def test_in_place_of_kubeflow_trainer_it_brings_definitions_runtimes_and_the_right_to_the_lease(tmp_path: Path) -> None:
    cluster = installed(tmp_path, *INSTEAD)
    assert flags(cluster) == ["--trainjobs=instead"]
    assert {path_of(item) for item in trainer.outside(Mode.INSTEAD, home=SYSTEM)} < cluster.objects.keys()
    assert "objectSelector" not in cluster.objects[HOOKS]["webhooks"][0]
    said = install(cluster, tmp_path)
    assert "TrainJobs: instead" in said.stdout, "it is remembered"
    said = install(cluster, tmp_path, "--component", "none")
    assert flags(cluster) == ["--trainjobs=instead"], "it is no component that one names"
    said = install(cluster, tmp_path, "--trainjobs", "off")
    assert said.exit_code == 0, said.output
    assert (flags(cluster), HOOKS in cluster.objects, RUNTIME in cluster.objects) == ([], False, True)
    assert not [name for name in names(cluster) if "elastic-controller-train" in name], "the rights have gone"


def test_objects_of_others_stay_as_they_are(tmp_path: Path) -> None:
    theirs = {path_of(item): item for item in (*defined(), *copy.deepcopy(objects()))}
    cluster = Cluster(*theirs.values())
    before = copy.deepcopy(theirs)
    said = install(cluster, tmp_path, "--image", IMAGE, *INSTEAD)
    assert said.exit_code == 0, said.output
    assert {path: cluster.objects[path] for path in theirs} == before
    assert "ClusterTrainingRuntime torch-distributed is there already and stays as it is" in said.stderr
    said = uninstall(cluster, tmp_path, "--delete-jobs", "--yes")
    assert said.exit_code == 0, said.output
    assert {path: cluster.objects.get(path) for path in theirs} == before


def test_a_runtime_that_somebody_changed_is_kept(tmp_path: Path) -> None:
    cluster = installed(tmp_path, *INSTEAD)
    entries = [{"manager": "elastic-install"}, {"manager": "kube-apiserver", "subresource": "status"}]
    for path in (RUNTIME, RUNTIME.replace("torch", "jax")):
        cluster.objects[path]["metadata"]["managedFields"] = entries
    cluster.objects[RUNTIME]["metadata"]["managedFields"] = [*entries, {"manager": "kubectl-edit"}]
    cluster.applied.clear()
    assert install(cluster, tmp_path).exit_code == 0
    applied = [path for path, _ in cluster.applied]
    assert (RUNTIME in applied, RUNTIME.replace("torch", "jax") in applied) == (False, True)


def test_removal_takes_runtimes_and_definitions_only_with_the_jobs(tmp_path: Path) -> None:
    cluster = installed(tmp_path, *INSTEAD)
    said = uninstall(cluster, tmp_path, "--yes")
    assert said.exit_code == 0, said.output
    left = set(cluster.objects)
    assert {RUNTIME, *(path_of(one) for one in definitions())} < left
    assert not [name for name in names(cluster) if "elastic-controller" in name]
    cluster = installed(tmp_path, *INSTEAD)
    cluster.objects |= {path_of(one): one for one in (train_job(), owned(train_job()))}
    cluster.asked.clear()
    said = uninstall(cluster, tmp_path, "--yes", "--delete-jobs")
    gone = [path for method, path, _ in cluster.asked if method == "DELETE"]
    assert gone[0] == path_of(train_job()), "its job would be made again"
    assert {RUNTIME, *(path_of(one) for one in definitions())} < set(gone)
    assert "/api/v1/namespaces/kubeflow-system" in cluster.objects, "others may have objects in it"


def test_next_to_kubeflow_trainer_it_is_asked_only_about_its_own(tmp_path: Path) -> None:
    cluster = Cluster(*defined(), trainers(1), public("v2.3.0"))
    before = set(cluster.objects)
    said = install(cluster, tmp_path, "--image", IMAGE, "--trainjobs", "beside")
    assert said.exit_code == 0, said.output
    assert flags(cluster) == ["--trainjobs=beside"]
    (hook,) = cluster.objects[HOOKS]["webhooks"]
    assert hook["objectSelector"] == {"matchLabels": {"elastic-training/controller": "elastic"}}
    assert hook["rules"][0]["resources"] == ["trainjobs"]
    assert not [path for path in set(cluster.objects) - before if "kubeflow-system" in path or "runtimes/" in path]


@pytest.mark.parametrize(
    ("there", "mode", "words"),
    [
        ([trainers(2)], "instead", "Kubeflow Trainer runs here (deployment kubeflow-system/kubeflow-trainer-controller-manager)"),
        ([lease("trainer_1")], "instead", "(the process that holds its Lease in kubeflow-system: trainer_1)"),
        ([trainers(1), public("v2.2.1")], "beside", "Kubeflow Trainer is v2.2.1, which runs every TrainJob; upgrade it to 2.3.0"),
    ],
)
def test_two_controllers_do_not_come_to_run_the_same_train_jobs(tmp_path: Path, there: list[Object], mode: str, words: str) -> None:
    cluster = Renewing(*defined(), *copy.deepcopy(there))
    said = install(cluster, tmp_path, "--image", IMAGE, "--trainjobs", mode)
    assert (said.exit_code, cluster.applied) == (1, [])
    assert words in said.stderr, said.output


def test_next_to_nobody_it_says_what_to_do(tmp_path: Path) -> None:
    said = install(Cluster(), tmp_path, "--image", IMAGE, "--trainjobs", "beside")
    assert "--trainjobs beside needs Kubeflow Trainer, which is not here; install it first, or give --trainjobs instead" in said.stderr


@pytest.mark.parametrize("holder", ["trainer_of_a_former_life", holder_of_trainer(SYSTEM), ""])
def test_a_lease_that_nobody_renews_or_that_is_ours_is_no_obstacle(tmp_path: Path, holder: str) -> None:
    said = install(Cluster(*defined(), trainers(0), lease(holder)), tmp_path, "--image", IMAGE, *INSTEAD)
    assert said.exit_code == 0, said.output


def test_a_train_job_that_trains_elsewhere_is_named(tmp_path: Path) -> None:
    cluster = Cluster(*defined(), train_job())
    set_ = {"metadata": {"name": "fit", "namespace": "team"}, "spec": {}}
    cluster.objects[JOB_SETS.path(namespace="team", name="fit")] = set_ | {"kind": "JobSet", "apiVersion": JOB_SETS.api_version}
    said = install(cluster, tmp_path, "--image", IMAGE, *INSTEAD)
    assert "1 TrainJob (team/fit) trains in a JobSet of Kubeflow Trainer, and our controller would start it a second time" in said.stderr
    cluster = installed(tmp_path, *INSTEAD)
    cluster.objects |= {path_of(one): one for one in (train_job(), owned(train_job()))}
    said = install(cluster, tmp_path, "--trainjobs", "beside")
    assert "1 TrainJob (team/fit) trains under our controller, and Kubeflow Trainer would start it a second time" in said.stderr
    cluster.objects[path_of(train_job())] = train_job(suspend=True)
    assert install(cluster, tmp_path, "--trainjobs", "beside").exit_code == 0
