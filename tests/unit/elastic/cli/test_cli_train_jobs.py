"""The commands about jobs show a TrainJob, and change it instead of the job that belongs to it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_api import Api, Object, elastic, served, status
from train_job_builders import all_owned, initializer, owned, runtime, train_job

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


def bare(state: str = "", reason: str = "", message: str = "", **spec: Any) -> Object:
    """Return a TrainJob to which no job belongs."""
    conditions = [{"type": state, "status": "True", "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    made = train_job(status={"conditions": conditions} if state else {}, **spec)
    return made | {"metadata": made["metadata"] | {"name": "bare", "uid": "t-2"}}


def with_bare(api: Api, made: Object) -> Object:
    api.objects[TRAIN_JOBS.path(namespace="team", name="bare")] = made
    return made


LOST = "spec.runtimeRef: ClusterTrainingRuntime lost does not exist; create it or name another"


@pytest.mark.parametrize(
    ("made", "state", "words"),
    [
        (bare("Failed", "TrainingRuntimeNotSupported", LOST), "Refused", LOST),
        (bare("Failed", "DeadlineExceeded", "late"), "Failed", ""),
        (bare("Suspended", "Suspended", suspend=True), "Suspended", ""),
        (bare("Complete", "AllJobsCompleted"), "Succeeded", ""),
        (bare(), "Pending", "`elastic doctor` says which one serves TrainJobs"),
    ],
)
def test_get_shows_a_train_job_without_a_job_with_its_condition(tmp_path: Path, api: Api, made: Object, state: str, words: str) -> None:
    with_bare(api, made)
    for asked in (["get"], ["get", "trainjobs"], ["get", "trainjob/bare"], ["get", "-l", "!x"]):
        said = run(tmp_path, api, *asked)
        (line,) = [line for line in said.stdout.splitlines() if line.startswith("bare ")]
        assert line.split()[:4] == ["bare", "TrainJob", state, "0/2"], said.output
        assert words in line
        assert said.stdout.count("fit ") == (asked[-1] != "trainjob/bare"), "a TrainJob with a job is shown once"
    shown = json.loads(run(tmp_path, api, "get", "trainjob/bare", "-o", "json").stdout)
    assert (shown["kind"], shown["spec"]["runtimeRef"]) == ("TrainJob", {"name": "torch-distributed"})


def test_a_train_job_without_a_job_can_be_looked_at_suspended_and_deleted(tmp_path: Path, api: Api) -> None:
    with_bare(api, bare("Failed", "TrainingRuntimeNotSupported", LOST))
    assert "TrainJob bare is refused" in run(tmp_path, api, "explain", "bare").stdout
    assert LOST in run(tmp_path, api, "describe", "bare").stdout
    said = run(tmp_path, api, "scale", "bare", "--workers", "3")
    assert f"TrainJob bare has no nodes yet; it is refused: {LOST}" in said.stderr
    assert run(tmp_path, api, "suspend", "bare").exit_code == 0
    assert changes(api)[-1][2] == {"spec": {"suspend": True}, "metadata": {"uid": "t-2"}}
    said = run(tmp_path, api, "delete", "trainjob/bare")
    assert (said.exit_code, changes(api)[-1][:2]) == (0, ("DELETE", TRAIN_JOBS.path(namespace="team", name="bare"))), said.output


def test_data_names_the_kind_that_the_user_knows(tmp_path: Path, api: Api) -> None:
    with_bare(api, bare())
    top = json.loads(run(tmp_path, api, "top", "-o", "json").stdout)
    assert [one["kind"] for one in top["jobs"]] == ["TrainJob", "TrainJob"]
    assert json.loads(run(tmp_path, api, "explain", "fit", "-o", "json").stdout)["kind"] == "TrainJob"
    said = run(tmp_path, api, "wait", "bare", "--timeout", "1", "-o", "json")
    assert json.loads(said.stdout)["kind"] == "TrainJob"
    assert "waits for a controller" in said.stderr


@pytest.mark.parametrize(
    ("made", "what", "code", "words"),
    [
        (bare("Complete", "AllJobsCompleted"), "succeeded", 0, "TrainJob bare: succeeded"),
        (bare("Failed", "FailedJobs"), "over", 1, "TrainJob bare: failed"),
        (bare("Failed", "TrainingRuntimeNotSupported", LOST), "over", 1, f"Refused: {LOST}"),
    ],
)
def test_wait_sees_how_a_train_job_without_a_job_ends(tmp_path: Path, api: Api, made: Object, what: str, code: int, words: str) -> None:
    with_bare(api, made)
    said = run(tmp_path, api, "wait", "trainjob/bare", "--for", what, "--timeout", "1")
    assert (said.exit_code, words in said.output) == (code, True), said.output


def test_a_cluster_without_train_jobs_and_a_user_who_may_not_see_them_get_the_other_jobs(tmp_path: Path, api: Api) -> None:
    del api.objects[TRAIN_JOB]

    class Without(Api):
        code = 404

        def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
            return status(self.code, "no") if "/trainjobs" in url else super().answer(method, url, body)

    for code in (403, 404):
        other = Without()
        other.code, other.objects = code, api.objects
        said = run(tmp_path, other, "get")
        assert "fit " in said.stdout, said.output


def test_get_shows_a_train_job_by_its_kind(tmp_path: Path, api: Api) -> None:
    for words in (["get"], ["get", "trainjobs"], ["get", "trainjob/fit"]):
        said = run(tmp_path, api, *words)
        assert said.stdout.splitlines()[1].split()[:2] == ["fit", "TrainJob"], said.output
    assert run(tmp_path, api, "get", "trainjobs", "-o", "name").stdout == "trainjob.trainer.kubeflow.org/fit\n"
    assert "TrainJob fit is" in run(tmp_path, api, "explain", "fit").stdout


@pytest.mark.parametrize("words", [["get", "trainjob/fit"], ["get", "fit"], ["describe", "fit"]])
def test_data_about_a_train_job_is_the_train_job_and_no_job_behind_it(tmp_path: Path, api: Api, words: list[str]) -> None:
    for output, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        shown = read(run(tmp_path, api, *words, "-o", output).stdout)
        shown = shown if words[0] == "get" else shown["job"]
        assert (shown["apiVersion"], shown["kind"], shown["metadata"]["uid"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob", "t-1")
        assert shown["spec"] == api.objects[TRAIN_JOB]["spec"]
    assert run(tmp_path, api, "get", "fit", "-o", "name").stdout == "trainjob.trainer.kubeflow.org/fit\n"


def test_a_list_of_data_has_each_train_job_once(tmp_path: Path, api: Api) -> None:
    with_bare(api, bare())
    for words in (["get"], ["get", "-A"], ["get", "trainjobs"]):
        shown = json.loads(run(tmp_path, api, *words, "-o", "json").stdout)
        assert [(one["kind"], one["metadata"]["name"]) for one in shown["items"]] == [("TrainJob", "bare"), ("TrainJob", "fit")]


def test_a_train_job_of_mpi_is_shown_and_changed_like_any_other(tmp_path: Path) -> None:
    made = train_job()
    there = owned(made, next(item for item in objects() if item["metadata"]["name"] == "mpi-distributed"))
    api = Api({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "team", "uid": "n"}}, there)
    api.objects[TRAIN_JOB] = made
    assert run(tmp_path, api, "get", "trainjobs").stdout.splitlines()[1].split()[:2] == ["fit", "TrainJob"]
    said = run(tmp_path, api, "suspend", "trainjob/fit")
    assert said.exit_code == 0, said.output
    assert changes(api) == [("PATCH", TRAIN_JOB, {"spec": {"suspend": True}, "metadata": {"uid": "t-1"}})]


def test_initializers_are_not_listed_next_to_their_train_job(tmp_path: Path) -> None:
    made = train_job()
    found = runtime(initializers=[initializer()])
    api = Api({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "team", "uid": "n"}}, *all_owned(made, found))
    api.objects[TRAIN_JOB] = made
    for words, names in (["get"], ["fit"]), (["get", "pytorchjobs"], ["fit", "fit-dataset-initializer"]):
        assert [line.split()[0] for line in run(tmp_path, api, *words).stdout.splitlines()[1:]] == names
    assert "fit-dataset-initializer" in run(tmp_path, api, "get", "fit-dataset-initializer").stdout


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
