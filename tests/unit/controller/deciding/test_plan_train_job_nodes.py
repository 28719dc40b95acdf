"""The pods of a TrainJob's nodes: their names, their Service, and the numbers by which clients find them."""

from typing import Any

import msgspec
from job_builders import OURS, Cluster
from train_job_builders import owned, runtime, train_job

from elastic.api import parse
from elastic.api.job import Object
from elastic.api.names import NODE_NUMBER
from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Create
from elastic_training.controller.deciding.rendezvous.trainer_status import CA_CERT, TOKEN, URL
from elastic_training.controller.facts.snapshot import PodPhase, WorldSeen, pod_from

BOUNDS = {"elastic-training/min-nodes": "1", "elastic-training/max-nodes": "4"}


def cluster(nodes: int = 3, found: Object | None = None) -> Cluster:
    """Return a TrainJob whose nodes all run, and meet at our rendezvous if they meet."""
    annotations = BOUNDS if found is None else {}
    job, _ = parse(owned(train_job(annotations=annotations, trainer={"numNodes": nodes}), found))
    made = Cluster(job, settings=OURS)
    made.settle()
    made.run_all()
    made.world = WorldSeen(generation=1, members=frozenset(made.pods), phase="running")
    made.settle()
    return made


def resized(town: Cluster, nodes: int) -> None:
    worker = town.job.replicas["Worker"]
    town.job = msgspec.structs.replace(town.job, replicas={"Worker": msgspec.structs.replace(worker, replicas=nodes)})


def numbers(town: Cluster) -> dict[str, int | None]:
    return {name: pod.number for name, pod in town.pods.items()}


def first_pods(found: Object | None = None) -> list[dict[str, Any]]:
    job, _ = parse(owned(train_job(annotations=BOUNDS if found is None else {}), found))
    made = Cluster(job, settings=OURS)
    actions = (action for plan in made.settle() for action in plan.actions)
    return [action.object for action in actions if isinstance(action, Create) and action.resource == PODS]


def test_nodes_are_named_and_numbered_as_at_kubeflow_trainer() -> None:
    assert numbers(cluster()) == {"fit-node-0-0": 0, "fit-node-0-1": 1, "fit-node-0-2": 2}


def test_a_replacement_of_node_0_has_its_number_and_another_name() -> None:
    town = cluster()
    town.set("fit-node-0-0", PodPhase.RUNNING, is_deleting=True)
    town.settle()
    new = set(town.pods) - {"fit-node-0-0", "fit-node-0-1", "fit-node-0-2"}
    assert [numbers(town)[name] for name in new] == [0]


def test_a_scale_in_keeps_the_lowest_numbers_for_any_names_of_pods() -> None:
    town = cluster()
    town.set("fit-node-0-0", PodPhase.RUNNING, is_deleting=True)
    town.settle()
    del town.pods["fit-node-0-0"]
    town.run_all()
    town.world = WorldSeen(generation=2, members=frozenset(town.pods), phase="running")
    town.settle()
    resized(town, 1)
    town.settle()
    assert town.job.status.elastic is not None
    leaving = {entry.member for entry in town.job.status.elastic.leaving}
    staying = {name: number for name, number in numbers(town).items() if name not in leaving}
    assert list(staying.values()) == [0]


def test_peers_find_each_other_by_one_service() -> None:
    (pod, *_) = first_pods()
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("fit-node-0-0", "fit")
    town = cluster()
    service = town.owned["Service", "fit"].raw
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert town.services == {}


def test_the_library_and_the_rendezvous_reach_the_container_of_the_nodes() -> None:
    (pod, *_) = first_pods()
    (container,) = pod["spec"]["containers"]
    names = [entry["name"] for entry in container["env"]]
    assert container["name"] == "node"
    assert {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_RDZV_ENDPOINT", "JOB_COMPLETION_INDEX"} <= set(names)


def test_plain_nodes_get_only_their_number_and_the_place_for_reports() -> None:
    pods = first_pods(runtime({"numNodes": 2}))
    assert [pod["metadata"]["labels"][NODE_NUMBER] for pod in pods] == ["0", "1"]
    names = ["JOB_COMPLETION_INDEX", URL, CA_CERT, TOKEN]
    assert [[entry["name"] for entry in pod["spec"]["containers"][0]["env"]] for pod in pods] == [names] * 2


def test_plain_nodes_have_all_to_succeed() -> None:
    town = cluster(2, runtime({"numNodes": 2}))
    town.set("fit-node-0-0", PodPhase.SUCCEEDED, code=0)
    town.settle()
    assert town.state() == "Running"
    town.set("fit-node-0-1", PodPhase.SUCCEEDED, code=0)
    town.settle()
    assert town.state() == "Succeeded"


def test_a_number_that_is_none_is_no_number() -> None:
    raw = {"metadata": {"name": "fit-node-0-1", "labels": {NODE_NUMBER: "one"}}}
    assert pod_from(raw).number is None


def test_conditions_name_the_kind_that_the_user_knows() -> None:
    """`elastic wait trainjob/fit` spoke of a PyTorchJob, which the user had not created."""
    words = [condition.message for condition in cluster().job.status.conditions]
    assert words[0] == "TrainJob fit is created."
    assert not any("PyTorchJob" in message for message in words)
