"""Workers come and go: who is made, who leaves, who is told first, and what survivors notice, which is nothing."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_builders import NOW, OURS, Cluster, created, deleted, elastic_job, pod, pod_for, restarts

from elastic.api.book import Rescale
from elastic.kube.resources import PODS
from elastic.membership.bounds import MAX_MEMBERS
from elastic_training.controller.deciding.actions import Create, SetExpectation
from elastic_training.controller.deciding.replicas import slot_assignment
from elastic_training.controller.facts.settings import Settings
from elastic_training.controller.facts.snapshot import Container, PodPhase, WorldSeen


def running(workers: int, *, lingering: bool = False) -> Cluster:
    """Return an elastic job at our rendezvous with all its workers in its world."""
    cluster = Cluster(elastic_job(workers, elastic={"scaleInGraceSeconds": 20}), settings=OURS, lingering=lingering)
    cluster.settle()
    cluster.run_all()
    cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods), phase="running")
    cluster.settle()
    return cluster


def scaled(cluster: Cluster, workers: int) -> None:
    cluster.job = elastic_job(workers, elastic={"scaleInGraceSeconds": 20}, status=cluster.job.status)


def last_told(cluster: Cluster) -> SetExpectation:
    return next(action for action in reversed(cluster.told) if isinstance(action, SetExpectation))


def test_a_worker_told_to_leave_keeps_its_pod_and_name_until_it_has_left() -> None:
    cluster = running(3)
    scaled(cluster, 2)
    first = cluster.round()
    assert deleted(first) == []
    assert [(leave.member, leave.cause) for leave in last_told(cluster).leaving] == [("train-worker-2", "plan")]
    assert last_told(cluster).members == ("train-worker-0", "train-worker-1")
    cluster.settle()
    assert "train-worker-2" in cluster.pods, "it is still in the world"
    cluster.world = WorldSeen(generation=2, members=frozenset({"train-worker-0", "train-worker-1"}), phase="running")
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1"]
    assert sorted(cluster.services) == cluster.names()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.leaving == ()
    assert cluster.job.status.elastic.generation == 2


def test_a_world_that_is_being_formed_again_lets_nobody_go_early() -> None:
    cluster = running(3)
    scaled(cluster, 2)
    cluster.settle()
    cluster.world = WorldSeen(generation=1, members=frozenset(), phase="re-forming")
    cluster.settle()
    assert "train-worker-2" in cluster.pods


def test_a_worker_that_does_not_leave_goes_when_its_time_is_up() -> None:
    cluster = running(3)
    scaled(cluster, 2)
    cluster.settle()
    assert cluster.round().look_again_at == NOW + timedelta(seconds=20)
    cluster.now = NOW + timedelta(seconds=20)
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1"]


def test_a_pending_worker_is_the_first_to_go_and_goes_at_once() -> None:
    cluster = running(2)
    scaled(cluster, 3)
    cluster.settle()
    cluster.pods["train-worker-0"] = replace(cluster.pods["train-worker-0"], phase=PodPhase.PENDING)
    scaled(cluster, 2)
    cluster.settle()
    assert cluster.names() in (["train-worker-0", "train-worker-1"], ["train-worker-1", "train-worker-2"])


def test_survivors_of_a_resize_are_not_touched() -> None:
    cluster = running(2)
    before = dict(cluster.pods)
    scaled(cluster, 4)
    plans = cluster.settle()
    assert [name for planned in plans for name in created(planned)] == ["train-worker-2", "train-worker-3"]
    assert all(cluster.pods[name].uid == one.uid for name, one in before.items())


def test_a_worker_that_somebody_deletes_is_replaced_at_once_under_another_index() -> None:
    cluster = running(2, lingering=True)
    cluster.delete("train-worker-0")
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1", "train-worker-2"]
    assert cluster.state() == "Running"
    assert cluster.job.status.replica_statuses["Worker"].failed == 0


def test_without_our_rendezvous_places_are_fixed_and_worker_0_comes_back_as_worker_0() -> None:
    cluster = Cluster(elastic_job(2), lingering=True)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.delete("train-worker-0")
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1"]
    del cluster.pods["train-worker-0"]
    cluster.settle()
    assert cluster.pods["train-worker-0"].phase is PodPhase.PENDING


def test_all_workers_agree_on_the_range_of_nodes_after_a_resize() -> None:
    cluster = running(2)
    scaled(cluster, 4)
    nodes = {
        entry["value"]
        for action in cluster.round().actions
        if isinstance(action, Create) and action.resource == PODS
        for entry in action.object["spec"]["containers"][0]["env"]
        if entry["name"] == "PET_NNODES"
    }
    assert nodes == {"1:5"}


@pytest.mark.slow
def test_the_expectation_of_a_stored_job_with_too_many_workers_fits_the_servers_messages() -> None:
    too_many = MAX_MEMBERS + 100
    cluster = Cluster(elastic_job(too_many, most=too_many, elastic={"allowedSizes": [1, MAX_MEMBERS, too_many]}), settings=OURS)
    planned = cluster.round()
    (word,) = (action for action in planned.actions if isinstance(action, SetExpectation))
    assert (len(word.members), word.most, word.sizes) == (MAX_MEMBERS, MAX_MEMBERS, (1, MAX_MEMBERS))


def test_an_image_that_cannot_take_the_library_gets_a_group_with_c10d_and_nothing_is_charged() -> None:
    cluster = running(2)
    uid = cluster.job.metadata.uid
    message = f"elastic-training cannot deliver its library to job {uid}: torch 2.4 is too old"
    cluster.set("train-worker-1", PodPhase.RUNNING, code=119)
    broken = cluster.pods["train-worker-1"]
    cluster.pods["train-worker-1"] = replace(broken, containers=(replace(broken.containers[0], message=message),))
    cluster.settle()
    assert all(one.group.startswith("c10d") for one in cluster.pods.values())
    assert len(cluster.names()) == 2
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.backend == "c10d"
    assert cluster.job.status.elastic.restarts == {}


def test_a_worker_image_without_the_command_that_delivers_the_library_is_named_in_the_condition() -> None:
    """Its --worker-image is of an older release: the init container crashes again and again, and the job only waited."""
    cluster = Cluster(elastic_job(2), settings=OURS)
    cluster.settle()
    trouble = "/usr/bin/python3: No module named elastic_worker.startup.deliver"
    ended = Container("elastic-library", exit_code=1, exit_reason="Error", message=f"Traceback:\n{trouble}\n")
    waits = Container("elastic-library", restarts=1, waiting="CrashLoopBackOff", last_exit_code=1, last_message=ended.message)
    heard = set()
    for init in (ended, waits, replace(waits, waiting="", is_running=True)):
        cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], inits=(init,))
        cluster.settle()
        heard.add(cluster.job.status.conditions[-1].message)
    assert heard == {
        "PyTorchJob train is created. It waits for the library in pod train-worker-1: its init container elastic-library ended with exit "
        f"code 1 ({trouble}); --worker-image of the controller is {OURS.worker_image}: set it to the image of the controller's own "
        "release, then delete the pod."
    }
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], inits=(replace(waits, waiting="", exit_code=0),))
    cluster.settle()
    assert cluster.job.status.conditions[-1].message == "PyTorchJob train is created."
    assert cluster.job.status.elastic is None or not cluster.job.status.elastic.restarts


PODS_OF_A_JOB = st.lists(
    st.tuples(st.sampled_from([PodPhase.PENDING, PodPhase.RUNNING, PodPhase.FAILED, PodPhase.SUCCEEDED]), st.booleans()), max_size=8
).map(lambda drawn: [pod(index=i, phase=phase, is_deleting=gone) for i, (phase, gone) in enumerate(drawn)])


@given(PODS_OF_A_JOB, st.integers(0, 6))
def test_never_more_stay_than_wanted_and_never_two_in_one_place(pods: list, count: int) -> None:
    assigned = slot_assignment.by_count(count, pods, leaving=())
    assert len(assigned.present) + len(assigned.missing) == count
    assert not {one.index for one in pods} & set(assigned.missing)
    assert len(set(assigned.missing)) == len(assigned.missing)
    assert not (assigned.missing and assigned.surplus)


@given(PODS_OF_A_JOB, st.integers(0, 6))
def test_fixed_places_are_filled_once_and_beyond_them_nobody_stays(pods: list, count: int) -> None:
    assigned = slot_assignment.in_places(count, pods)
    assert {one.index for one in assigned.present} | set(assigned.missing) <= set(range(count))
    assert all(one.index >= count for one in assigned.surplus)


def test_the_status_tells_how_the_newest_world_came_to_be_and_where_its_time_went() -> None:
    cluster = running(2)
    members = frozenset(cluster.pods)
    first = Rescale(id="r7", cause="user", reason="worker 1 failed", phases={"detect": 12})
    cluster.world = WorldSeen(generation=7, members=members, phase="running", rescale=first, unacknowledged_restarts=restarts("user"))
    cluster.settle()
    cluster.world = replace(
        cluster.world, rescale=Rescale(id="r7", cause="user", reason="worker 1 failed", phases={"detect": 12, "start": 900})
    )
    cluster.settle()
    elastic = cluster.job.status.elastic
    assert elastic is not None
    assert elastic.last_rescale is not None
    assert (elastic.generation, elastic.world_size, elastic.restarts) == (7, 2, {"user": 1})
    assert elastic.last_rescale.phases == {"detect": 12, "start": 900}
    assert (elastic.last_rescale.at, elastic.last_rescale.to_size) == (NOW, 2)


def test_a_world_that_is_closed_ends_the_job_with_its_reason() -> None:
    cluster = running(2)
    cluster.world = WorldSeen(generation=3, members=frozenset(), phase="closed", closed="maxRestarts is 0 and the training program failed")
    cluster.settle()
    assert cluster.state() == "Failed"
    assert "maxRestarts is 0" in cluster.job.status.conditions[-1].message
    assert {pod.phase for pod in cluster.pods.values()} == {PodPhase.FAILED}, "stopped, and kept for their logs"


def with_store(workers: int = 2) -> Cluster:
    cluster = Cluster(elastic_job(workers, elastic={"rdzvBackend": "c10d"}), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def test_workers_that_meet_through_c10d_wait_for_their_store_which_is_no_worker() -> None:
    cluster = Cluster(elastic_job(2, elastic={"rdzvBackend": "c10d"}), settings=OURS)
    first = cluster.round()
    assert created(first) == ["train-rdzv"], "without a store nobody could meet"
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1"]
    env = {entry["name"]: entry.get("value") for entry in pod_for(cluster.job, "Worker", 0, cluster.look())["spec"]["containers"][0]["env"]}
    assert (env["PET_RDZV_BACKEND"], env["PET_RDZV_ENDPOINT"]) == ("c10d", "train-rdzv:29400")
    cluster.run_all()
    cluster.settle()
    assert cluster.job.status.replica_statuses["Worker"].active == 2


def test_the_loss_of_worker_0_leaves_the_store_and_the_other_workers_alone() -> None:
    cluster = with_store()
    before = cluster.pods["train-worker-1"].uid
    cluster.set("train-worker-0", PodPhase.FAILED, reason="Evicted")
    cluster.settle()
    assert cluster.names() == ["train-worker-1", "train-worker-2"]
    assert cluster.pods["train-worker-1"].uid == before


def test_a_lost_store_restarts_the_group_and_nothing_is_charged() -> None:
    cluster = with_store()
    before = {one.uid for one in cluster.pods.values()}
    del cluster.owned["Pod", "train-rdzv"]
    cluster.settle()
    assert cluster.names() == ["train-worker-2", "train-worker-3"], "who evicts the former by their names does not find these"
    assert not before & {one.uid for one in cluster.pods.values()}
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {}


def test_the_store_goes_when_the_job_has_finished() -> None:
    cluster = with_store()
    for name in cluster.names():
        cluster.set(name, PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.state() == "Succeeded"
    assert not any(kind in ("Pod", "Service", "NetworkPolicy") for kind, _ in cluster.owned)


def test_a_group_never_moves_while_it_runs() -> None:
    cluster = Cluster(elastic_job(2), settings=Settings())
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    before = {one.uid for one in cluster.pods.values()}
    cluster.settings = OURS
    cluster.settle()
    assert {one.uid for one in cluster.pods.values()} == before, "an upgrade of the control plane touches no running job"
    ours = running(2)
    before = {one.uid for one in ours.pods.values()}
    ours.settings = Settings()
    ours.settle()
    assert {one.uid for one in ours.pods.values()} == before


def test_at_c10ds_store_a_place_whose_pod_is_lost_costs_no_worker_that_works() -> None:
    cluster = with_store(4)
    cluster.set("train-worker-0", PodPhase.FAILED, reason="Evicted")
    cluster.job = elastic_job(3, least=3, elastic={"rdzvBackend": "c10d"}, status=cluster.job.status)
    cluster.settle()
    assert cluster.names() == ["train-worker-1", "train-worker-2", "train-worker-3"]


phases = st.sampled_from([PodPhase.PENDING, PodPhase.RUNNING, PodPhase.FAILED, PodPhase.SUCCEEDED])
pods = st.dictionaries(st.integers(0, 7), st.tuples(phases, st.booleans()), max_size=8)


@given(st.integers(0, 8), pods)
def test_healthy_workers_go_only_if_others_are_enough(count: int, found: dict[int, tuple[PodPhase, bool]]) -> None:
    there = [pod(index=index, phase=phase, is_deleting=is_deleting) for index, (phase, is_deleting) in found.items()]
    assigned = slot_assignment.by_count_in_places(count, there)
    well = slot_assignment.who_stay(there, leaving=())
    assert len(well) - len(assigned.surplus) == min(len(well), count)
    places = [one.index for one in there if one not in assigned.surplus] + list(assigned.missing)
    assert len(places) == len(set(places)), "never two pods for one place"
    assert not assigned.missing or len(places) <= count
    if any(one.phase is PodPhase.RUNNING for one in assigned.surplus):
        assert all(one.phase is not PodPhase.PENDING for one in well if one not in assigned.surplus)
