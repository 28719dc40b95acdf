"""`elastic run` against an API: what it creates, what it prints at the end, and its exit code."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_api import Api, elastic, job, namespace, served
from click.testing import Result

FILE = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "train"},
    "spec": {
        "pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": [{"name": "pytorch", "image": "i", "command": ["x"]}]}}}}
    },
}


def over(type: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": type, "status": "True", "reason": f"PyTorchJob{type}", "message": message}]}


def run(api: Api, tmp_path: Path, *options: str, file: object = FILE) -> Result:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(file))
    with served(api, tmp_path) as kubeconfig:
        return elastic(kubeconfig, "run", *options, str(tmp_path / "job.yaml"))


@pytest.mark.parametrize(("type", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_the_exit_code_is_the_jobs_and_the_reason_stands_last(tmp_path: Path, type: str, code: int) -> None:
    api = Api()
    api.status_of_new = over(type, "so it ended")
    said = run(api, tmp_path)
    assert said.exit_code == code, said.output
    last = said.stdout.splitlines()[-1]
    assert last.endswith("PyTorchJob train: succeeded" if code == 0 else "PyTorchJob train: failed: so it ended")
    assert f"train {type}: so it ended" in said.stdout


def test_a_namespace_that_is_missing_is_made_when_asked(tmp_path: Path) -> None:
    said = run(Api(), tmp_path, "-n", "research")
    assert said.exit_code == 2
    assert "make it with `kubectl create namespace research`, or with `elastic run --create-namespace`" in said.stderr
    for api in (Api(), Api(namespace("research"))):
        api.status_of_new = over("Succeeded", "done")
        assert run(api, tmp_path, "-n", "research", "--create-namespace").exit_code == 0
        assert "/apis/kubeflow.org/v1/namespaces/research/pytorchjobs/train" in api.objects


def test_each_namespace_that_a_file_names_is_made_when_asked(tmp_path: Path) -> None:
    """Only the default one was, and the file was refused."""
    api = Api()
    api.status_of_new = over("Succeeded", "done")
    file = FILE | {"metadata": {"name": "train", "namespace": "theirs"}}
    said = run(api, tmp_path, "--create-namespace", file=file)
    assert said.exit_code == 0, said.output
    assert "/apis/kubeflow.org/v1/namespaces/theirs/pytorchjobs/train" in api.objects
    made = [body["metadata"]["name"] for method, path, body in api.asked if (method, path) == ("POST", "/api/v1/namespaces")]
    assert made == ["theirs"], "nothing goes into another"


def test_warnings_are_told_before_the_run_and_with_strict_instead_of_it(tmp_path: Path) -> None:
    """A job with a misspelt field ran to its end without a word."""
    api, file = Api(), FILE | {"spec": FILE["spec"] | {"runPolcy": {}}}  # type: ignore[operator]
    api.status_of_new = over("Succeeded", "done")
    said = run(api, tmp_path, file=file)
    assert said.exit_code == 0, said.output
    warning = f"{tmp_path}/job.yaml:15: warning: spec.runPolcy: unknown field, it has no effect; did you mean runPolicy?\n"
    assert said.stderr == warning
    refused = run(api, tmp_path, "--strict", "--replace", file=file)
    assert (refused.exit_code, warning.replace(": warning:", ": error:") in refused.stderr) == (2, True)
    assert run(api, tmp_path, "--strict", "--replace").exit_code == 0


def test_a_refusal_is_explained_as_by_other_commands(tmp_path: Path) -> None:
    api = Api()
    api.refuses = (401, "Unauthorized")
    said = run(api, tmp_path)
    words = "PyTorchJob train: the API server does not accept your credentials: Unauthorized; renew them or choose another --kubeconfig"
    assert (said.exit_code, words in said.stderr) == (2, True)


def test_a_job_that_is_there_is_in_the_way(tmp_path: Path) -> None:
    said = run(Api(job()), tmp_path)
    assert said.exit_code == 2
    assert "PyTorchJob train is there already in namespace default" in said.stderr


def test_a_script_needs_the_laptop_cluster(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with served(Api(), tmp_path) as kubeconfig:
        said = elastic(kubeconfig, "run", str(tmp_path / "train.py"))
    assert said.exit_code == 2
    assert "a script runs on the laptop cluster, whose containers see your files" in said.stderr
