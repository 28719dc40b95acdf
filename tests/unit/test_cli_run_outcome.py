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
