"""The commands about jobs show a TrainJob, and change it instead of the job that belongs to it."""

from pathlib import Path
from typing import Any

import pytest
from cli_api import Api, Object, elastic, served
from train_job_builders import owned, train_job

from elastic.api.trainer.shipped import objects
from elastic.kube.resources import TRAIN_JOBS

TRAIN_JOB = TRAIN_JOBS.path(namespace="team", name="fit")
BOUNDS = {"elastic-training/min-nodes": "1", "elastic-training/max-nodes": "3"}


@pytest.fixture
def api() -> Api:
    made = train_job(annotations=BOUNDS)
    one = Api({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "team", "uid": "n"}}, owned(made))
    one.objects[TRAIN_JOB] = made
    return one


def changes(api: Api) -> list[tuple[str, str, Any]]:
    return [(method, path, body) for method, path, body in api.asked if method in ("PATCH", "DELETE")]


def run(tmp_path: Path, api: Api, *words: str) -> Any:
    with served(api, tmp_path) as kubeconfig:
        return elastic(kubeconfig, *words, "--namespace", "team")


def test_get_shows_a_train_job_by_its_kind(tmp_path: Path, api: Api) -> None:
    for words in (["get"], ["get", "trainjobs"], ["get", "trainjob/fit"]):
        said = run(tmp_path, api, *words)
        assert said.stdout.splitlines()[1].split()[:2] == ["fit", "TrainJob"], said.output
    assert run(tmp_path, api, "get", "trainjobs", "-o", "name").stdout == "trainjob.trainer.kubeflow.org/fit\n"
    assert "TrainJob fit is" in run(tmp_path, api, "explain", "fit").stdout


def test_a_train_job_of_mpi_is_shown_and_changed_like_any_other(tmp_path: Path) -> None:
    made = train_job()
    there = owned(made, next(item for item in objects() if item["metadata"]["name"] == "mpi-distributed"))
    api = Api({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "team", "uid": "n"}}, there)
    api.objects[TRAIN_JOB] = made
    assert run(tmp_path, api, "get", "trainjobs").stdout.splitlines()[1].split()[:2] == ["fit", "TrainJob"]
    said = run(tmp_path, api, "suspend", "trainjob/fit")
    assert said.exit_code == 0, said.output
    assert changes(api) == [("PATCH", TRAIN_JOB, {"spec": {"suspend": True}, "metadata": {"uid": "t-1"}})]


def test_a_train_job_that_waits_for_its_initializer_says_so_instead_of_logs(tmp_path: Path) -> None:
    there = owned(
        train_job(), status={"conditions": [{"type": "Created", "status": "True"}], "elastic": {"waitsFor": "dataset-initializer"}}
    )
    api = Api({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "team", "uid": "n"}}, there)
    assert "TrainJob fit has no pods yet, and so no logs; it waits for dataset-initializer" in run(tmp_path, api, "logs", "fit").output
    assert "It waits for dataset-initializer." in run(tmp_path, api, "explain", "fit").stdout


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["scale", "trainjob/fit", "--workers", "3"], {"metadata": {"annotations": {"elastic-training/nodes": "3"}, "uid": "t-1"}}),
        (["suspend", "fit"], {"spec": {"suspend": True}, "metadata": {"uid": "t-1"}}),
    ],
)
def test_a_change_goes_to_the_train_job(tmp_path: Path, api: Api, words: list[str], body: Object) -> None:
    said = run(tmp_path, api, *words)
    assert said.exit_code == 0, said.output
    assert changes(api) == [("PATCH", TRAIN_JOB, body)]
    assert "TrainJob fit" in said.output


def test_delete_deletes_the_train_job(tmp_path: Path, api: Api) -> None:
    said = run(tmp_path, api, "delete", "trainjob/fit", "--no-wait")
    assert said.exit_code == 0, said.output
    assert [(method, path) for method, path, _ in changes(api)] == [("DELETE", TRAIN_JOB)]


def test_more_nodes_than_its_bounds_allow_are_refused_with_the_annotations_that_say_so(tmp_path: Path, api: Api) -> None:
    said = run(tmp_path, api, "scale", "trainjob/fit", "--workers", "4")
    assert "--workers is 4, but TrainJob fit may have 1 to 3 nodes; its annotations elastic-training/min-nodes" in said.output
    assert changes(api) == []
