"""Containers that a runtime's envInjection names get the variables of torchrun."""

from typing import Any

from train_job_builders import all_owned, initializer, runtime, train_job

from elastic.api.job import Object
from elastic.api.kinds import WORKER
from elastic_training.controller.deciding.trainjobs.lowering import lower

AT = "ClusterTrainingRuntime.torch-distributed.spec.mlPolicy.torch.envInjection"


def injecting(*targets: tuple[str, str], **more: Any) -> Object:
    """Return a runtime with these targets, JOB and CONTAINER, whose nodes have an init container `check`."""
    policy = {"torch": {"envInjection": {"targets": [{"jobName": job, "containerNames": [name]} for job, name in targets]}}}
    init = [{"name": "check", "image": "any", "env": [{"name": "PET_NNODES", "value": "old"}, {"name": "OWN", "value": "1"}]}]
    return runtime(policy, pod={"initContainers": init}, **more)


def variables(container: Object) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def pod(job: Object) -> Object:
    spec: Object = job["spec"]["pytorchReplicaSpecs"][WORKER]["template"]["spec"]
    return spec


def test_a_check_before_training_knows_its_peers() -> None:
    (nodes,) = all_owned(train_job(), injecting(("node", "check")))
    found = variables(pod(nodes)["initContainers"][0])
    assert found == {
        "OWN": "1",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": None,
        "PET_MASTER_ADDR": "fit-node-0-0.fit",
        "PET_MASTER_PORT": "29500",
    }
    assert "env" not in pod(nodes)["containers"][0], "the nodes meet at our rendezvous"


def test_a_container_of_an_initializer_may_be_a_target() -> None:
    nodes, loads = all_owned(train_job(), injecting(("dataset-initializer", "dataset-initializer"), initializers=[initializer()]))
    assert variables(pod(loads)["containers"][0])["PET_NNODES"] == "2"
    assert variables(pod(nodes)["initContainers"][0]) == {"PET_NNODES": "old", "OWN": "1"}


def test_a_number_of_nodes_that_may_change_is_told_to_nobody() -> None:
    made, problems = lower(train_job(annotations={"elastic-training/max-nodes": "4"}), injecting(("node", "check")))
    assert made == []
    assert [str(problem) for problem in problems] == [
        f"{AT}: envInjection tells containers one number of nodes, but this TrainJob may have 2 to 4; "
        "remove envInjection, or the annotations that set the bounds"
    ]


def test_a_target_that_does_not_exist_is_refused_with_its_name() -> None:
    _, problems = lower(train_job(), injecting(("node", "chek"), ("worker", "check")))
    words = 'spec.runtimeRef: envInjection target podSet "{}" container "{}" not found in runtime template; add it, or remove the target'
    assert [str(problem) for problem in problems] == [words.format("node", "chek"), words.format("worker", "check")]
