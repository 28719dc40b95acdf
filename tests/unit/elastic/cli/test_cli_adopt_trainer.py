"""`elastic adopt --trainer` takes TrainJobs over from Kubeflow Trainer, shows first what it would change, and gives them back."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from cli_api import elastic, path_of, served
from click.testing import Result
from installing_cluster import SYSTEM, Cluster, install, installed
from test_cli_install_trainer import defined, flags, lease, public, trainers
from train_job_builders import owned, train_job

from elastic.kube.resources import Object

VALIDATOR, DEFAULTER = "validator.trainer.kubeflow.org", "defaulter.trainer.kubeflow.org"
RULES = [{"apiGroups": ["trainer.kubeflow.org"], "apiVersions": ["v1alpha1"], "resources": ["trainjobs"], "operations": ["CREATE"]}]
STOPPED = "deployment kubeflow-system/kubeflow-trainer-controller-manager"


def hooks(kind: str, name: str) -> Object:
    made = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration"}
    return made | {"metadata": {"name": name, "uid": "w"}, "webhooks": [{"name": name, "rules": RULES}]}


def job_set() -> Object:
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "fit", "namespace": "team"}, "spec": {}}


def theirs(*more: Object) -> list[Object]:
    """Return Kubeflow Trainer as it is installed, with the Lease of its controller."""
    configurations = [hooks("Validating", VALIDATOR), hooks("Mutating", DEFAULTER)]
    return copy.deepcopy([*defined(), trainers(2), public("v2.3.0"), lease("trainer_1"), *configurations, *more])


def adopt(cluster: Cluster, folder: Path, *words: str) -> Result:
    with served(cluster, folder) as kubeconfig:
        return elastic(kubeconfig, "adopt", "--save", str(folder / "kept.json"), *words)


def with_trainer(folder: Path, mode: str, *more: Object) -> Cluster:
    """Return a cluster with both, in which ours leaves all TrainJobs or most of them to Kubeflow Trainer."""
    cluster = installed(folder)
    cluster.objects |= {path_of(one): one for one in theirs(*more)}
    assert install(cluster, folder, "--trainjobs", mode).exit_code == 0
    cluster.asked.clear()
    return cluster


def test_it_shows_what_it_would_change_and_changes_nothing(tmp_path: Path) -> None:
    cluster = with_trainer(tmp_path, "beside", train_job(suspend=True), job_set())
    said = adopt(cluster, tmp_path, "--trainer")
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines()[:7] == [
        "It would, in this order:",
        f"  1. stop {STOPPED} (2 to 0 replicas); no TrainJob starts until ours runs",
        f"  2. delete the webhook configuration {VALIDATOR}, which refuses all TrainJobs without its server",
        f"  3. delete the webhook configuration {DEFAULTER}, which refuses all TrainJobs without its server",
        "  4. delete 1 JobSet of suspended TrainJobs (team/fit): our controller makes a job of its own once they go on",
        "  5. wait until Kubeflow Trainer's controller has ended",
        f"  6. serve all TrainJobs: `elastic install --trainjobs instead --namespace {SYSTEM}`",
    ]
    assert [method for method, path, _ in cluster.asked if method != "GET" and "selfsubject" not in path] == []


@pytest.mark.parametrize("mode", ["beside", "off"])
def test_it_takes_over_and_gives_back_the_mode_and_kubeflow_trainer(tmp_path: Path, mode: str) -> None:
    cluster = with_trainer(tmp_path, mode, train_job(suspend=True), job_set())
    before = copy.deepcopy(cluster.objects)
    said = adopt(cluster, tmp_path, "--trainer", "--yes")
    assert said.exit_code == 0, said.output
    assert flags(cluster) == ["--trainjobs=instead"]
    assert cluster.objects[path_of(trainers(2))]["spec"]["replicas"] == 0
    gone = {path_of(one) for one in (hooks("Validating", VALIDATOR), hooks("Mutating", DEFAULTER), job_set())}
    assert not gone & cluster.objects.keys()
    assert json.loads((tmp_path / "kept.json").read_text())["mode"] == mode

    made = owned(train_job(suspend=True))
    cluster.objects[path_of(made)] = made
    said = adopt(cluster, tmp_path, "--back", str(tmp_path / "kept.json"), "--yes")
    assert said.exit_code == 0, said.output
    assert flags(cluster) == ([f"--trainjobs={mode}"] if mode != "off" else [])
    assert cluster.objects[path_of(trainers(2))]["spec"]["replicas"] == 2
    assert cluster.objects[path_of(hooks("Mutating", DEFAULTER))]["webhooks"] == before[path_of(hooks("Mutating", DEFAULTER))]["webhooks"]
    assert path_of(hooks("Validating", VALIDATOR)) in cluster.objects
    assert path_of(made) not in cluster.objects, "its Service has the name of the JobSet's"


def test_a_train_job_that_trains_is_an_obstacle_in_both_directions(tmp_path: Path) -> None:
    cluster = with_trainer(tmp_path, "beside", train_job(), job_set())
    said = adopt(cluster, tmp_path, "--trainer", "--yes")
    assert (said.exit_code, "1 TrainJob (team/fit) trains in a JobSet of Kubeflow Trainer" in said.stderr) == (1, True), said.output
    del cluster.objects[path_of(job_set())]
    cluster.objects[path_of(owned(train_job()))] = owned(train_job())
    (tmp_path / "other.json").write_text(json.dumps({"operators": [], "objects": [], "mode": "off"}))
    said = adopt(cluster, tmp_path, "--back", str(tmp_path / "other.json"), "--yes")
    assert (said.exit_code, "1 TrainJob (team/fit) trains under our controller" in said.stderr) == (1, True), said.output


def test_without_a_control_plane_of_ours_it_says_what_to_do_next(tmp_path: Path) -> None:
    cluster = Cluster(*theirs())
    said = adopt(cluster, tmp_path, "--trainer", "--yes")
    assert said.exit_code == 0, said.output
    assert said.stdout.splitlines()[-1].startswith("Now install the control plane with `elastic install --trainjobs instead`")


def test_without_kubeflow_trainer_there_is_nothing_to_take_over(tmp_path: Path) -> None:
    said = adopt(Cluster(), tmp_path, "--trainer", "--yes")
    assert (said.exit_code, "no Kubeflow Trainer is here" in said.stderr) == (1, True)


@pytest.mark.parametrize("text", ['{"operators": [], "objects": [], "mode": "odd"}', '{"operators": [], "objects": [], "mode": 3}'])
def test_a_file_with_another_mode_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    said = adopt(Cluster(), tmp_path, "--back", str(tmp_path / "other.json"), "--yes")
    assert (said.exit_code, "was not written by `elastic adopt`" in said.stderr) == (1, True), said.output
