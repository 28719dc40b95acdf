"""A runtime's podGroupPolicy becomes the pod group of the nodes, if the controller makes groups for this scheduler."""

import pytest
from job_builders import Cluster, snapshot
from train_job_builders import all_owned, initializer, runtime, train_job

from elastic.api import parse
from elastic.api.job import Object
from elastic_training.controller.deciding.trainjobs.lowering import lower
from elastic_training.controller.deciding.trainjobs.plan import TrainJobView, plan
from elastic_training.controller.facts.settings import Settings

QUEUE = "scheduling.volcano.sh/queue-name"


def gang(policy: Object, *, queue: str | None = None, **more: Object) -> Object:
    """Return a runtime with this podGroupPolicy, and this queue in the metadata of its JobSet."""
    found = runtime(**more)
    found["spec"]["podGroupPolicy"] = policy
    if queue is not None:
        found["spec"]["template"]["metadata"] = {"annotations": {QUEUE: queue}}
    return found


def group(job: Object, scheduler: str) -> Object:
    """Return the spec of the pod group that the controller makes for a job."""
    town = Cluster(parse(job)[0], settings=Settings(gang_scheduler=scheduler))
    town.settle()
    (found,) = (owned for (kind, _), owned in town.owned.items() if kind == "PodGroup")
    spec: Object = found.raw["spec"]
    return spec


def test_volcano_queues_the_nodes_and_the_initializers_as_the_runtime_says() -> None:
    found = gang({"volcano": {}}, queue="gold", pod={"priorityClassName": "high"}, initializers=[initializer()])
    nodes, loads = all_owned(train_job(), found)
    del nodes["metadata"]["annotations"]["elastic-training/waits-for"]
    assert group(nodes, "volcano") == {"minMember": 2, "queue": "gold", "priorityClassName": "high", "minResources": {}}
    assert group(loads, "volcano") == {"minMember": 1, "queue": "gold", "minResources": {}}


def test_a_patch_moves_a_train_job_to_another_queue() -> None:
    patch = {"manager": "a.b/c", "trainingRuntimeSpec": {"template": {"metadata": {"annotations": {QUEUE: "silver"}}}}}
    (nodes,) = all_owned(train_job(runtimePatches=[patch]), gang({"volcano": {}}, queue="gold"))
    assert group(nodes, "volcano")["queue"] == "silver"


def test_the_scheduler_plugins_wait_as_long_as_the_runtime_says_for_the_least_nodes() -> None:
    bounds = {"elastic-training/min-nodes": "1"}
    (nodes,) = all_owned(train_job(annotations=bounds), gang({"coscheduling": {"scheduleTimeoutSeconds": 90}}))
    assert group(nodes, "scheduler-plugins") == {"minMember": 1, "scheduleTimeoutSeconds": 90}


def test_no_group_is_made_before_the_nodes_may_start() -> None:
    nodes = all_owned(train_job(), gang({"volcano": {}}, initializers=[initializer()]))[0]
    town = Cluster(parse(nodes)[0], settings=Settings(gang_scheduler="volcano"))
    town.settle()
    assert town.owned == {}


@pytest.mark.parametrize(
    ("policy", "scheduler", "words"),
    [
        ({"volcano": {}}, "", "the controller runs without --gang-scheduler-name volcano"),
        ({"volcano": {}}, "other", "the controller runs without --gang-scheduler-name volcano"),
        ({"coscheduling": {}}, "", "the controller runs without --gang-scheduler-name of a scheduler"),
        ({"coscheduling": {}}, "volcano", "the controller runs without --gang-scheduler-name of a scheduler"),
        (
            {"volcano": {"networkTopology": {"mode": "soft"}}},
            "volcano",
            "networkTopology is set (mode soft), but pod groups here have none; remove it",
        ),
        ({"volcano": {}, "coscheduling": {}}, "volcano", "coscheduling and volcano are both set; set one"),
    ],
)
def test_a_policy_that_this_controller_cannot_honour_is_a_condition(policy: Object, scheduler: str, words: str) -> None:
    made = plan(TrainJobView(train_job(), gang(policy), None, snapshot().now, gang_scheduler=scheduler))
    assert made.create == ()
    assert made.status is not None
    assert words in made.status["conditions"][0]["message"]


def test_an_empty_queue_is_refused() -> None:
    made, (problem,) = lower(train_job(), gang({"volcano": {}}, queue=""))
    assert made == []
    assert "Volcano queue name must not be empty" in str(problem)
