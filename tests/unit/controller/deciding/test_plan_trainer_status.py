"""Pods from which the training program can report its progress in the form of Kubeflow Trainer."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from job_builders import OURS, PLAIN, Cluster, elastic_job, job, pod_for, replica, snapshot

from elastic.api import parse
from elastic.api.errors import SpecError
from elastic.api.job import Job, to_object
from elastic.api.names import REPORT
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Create, Delete, Update
from elastic_training.controller.deciding.rendezvous.trainer_status import CA_CERT, TOKEN, URL


def annotated(word: str, one: Job | None = None) -> Job:
    one = one or elastic_job(2)
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, annotations={REPORT: word}))


def with_env(*env: dict[str, str]) -> Job:
    raw = to_object(elastic_job(2))
    raw["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["env"] = list(env)
    return parse(raw, stored=True)[0]


def container(one: Job, *, settings: Any = OURS) -> dict[str, Any]:
    made = pod_for(one, "Worker", 1, replace(snapshot(settings=settings), status_token="secret"))
    found: dict[str, Any]
    (found,) = (c for c in made["spec"]["containers"] if c["name"] == one.kind.container)
    return found | {"volumes": {volume["name"]: volume for volume in made["spec"].get("volumes") or ()}}


def variables(one: Job, *, settings: Any = OURS) -> dict[str, str]:
    env = container(one, settings=settings).get("env") or ()
    return {entry["name"]: entry.get("value", "") for entry in env if entry["name"].startswith("KUBEFLOW_")}


def test_a_program_finds_the_server_its_token_and_the_ca() -> None:
    made = container(elastic_job(2))
    (mount,) = (m for m in made["volumeMounts"] if m["name"] == "elastic-status")
    source = made["volumes"]["elastic-status"]["secret"]
    files = {f"{mount['mountPath']}/{item['path']}": item["key"] for item in source["items"]}
    told = variables(elastic_job(2))
    assert told[URL] == "https://rdzv:8443/v1/jobs/job-uid/trainer-status"
    assert (files[told[TOKEN]], files[told[CA_CERT]]) == ("status-token", "ca.crt")
    assert (source["secretName"], mount["readOnly"]) == ("train-elastic", True)


@pytest.mark.parametrize("name", [URL, TOKEN, CA_CERT])
def test_a_variable_of_the_user_wins(name: str) -> None:
    """The token of this job must not go to a server of the user."""
    one = with_env({"name": name, "value": "mine"})
    assert variables(one) == {name: "mine"}
    assert "elastic-status" not in container(one)["volumes"]


def test_other_variables_of_the_user_stay() -> None:
    env = container(with_env({"name": "MINE", "value": "1"}))["env"]
    assert {"name": "MINE", "value": "1"} in env
    assert any(entry["name"] == URL for entry in env)


def test_an_annotation_turns_the_reports_off() -> None:
    assert variables(annotated("off")) == {}
    assert set(variables(annotated("on"))) == {URL, TOKEN, CA_CERT}
    cluster = Cluster(annotated("off"), settings=OURS)
    cluster.settle()
    assert set(cluster.owned["Secret", "train-elastic"].raw["data"]) == {"token", "ca.crt"}


def test_without_the_rendezvous_server_nothing_is_added() -> None:
    assert variables(elastic_job(2), settings=PLAIN) == {}


@pytest.mark.parametrize("word", ["", "no", "Off"])
def test_another_word_in_the_annotation_is_an_error_that_names_it(word: str) -> None:
    with pytest.raises(SpecError) as error:
        parse(to_object(annotated(word)))
    (problem,) = error.value.problems
    assert problem.at == ("metadata", "annotations", REPORT)
    assert problem.message == f'{REPORT} is "{word}"; write on or off'


KINDS_OF_PODS = [
    job("PyTorchJob", Master=replica(1), Worker=replica(2)),
    elastic_job(2, elastic={"rdzvBackend": "c10d"}),
    *(job(kind, Worker=replica(2, kind=kind)) for kind in ("TFJob", "JAXJob", "PaddleJob")),
    job("XGBoostJob", Master=replica(1, kind="XGBoostJob"), Worker=replica(2, kind="XGBoostJob")),
]


@pytest.mark.parametrize("one", KINDS_OF_PODS, ids=lambda one: f"{one.kind.name}-{'elastic' if one.elastic else 'static'}")
def test_pods_of_every_kind_can_report(one: Job) -> None:
    assert set(variables(one)) == {URL, TOKEN, CA_CERT}
    cluster = Cluster(one, settings=OURS)
    cluster.settle()
    assert set(cluster.owned["Secret", "train-elastic"].raw["data"]) == {"status-token", "ca.crt"}
    assert len(cluster.pods) >= 2


def test_the_processes_of_an_mpi_job_are_not_those_of_its_pods() -> None:
    one = job("MPIJob", Launcher=replica(1, kind="MPIJob"), Worker=replica(2, kind="MPIJob"))
    assert variables(one) == {}


def test_pods_that_were_made_before_stay_and_the_secret_gets_the_token() -> None:
    cluster = Cluster(elastic_job(2), settings=OURS)
    cluster.settle()
    cluster.run_all()
    key = ("Secret", "train-elastic")
    secret = cluster.owned[key]
    before = {name: value for name, value in secret.raw["data"].items() if name != "status-token"}
    cluster.owned[key] = replace(secret, raw={**secret.raw, "data": before})
    actions = cluster.round().actions
    assert [a.name for a in actions if isinstance(a, Update)] == ["train-elastic"]
    assert not [a for a in actions if isinstance(a, Create | Delete) and a.resource == PODS]


def test_a_changed_annotation_replaces_no_pod() -> None:
    cluster = Cluster(elastic_job(2), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.job = annotated("off", cluster.job)
    assert not [a for a in cluster.round().actions if isinstance(a, Create | Delete | Update)]
