"""Names, labels and ports as the Training Operator gives them; clients rely on each letter."""

from __future__ import annotations

import copy

from written_jobs import job

from elastic.api import KINDS, names, parse, template


def labels(name, type, index):
    return {key.removeprefix(names.LABEL_PREFIX): value for key, value in names.pod_labels(parse(job(name))[0], type, index).items()}


def test_pods_are_named_by_job_type_and_index_but_a_launcher_has_no_index():
    assert names.pod_name(KINDS["TFJob"], "a", "PS", 2) == "a-ps-2"
    assert names.pod_name(KINDS["MPIJob"], "a", "Launcher", 0) == "a-launcher"
    assert names.pod_name(KINDS["MPIJob"], "a", "Worker", 1) == "a-worker-1"


def test_pods_carry_upstreams_labels():
    assert labels("pytorch-static", "Worker", 1) == {
        "job-name": "pytorch-static",
        "operator-name": "pytorchjob-controller",
        "replica-type": "worker",
        "replica-index": "1",
    }


def test_the_role_of_master_is_where_clients_look_for_it():
    assert labels("pytorch-static", "Master", 0)["job-role"] == "master"
    assert "job-role" not in labels("pytorch-static", "Worker", 0)
    assert labels("pytorch-elastic", "Worker", 0)["job-role"] == "master"
    assert "job-role" not in labels("pytorch-elastic", "Worker", 1)
    assert labels("tf-parameter-server", "Chief", 0)["job-role"] == "master"
    assert labels("jax", "Worker", 0)["job-role"] == "master"
    assert "job-role" not in labels("paddle-collective", "Worker", 0)
    launcher = labels("mpi-static", "Launcher", 0)
    assert launcher["job-role"] == "master"
    assert "replica-index" not in launcher


def test_the_selector_reads_as_upstreams():
    assert names.selector(KINDS["PyTorchJob"], "J", "Worker") == (
        "training.kubeflow.org/job-name=J,training.kubeflow.org/operator-name=pytorchjob-controller,training.kubeflow.org/replica-type=worker"
    )


def test_the_kinds_port_is_opened_if_the_user_named_none():
    kind = KINDS["PyTorchJob"]
    bare = parse(job("pytorch-elastic"))[0].replicas["Worker"].template
    before = copy.deepcopy(bare)
    assert template.ports(bare, kind) == {"pytorchjob-port": 23456}
    opened = template.with_default_port(bare, kind)
    assert template.default_container(opened, kind)["ports"] == [{"name": "pytorchjob-port", "containerPort": 23456, "protocol": "TCP"}]
    assert bare == before
    named = parse(job("paddle-collective"))[0].replicas["Worker"].template
    assert template.with_default_port(named, KINDS["PaddleJob"]) is named
    assert template.training_port(named, KINDS["PaddleJob"]) == 37777


def test_an_mpi_pod_opens_nothing_and_trains_in_its_first_container():
    kind = KINDS["MPIJob"]
    launcher = parse(job("mpi-static"))[0].replicas["Launcher"].template
    assert template.default_container(launcher, kind)["name"] == "launch"
    assert template.ports(launcher, kind) == {}
    assert template.with_default_port(launcher, kind) is launcher


def test_a_kind_can_be_a_key():
    assert {kind: kind.name for kind in KINDS.values()}[KINDS["JAXJob"]] == "JAXJob"
