"""Check the use that `elastic.Client` makes of its arguments and of answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cli_api import Api as Served
from cli_api import job as a_job
from cli_api import namespace, pod
from client_api import JOB, Api, Open
from train_job_builders import owned, train_job

import elastic
from elastic.api import parse
from elastic.api.kinds import KINDS
from elastic.api.names import NODES
from elastic.client import errors, page
from elastic.client.client import Client
from elastic.client.cluster import connect, speaking
from elastic.client.job import Job
from elastic.client.summary import summary
from elastic.kube.errors import KubeError
from elastic.kube.resources import TRAIN_JOBS


def train(lr: float) -> float:
    return lr


def test_a_function_becomes_a_job_that_parses(opened: Open) -> None:
    client = opened(api := Api())
    job = client.submit(train, [0.1], workers=(1, 4), gpus=2, env={"A": "b"}, max_restarts=1)
    assert repr(job) == "<PyTorchJob default/train>"
    created = api.job
    assert parse(created)[0].metadata.name == "train"
    assert created["spec"]["elasticPolicy"] == {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 1}
    container = created["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert [entry["name"] for entry in container["env"]] == ["A", "ELASTIC_PROGRAM"]
    assert "def train(lr: float)" in container["env"][1]["value"]


def test_on_the_laptop_a_script_runs_from_its_place_and_elsewhere_its_text_travels(opened: Open, tmp_path: Path) -> None:
    script = tmp_path / "my_train.py"
    script.write_text("print('$x')")

    def container(created: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = created["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        return found

    client = opened(api := Api())
    client.submit(script, ["--epochs", 3])
    assert container(api.objects[JOB.replace("train", "my-train")])["command"] == ["torchrun", str(script), "--epochs", "3"]
    client = opened(api := Api(), is_laptop=False)
    client.submit(script, ["--epochs", 3], image="mine:1")
    there = container(api.objects[JOB.replace("train", "my-train")])
    assert there["env"] == [{"name": "ELASTIC_PROGRAM", "value": "print('$$x')"}]
    assert there["command"][3:] == ["my_train.py", "--epochs", "3"]
    assert "workingDir" not in there
    with pytest.raises(errors.BadProgram, match="image is missing"):
        client.submit(script)


def test_a_finished_job_is_replaced_and_a_running_job_is_not(opened: Open) -> None:
    client = opened(api := Api())
    client.submit(train, [1.0])
    with pytest.raises(errors.AlreadyExists, match="choose another name, or submit with replace=True"):
        client.submit(train, [2.0])
    api.job["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    client.submit(train, [3.0])
    client.submit(train, [4.0], replace=True)
    assert [path for path, _ in api.deleted] == [JOB, JOB]


def test_each_change_is_seen_when_it_comes_and_a_job_that_has_ended_is_not_watched(opened: Open) -> None:
    def with_state(state: str) -> dict[str, Any]:
        return {**api.job, "status": {"conditions": [{"type": state, "status": "True"}]}}

    client = opened(api := Api())
    job = client.submit(train, [1.0])
    api.job["metadata"]["resourceVersion"] = "1"
    api.changes = [with_state("Running"), with_state("Succeeded")]
    assert [told.state for told in job.watch()] == ["Pending", "Running", "Succeeded"]
    api.changes = [with_state("Running")]
    assert job.wait("running").state == "Running"
    api.objects[JOB] = with_state("Failed")
    api.asked.clear()
    with pytest.raises(errors.JobFailed):
        job.wait()
    assert [path for _, path, _ in api.asked] == [JOB], "it is not watched"
    api.job.pop("status")
    with pytest.raises(errors.TimedOut, match="train is pending after 0 s"):
        job.wait(timeout=0)


def test_a_job_that_is_deleted_or_replaced_ends_the_watch(opened: Open) -> None:
    client = opened(api := Api())
    job = client.submit(train, [1.0])
    api.changes = [{**api.job, "metadata": {**api.job["metadata"], "uid": "another"}}]
    with pytest.raises(errors.JobFailed, match="another of its name was made"):
        list(job.watch())
    seen = job.watch()
    assert next(seen).state == "Pending"
    del api.objects[JOB]
    with pytest.raises(errors.NotFound):
        list(seen)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workers": "4:1"}, "the least number must be at least 1"),
        ({"workers": (1, 2, 3)}, "neither a number of workers nor MIN:MAX"),
        ({"program": "train.sh"}, "no Python file here"),
        ({"program": __file__, "kwargs": {"a": 1}}, "a script takes no kwargs"),
    ],
)
def test_arguments_that_do_not_do_are_named(opened: Open, arguments: dict[str, Any], words: str) -> None:
    client = opened(Api())
    with pytest.raises(errors.BadProgram, match=words):
        client.submit(**{"program": train, "args": [] if "program" in arguments else [1.0], **arguments})


def test_names_that_are_not_there_are_said(opened: Open) -> None:
    client = opened(Api())
    with pytest.raises(errors.NotFound, match="not found"):
        client.get("nobody")
    with pytest.raises(errors.NotFound, match="kinds: PyTorchJob"):
        client.get("nobody", kind="TorchJob")
    with pytest.raises(errors.Refused, match="make a Client"):
        client.create({"kind": "PyTorchJob", "metadata": {"name": "a", "namespace": "theirs"}})


def refusal(code: int, message: str, **body: Any) -> KubeError:
    return KubeError(code=code, reason="x", message=message, body=body)


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (refusal(404, "not found"), errors.NotFound),
        (refusal(403, "user may not"), errors.Forbidden),
        (refusal(409, "there is one"), errors.AlreadyExists),
        (refusal(422, "spec.x is wrong"), errors.Refused),
        (refusal(503, "try later"), errors.Unreachable),
        (refusal(0, "silent"), errors.Unreachable),
        (aiohttp.ServerDisconnectedError("gone"), errors.Unreachable),
        (TimeoutError(), errors.Unreachable),
        (ConnectionRefusedError("refused"), errors.Unreachable),
    ],
)
def test_errors_keep_their_words_and_their_cause(raised: Exception, becomes: type[Exception]) -> None:
    with pytest.raises(becomes, match="scaling train: ") as caught, speaking("scaling train"):
        raise raised
    assert type(caught.value) is becomes
    assert caught.value.__cause__ is raised


def test_a_refusal_of_the_webhook_is_no_lack_of_rights() -> None:
    with pytest.raises(errors.Refused) as caught, speaking("creating"):
        raise refusal(403, 'admission webhook "x" denied the request: spec.y: unknown field')
    assert type(caught.value) is errors.Refused


def test_a_cluster_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(errors.NoCluster, match="elastic up --detach"):
        connect()
    with pytest.raises(errors.NoCluster, match="no cluster runs in"):
        connect(data_dir=tmp_path)
    with pytest.raises(errors.NoCluster, match="two clusters"):
        connect("a", data_dir="b")
    with pytest.raises(errors.NoCluster, match=f"there is no kubeconfig {tmp_path}/typo; "):
        connect(tmp_path / "typo")


def test_a_lambda_is_refused_by_its_name_and_a_status_is_one_line(opened: Open) -> None:
    client = opened(Api())
    with pytest.raises(errors.BadProgram, match=r"^<lambda> is no function made with def"):
        client.submit(lambda: None)
    assert "kind=<PyTorchJob>, namespace=" in repr(summary(KINDS["PyTorchJob"], {"metadata": {"name": "train"}}))


def test_a_handle_is_of_one_job_and_not_of_the_next_one_of_its_name(opened: Open) -> None:
    """`old.result()` gave what the job returned that had replaced it."""
    client = opened(Api())
    old = client.submit(train, [0.1])
    new = client.submit(train, [0.2], replace=True)
    for act in (old.suspend, lambda: old.scale(2), old.explain, old.result, lambda: old.delete()):
        with pytest.raises(errors.JobFailed, match="train was deleted, and another of its name was made"):
            act()
    assert client.get("train").object == new.object


def test_a_job_that_takes_the_name_during_a_call_is_not_changed(opened: Open) -> None:
    """The handle looked whether the job was its own, and then patched by name: another job could get the name in between."""
    client = opened(api := Api())
    old = client.submit(train, [0.1])
    mine, theirs = api.job, a_job()
    api.before_patch = lambda: api.objects.__setitem__(JOB, theirs)
    for act in (old.suspend, old.resume, lambda: old.scale(2)):
        api.objects[JOB] = mine
        with pytest.raises(errors.JobFailed, match="train was deleted meanwhile, and another job may have its name"):
            act()
    assert theirs == a_job()


def test_a_handle_changes_its_own_job(opened: Open) -> None:
    client = opened(api := Api())
    job = client.submit(train, [0.1])
    job.suspend()
    assert api.job["spec"]["runPolicy"]["suspend"] is True
    job.resume()
    assert api.job["spec"]["runPolicy"]["suspend"] is False
    job.scale(3)
    assert api.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3


def test_a_job_without_workers_is_not_scaled(opened: Open) -> None:
    lone = a_job()
    lone["spec"]["pytorchReplicaSpecs"] = {"Master": {"replicas": 1}}
    with pytest.raises(errors.Refused, match="PyTorchJob train has no replica type Worker, and so cannot be scaled"):
        opened(Api(lone)).get("train").scale(2)


def test_a_deletion_waits_until_the_pods_are_gone(opened: Open) -> None:
    api = Api(a_job(), pod(0))
    job = opened(api).get("train")
    with pytest.raises(errors.TimedOut, match=r"train is not gone after 0\.1 s"):
        job.delete(timeout=0.1)
    assert api.deleted == [(JOB, "uid-train")]
    with pytest.raises(errors.NotFound):
        job.delete()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"lr": 0.1}, r"args is \{'lr': 0.1\}, but must be a list of arguments; did you mean kwargs=\{'lr': 0.1\}\?"),
        ("0.1", r"args is '0.1', but must be a list of arguments; did you mean args=\['0.1'\]\?"),
    ],
)
def test_arguments_that_are_no_list_are_refused(opened: Open, args: Any, words: str) -> None:
    """The keys of a mapping were taken for the arguments, and three restarts later training said so."""
    client = opened(Api())
    with pytest.raises(errors.BadProgram, match=words):
        client.submit(train, args)


def test_a_missing_namespace_is_told_with_how_to_make_it(opened: Open) -> None:
    client = opened(Api(), namespace="research")
    with pytest.raises(errors.NotFound, match='namespaces "research" not found; make it with `kubectl create namespace research`'):
        client.submit(train, [0.1])


def test_the_client_is_imported_when_it_is_asked_for() -> None:
    assert elastic.Client is Client
    assert issubclass(elastic.JobFailed, elastic.ElasticError)
    with pytest.raises(AttributeError, match="no attribute 'Clientt'"):
        _ = elastic.Clientt
    assert Job.__doc__


def test_importing_elastic_and_the_commands_brings_no_official_client() -> None:
    program = (
        "import elastic, sys, elastic.cli.jobs.look, elastic.cli.jobs.change, elastic.cli.jobs.logs; print('kubernetes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60).stdout == "False\n"


@pytest.mark.parametrize(
    ("text", "words"), [("foo: [", "is not YAML"), ("hello", "is not a mapping"), ("contexts: []", "has no current-context")]
)
def test_a_kubeconfig_that_is_none_is_an_error_of_ours_with_its_file(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(errors.NoCluster, match=f"kubeconfig {file} {words}.*--"):
        connect(file)


def test_arguments_of_a_wrong_type_are_named(opened: Open) -> None:
    client = opened(Api())
    with pytest.raises(errors.BadProgram, match="program is 42, but must be a function, or the path of a script"):
        client.submit(42)  # type: ignore[arg-type]
    with pytest.raises(errors.Refused, match="job is None, but must be a mapping"):
        client.create(None)  # type: ignore[arg-type]
    with pytest.raises(errors.Refused, match="metadata is None, but must be a mapping that names the job"):
        client.create({"kind": "PyTorchJob"})


def test_the_job_of_a_train_job_is_called_a_train_job_and_changed_by_it(opened: Open) -> None:
    """`scale` changed the job behind it."""
    api = Served(namespace("team"), train_job(), {**owned(train_job()), "kind": "PyTorchJob"})
    client = opened(api, namespace="team")
    job = client.get("fit")
    assert (repr(job), repr(client.jobs()[0])) == ("<TrainJob team/fit>", "<TrainJob team/fit>")
    assert page.row(job.status)[0] == "TrainJob fit"
    at, of = TRAIN_JOBS.path(namespace="team", name="fit"), {"uid": "t-1"}
    job.suspend()
    assert api.asked[-1] == ("PATCH", at, {"metadata": of, "spec": {"suspend": True}})
    with pytest.raises(errors.OutOfBounds, match="TrainJob fit may have only 2 nodes"):
        job.scale(3)
    job.scale(2)
    assert api.asked[-1] == ("PATCH", at, {"metadata": {"annotations": {NODES: "2"}, **of}})
    del api.objects[next(path for path in api.objects if path.endswith("pytorchjobs/fit"))]
    with pytest.raises(errors.NotFound):
        job.delete()
