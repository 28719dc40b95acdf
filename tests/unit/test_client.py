"""Check the use that `elastic.Client` makes of its arguments and of answers, with the official client in the middle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from client_api import Api, Fake, refusal
from train_job_builders import owned, train_job

import elastic
from elastic.api import parse
from elastic.api.kinds import KINDS
from elastic.client import client as module
from elastic.client import errors, page
from elastic.client import job as job_module
from elastic.client.client import Client
from elastic.client.cluster import connect, speaking
from elastic.client.job import Job
from elastic.client.summary import summary


def made(monkeypatch: pytest.MonkeyPatch, *, is_laptop: bool = True) -> tuple[Client, Api]:
    api = Api()
    monkeypatch.setattr(module, "connect", lambda *_, **__: Fake(api, "default", is_laptop))
    return Client(), api


def train(lr: float) -> float:
    return lr


def test_a_function_becomes_a_job_that_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    client, api = made(monkeypatch)
    job = client.submit(train, [0.1], workers=(1, 4), gpus=2, env={"A": "b"}, max_restarts=1)
    assert repr(job) == "<PyTorchJob default/train>"
    created = api.objects["train"]
    assert parse(created)[0].metadata.name == "train"
    assert created["spec"]["elasticPolicy"] == {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 1}
    container = created["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert [entry["name"] for entry in container["env"]] == ["A", "ELASTIC_PROGRAM"]
    assert "def train(lr: float)" in container["env"][1]["value"]


def test_on_the_laptop_a_script_runs_from_its_place_and_elsewhere_its_text_travels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "my_train.py"
    script.write_text("print('$x')")

    def container(created: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = created["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        return found

    client, api = made(monkeypatch)
    client.submit(script, ["--epochs", 3])
    assert container(api.objects["my-train"])["command"] == ["torchrun", str(script), "--epochs", "3"]
    client, api = made(monkeypatch, is_laptop=False)
    client.submit(script, ["--epochs", 3], image="mine:1")
    there = container(api.objects["my-train"])
    assert there["env"] == [{"name": "ELASTIC_PROGRAM", "value": "print('$$x')"}]
    assert there["command"][3:] == ["my_train.py", "--epochs", "3"]
    assert "workingDir" not in there
    with pytest.raises(errors.BadProgram, match="image is missing"):
        client.submit(script)


def test_a_job_that_is_over_is_replaced_and_one_that_runs_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    client, api = made(monkeypatch)
    client.submit(train, [1.0])
    with pytest.raises(errors.AlreadyExists, match="choose another name, or submit with replace=True"):
        client.submit(train, [2.0])
    api.objects["train"]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    client.submit(train, [3.0])
    client.submit(train, [4.0], replace=True)
    assert api.deleted == ["train", "train"]


def test_each_change_is_seen_when_it_comes_and_what_is_over_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watch:
        def stream(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
            for state in ("Running", "Succeeded"):
                yield {"type": "MODIFIED", "object": with_state(api.objects["train"], state)}
            raise AssertionError("the job is over")

    def with_state(job: dict[str, Any], state: str) -> dict[str, Any]:
        return {**job, "status": {"conditions": [{"type": state, "status": "True"}]}}

    client, api = made(monkeypatch)
    monkeypatch.setattr(job_module.watches, "Watch", Watch)
    monkeypatch.setattr(Job, "_pods_of", lambda self, job: [])
    job = client.submit(train, [1.0])
    api.objects["train"]["metadata"]["resourceVersion"] = "1"
    assert [told.state for told in job.watch()] == ["Pending", "Running", "Succeeded"]
    assert job.wait("running").state == "Running"
    api.objects["train"] = with_state(api.objects["train"], "Failed")
    monkeypatch.setattr(job_module.watches, "Watch", None)
    with pytest.raises(errors.JobFailed):
        job.wait()
    api.objects["train"].pop("status")
    monkeypatch.setattr(Job, "_changes", lambda *_: iter(()))
    with pytest.raises(errors.TimedOut, match="train is pending after 0 s"):
        job.wait(timeout=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workers": "4:1"}, "the least number must be at least 1"),
        ({"workers": (1, 2, 3)}, "neither a number of workers nor MIN:MAX"),
        ({"program": "train.sh"}, "no Python file here"),
        ({"program": __file__, "kwargs": {"a": 1}}, "a script takes no kwargs"),
    ],
)
def test_arguments_that_do_not_do_are_named(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], words: str) -> None:
    client, _ = made(monkeypatch)
    with pytest.raises(errors.BadProgram, match=words):
        client.submit(**{"program": train, "args": [] if "program" in arguments else [1.0], **arguments})


def test_names_that_are_not_there_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = made(monkeypatch)
    with pytest.raises(errors.NotFound, match="not found"):
        client.get("nobody")
    with pytest.raises(errors.NotFound, match="kinds: PyTorchJob"):
        client.get("nobody", kind="TorchJob")
    with pytest.raises(errors.Refused, match="make a Client"):
        client.create({"kind": "PyTorchJob", "metadata": {"name": "a", "namespace": "theirs"}})


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (refusal(404, "not found"), errors.NotFound),
        (refusal(403, "user may not"), errors.Forbidden),
        (refusal(409, "there is one"), errors.AlreadyExists),
        (refusal(422, "spec.x is wrong"), errors.Refused),
        (refusal(503, "try later"), errors.Unreachable),
        (urllib3.exceptions.ReadTimeoutError(None, "", "silent"), errors.Unreachable),  # type: ignore[arg-type]
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
        connect(None, context=None, namespace=None, data_dir=None)
    with pytest.raises(errors.NoCluster, match="no cluster runs in"):
        connect(None, context=None, namespace=None, data_dir=tmp_path)
    with pytest.raises(errors.NoCluster, match="two clusters"):
        connect("a", context=None, namespace=None, data_dir="b")
    with pytest.raises(errors.NoCluster, match=f"there is no kubeconfig {tmp_path}/typo; "):
        connect(tmp_path / "typo", context=None, namespace=None, data_dir=None)


def test_a_lambda_is_refused_by_its_name_and_a_status_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = made(monkeypatch)
    with pytest.raises(errors.BadProgram, match=r"^<lambda> is no function made with def"):
        client.submit(lambda: None)
    assert "kind=<PyTorchJob>, namespace=" in repr(summary(KINDS["PyTorchJob"], {"metadata": {"name": "train"}}))


def test_a_handle_is_of_one_job_and_not_of_the_next_one_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`old.result()` gave what the job returned that had replaced it."""
    client, _ = made(monkeypatch)
    old = client.submit(train, [0.1])
    new = client.submit(train, [0.2], replace=True)
    for act in (old.suspend, lambda: old.scale(2), old.explain, old.result, lambda: old.delete()):
        with pytest.raises(errors.JobFailed, match="train was deleted, and another of its name was made"):
            act()
    assert client.get("train").object is new.object


def test_a_job_that_takes_the_name_during_a_call_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handle looked whether the job was its own, and then patched by name: another job could get the name in between."""
    client, api = made(monkeypatch)
    old = client.submit(train, [0.1])
    next_one = {**api.objects["train"], "metadata": {"name": "train", "uid": "uid-of-the-next"}, "spec": {"replicas": 1}}
    monkeypatch.setattr(api, "before_patch", lambda name: api.objects.__setitem__(name, next_one))
    for act in (old.suspend, old.resume, lambda: old.scale(2)):
        with pytest.raises(errors.JobFailed, match="train was deleted, and another of its name was made"):
            act()
    assert next_one["spec"] == {"replicas": 1}


def test_a_handle_changes_its_own_job(monkeypatch: pytest.MonkeyPatch) -> None:
    client, api = made(monkeypatch)
    job = client.submit(train, [0.1])
    job.suspend()
    assert api.objects["train"]["spec"]["runPolicy"] == {"suspend": True}
    job.scale(3)
    assert api.objects["train"]["spec"]["replicas"] == 3


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"lr": 0.1}, r"args is \{'lr': 0.1\}, but must be a list of arguments; did you mean kwargs=\{'lr': 0.1\}\?"),
        ("0.1", r"args is '0.1', but must be a list of arguments; did you mean args=\['0.1'\]\?"),
    ],
)
def test_arguments_that_are_no_list_are_refused(monkeypatch: pytest.MonkeyPatch, args: Any, words: str) -> None:
    """The keys of a mapping were taken for the arguments, and three restarts later training said so."""
    client, _ = made(monkeypatch)
    with pytest.raises(errors.BadProgram, match=words):
        client.submit(train, args)


def test_a_missing_namespace_is_told_with_how_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    client, api = made(monkeypatch)
    error = refusal(404, 'namespaces "research" not found')
    error.body = json.dumps({"message": 'namespaces "research" not found', "details": {"name": "research", "kind": "namespaces"}})

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(api, "create_namespaced_custom_object", refuse)
    with pytest.raises(errors.NotFound, match='namespaces "research" not found; make it with `kubectl create namespace research`'):
        client.submit(train, [0.1])


def test_the_client_is_imported_when_it_is_asked_for() -> None:
    assert elastic.Client is Client
    assert issubclass(elastic.JobFailed, elastic.ElasticError)
    with pytest.raises(AttributeError, match="no attribute 'Clientt'"):
        _ = elastic.Clientt
    assert Job.__doc__


@pytest.mark.parametrize(
    ("text", "words"), [("foo: [", "is not YAML"), ("hello", "is not a mapping"), ("contexts: []", "has no current-context")]
)
def test_a_kubeconfig_that_is_none_is_an_error_of_ours_with_its_file(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(errors.NoCluster, match=f"kubeconfig {file} {words}.*--"):
        connect(file, context=None, namespace=None, data_dir=None)


def test_arguments_of_a_wrong_type_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = made(monkeypatch)
    with pytest.raises(errors.BadProgram, match="program is 42, but must be a function, or the path of a script"):
        client.submit(42)  # type: ignore[arg-type]
    with pytest.raises(errors.Refused, match="job is None, but must be a mapping"):
        client.create(None)  # type: ignore[arg-type]
    with pytest.raises(errors.Refused, match="metadata is None, but must be a mapping that names the job"):
        client.create({"kind": "PyTorchJob"})


class OfTrainJobs(Api):
    """An API server with a TrainJob and the job that belongs to it. It notes which of them is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.objects["fit"] = owned(train_job())
        self.changed: list[tuple[str, Any]] = []

    def patch_namespaced_custom_object(self, *, name: str, body: dict[str, Any], **at: Any) -> None:
        self.changed.append((at["plural"], body))

    def delete_namespaced_custom_object(self, *, name: str, body: Any, **at: Any) -> None:
        self.changed.append((at["plural"], body.preconditions.uid))
        del self.objects[name]

    def list_namespaced_custom_object(self, *_: Any, **at: Any) -> Any:
        return {"items": list(self.objects.values())}


def test_the_job_of_a_train_job_is_called_a_train_job_and_changed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    api = OfTrainJobs()
    monkeypatch.setattr(module, "connect", lambda *_, **__: Fake(api, "team", True))
    client = Client()
    job = client.get("fit")
    assert (repr(job), repr(client.jobs()[0])) == ("<TrainJob team/fit>", "<TrainJob team/fit>")
    assert page.row(job.status)[0] == "TrainJob fit"
    job.suspend()
    assert api.changed.pop() == ("trainjobs", {"metadata": {"uid": "t-1"}, "spec": {"suspend": True}})
    job.delete()
    assert api.changed.pop() == ("trainjobs", "t-1")
