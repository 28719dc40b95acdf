"""The variables of the container that trains, for each kind, in upstream's order."""

import json
from dataclasses import replace
from typing import Any

import pytest
from job_builders import PLAIN, Cluster, job, pod_for, replica, snapshot

from elastic.api.job import Job
from elastic_training.controller.facts.snapshot import PodPhase
from elastic_training.rendezvous.delivery import restricted


def told(one: Job, type: str, index: int = 0) -> list[tuple[str, str]]:
    spec = pod_for(one, type, index, snapshot(settings=PLAIN))["spec"]
    return [(entry["name"], entry.get("value", "by-reference")) for entry in spec["containers"][0].get("env", ())]


def made(kind: str, **counts: int) -> Job:
    options = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}} if counts.pop("elastic", 0) else {}
    return job(kind, **options, **{type: replica(count, kind=kind) for type, count in counts.items()})


MASTER = "MASTER_PORT=23456 PET_MASTER_PORT=23456 MASTER_ADDR=train-master-0 PET_MASTER_ADDR=train-master-0"
PADDLE = "PYTHONUNBUFFERED=1 PADDLE_JOB_ID=train PADDLE_NNODES=2"
TREES = "MASTER_PORT=9999 MASTER_ADDR=train-master-0 WORLD_SIZE=3"
CROWD = "PYTHONUNBUFFERED=1 WORKER_PORT=9999 WORKER_ADDRS=train-worker-0,train-worker-1"
TORCHRUN = "PYTHONUNBUFFERED=1 PET_NPROC_PER_NODE=auto"


@pytest.mark.parametrize(
    ("one", "type", "index", "expected"),
    [
        (
            made("PyTorchJob", Master=1, Worker=2),
            "Worker",
            1,
            f"PYTHONUNBUFFERED=1 {MASTER} WORLD_SIZE=3 RANK=2 PET_NODE_RANK=2 PET_NPROC_PER_NODE=auto PET_NNODES=3",
        ),
        (made("PyTorchJob", Worker=2), "Worker", 0, f"{TORCHRUN} PET_NNODES=2"),
        (
            made("PyTorchJob", Worker=2, elastic=1),
            "Worker",
            1,
            f"{TORCHRUN} PET_RDZV_ENDPOINT=train-worker-0:23456 PET_RDZV_BACKEND=c10d PET_NNODES=1:4",
        ),
        (made("XGBoostJob", Master=1, Worker=2), "Master", 0, f"{TREES} RANK=0 {CROWD}"),
        (made("XGBoostJob", Master=1, Worker=2), "Worker", 1, f"{TREES} RANK=2 {CROWD}"),
        (made("PaddleJob", Worker=2), "Worker", 0, f"{PADDLE} POD_IP_DUMMY=by-reference PADDLE_MASTER=$(POD_IP_DUMMY):36543"),
        (made("PaddleJob", Worker=2), "Worker", 1, f"{PADDLE} PADDLE_MASTER=train-worker-0:36543"),
        (made("PaddleJob", Master=1, Worker=1), "Worker", 0, f"{PADDLE} PADDLE_MASTER=train-master-0:36543 PADDLE_TRAINER_NUM=1"),
        (
            made("JAXJob", Worker=2),
            "Worker",
            1,
            "PYTHONUNBUFFERED=1 COORDINATOR_PORT=6666 COORDINATOR_ADDRESS=train-worker-0 NUM_PROCESSES=2 PROCESS_ID=1",
        ),
    ],
)
def test_a_replica_is_told_what_upstream_tells_it_in_its_order(one: Job, type: str, index: int, expected: str) -> None:
    assert " ".join(f"{name}={value}" for name, value in told(one, type, index)) == expected


def test_a_number_of_processes_that_is_none_is_passed_on_as_it_is() -> None:
    """A digit that is no decimal number ended every look at the job in an error of ours; the webhook only warns of it."""
    replicas = {"Master": replica(1), "Worker": replica(2)}
    assert ("WORLD_SIZE", "3") in told(job("PyTorchJob", nprocPerNode="\u00b2", **replicas), "Worker")


def test_every_replica_of_tensorflow_knows_the_whole_cluster_the_evaluator_too() -> None:
    ((name, text),) = told(made("TFJob", Chief=1, PS=1, Worker=2, Evaluator=1), "Worker", 1)
    workers = [f"train-worker-{index}.team.svc:2222" for index in range(2)]
    others = {word: [f"train-{word}-0.team.svc:2222"] for word in ("chief", "evaluator", "ps")}
    assert name == "TF_CONFIG"
    assert json.loads(text) == {"cluster": others | {"worker": workers}, "task": {"type": "worker", "index": 1}, "environment": "cloud"}


def test_a_single_replica_of_tensorflow_is_told_nothing() -> None:
    assert told(made("TFJob", Worker=1), "Worker") == []


@pytest.mark.parametrize(
    ("type", "cluster"),
    [
        ("Worker", {"worker": {"0": "train-worker-0.team.svc:2222"}, "ps": ["train-ps-0.team.svc:2222"]}),
        ("PS", {"worker": {}, "ps": ["train-ps-0.team.svc:2222"]}),
        ("Chief", {"worker": {}, "ps": []}),
    ],
)
def test_with_dynamic_workers_each_knows_only_what_it_needs(type: str, cluster: Any) -> None:
    one = job("TFJob", enableDynamicWorker=True, **{word: replica(1, kind="TFJob") for word in ("Chief", "PS", "Worker")})
    ((_, text),) = told(one, type)
    assert json.loads(text) == {"cluster": cluster, "task": {"type": type.lower(), "index": 0}}


def test_the_parts_of_an_mxjob_meet_at_its_scheduler() -> None:
    (name, text), *rest = told(made("MXJob", Scheduler=1, Server=1, Worker=2), "Worker", 1)
    urls = {"scheduler": 1, "server": 1, "worker": 2}
    cluster = {word: [{"url": f"train-{word}-{index}", "port": 9091} for index in range(count)] for word, count in urls.items()}
    assert name == "MX_CONFIG"
    assert json.loads(text) == {"cluster": cluster, "labels": dict.fromkeys(urls, ""), "task": {"type": "worker", "index": 1}}
    assert rest == [
        ("DMLC_PS_ROOT_PORT", "9091"),
        ("DMLC_PS_ROOT_URI", "train-scheduler-0"),
        ("DMLC_NUM_SERVER", "1"),
        ("DMLC_NUM_WORKER", "2"),
        ("DMLC_ROLE", "worker"),
        ("DMLC_USE_KUBERNETES", "1"),
        ("DMLC_WORKER_ID", "1"),
    ]


def test_the_search_of_an_mxjob_ends_with_its_tuner_and_tells_the_servers_key() -> None:
    types = {word: replica(1, kind="MXJob", restart="Never") for word in ("TunerTracker", "TunerServer", "Tuner")}
    types["TunerServer"]["template"]["metadata"] = {"annotations": {"tuner-server-key": "2080ti"}}
    cluster = Cluster(job("MXJob", jobMode="MXTune", **types))
    ((name, text),) = told(cluster.job, "Tuner")
    assert name == "MX_CONFIG"
    assert json.loads(text)["labels"] == {"tuner": "", "tunerserver": "2080ti", "tunertracker": ""}
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    cluster.set("train-tuner-0", PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.state() == "Succeeded"


def test_a_variable_that_the_user_sets_too_stands_before_ours_which_wins() -> None:
    workers = replica(1)
    workers["template"]["spec"]["containers"][0]["env"] = [{"name": "PET_NNODES", "value": "7"}]
    workers["template"]["spec"]["containers"].append({"name": "log", "image": "log"})
    one = job(Worker=workers)
    assert told(one, "Worker") == [("PET_NNODES", "7"), ("PYTHONUNBUFFERED", "1"), ("PET_NPROC_PER_NODE", "auto"), ("PET_NNODES", "1")]
    beside = pod_for(one, "Worker", 0, snapshot())["spec"]["containers"][1]["env"]
    assert [entry["name"] for entry in beside] == ["PYTHONUNBUFFERED", "PET_NPROC_PER_NODE", "PET_NNODES"]


def waits(**settings: Any) -> Any:
    one = made("PyTorchJob", Master=1, Worker=1)
    (container,) = pod_for(one, "Worker", 0, snapshot(settings=replace(PLAIN, **settings)))["spec"]["initContainers"]
    assert "initContainers" not in pod_for(one, "Master", 0, snapshot())["spec"]
    return container


def test_workers_wait_for_their_masters_name_as_upstreams_do() -> None:
    assert waits(init_tries=7)["image"] == "alpine:3.10"
    assert waits(init_tries=7)["command"][2].startswith("err=1;for i in $(seq 7); do if nslookup train-master-0; then")


def test_workers_can_wait_by_our_own_image_which_restricted_namespaces_admit_and_which_gives_up_never() -> None:
    found = waits(init_image="registry/ours:1", init_command=("python3", "-m", "elastic_worker.startup.resolve"))
    assert (found["name"], found["image"]) == ("init-pytorch", "registry/ours:1")
    assert found["command"] == ["python3", "-m", "elastic_worker.startup.resolve", "train-master-0"]
    assert found["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize(("command", "context"), [((), None), (("python3", "-m", "elastic_worker.mpi.kubectl"), restricted({}))])
def test_the_container_with_the_exec_client_is_admitted_as_restricted_if_it_is_our_image(
    command: tuple[str, ...], context: dict[str, Any] | None
) -> None:
    one = made("MPIJob", Launcher=1, Worker=2)
    (found,) = pod_for(one, "Launcher", 0, snapshot(settings=replace(PLAIN, kubectl_command=command)))["spec"]["initContainers"]
    assert found.get("securityContext") == context


def test_an_mpi_launcher_is_told_what_upstream_tells_it_before_anything_else() -> None:
    one = made("MPIJob", Launcher=1, Worker=2)
    containers = pod_for(one, "Launcher", 0, snapshot(settings=PLAIN))["spec"]["containers"]
    variables = [f"{entry['name']}={entry['value']}" for entry in containers[0]["env"]]
    upstreams = [
        "OMPI_MCA_plm_rsh_agent=/etc/mpi/kubexec.sh",
        "OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile",
        "NVIDIA_VISIBLE_DEVICES=",
        "NVIDIA_DRIVER_CAPABILITIES=",
        "I_MPI_HYDRA_BOOTSTRAP=rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC=/etc/mpi/kubexec.sh",
    ]
    assert variables[: len(upstreams)] == upstreams
