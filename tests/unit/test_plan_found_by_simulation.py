"""Stories that the simulation told first: each was a defect once, found by a seed and played here by hand."""

from dataclasses import replace
from datetime import timedelta

import pytest
from job_builders import NOW, OURS, Cluster, created, deleted, elastic_job, job, pod_for, reasons, replica, tainted

from controller.deciding.actions import Seen
from controller.deciding.lifecycle.failure import REMEMBERED
from controller.deciding.plan import plan
from controller.watching.snapshot import GROUP, Container, Phase, World
from elastic.api import parse
from elastic.api.job import Job
from elastic.api.words import ConditionType
from elastic.kube.resources import PODS


def running(one: Job) -> Cluster:
    cluster = Cluster(one, settings=OURS, lingering=True)
    cluster.settle()
    cluster.run_all()
    cluster.world = World(generation=1, members=frozenset(cluster.pods), phase="running")
    cluster.settle()
    return cluster


def scaled(one: Job, workers: int) -> Job:
    """The same job with another count, as /scale leaves it."""
    raw = {"apiVersion": "kubeflow.org/v1", "kind": one.kind.name}
    raw["metadata"] = {"name": "train", "namespace": "team", "uid": "job-uid", "resourceVersion": "2"}  # type: ignore[assignment]
    policy = {"minReplicas": one.least_workers, "maxReplicas": one.most_workers}
    raw["spec"] = {"pytorchReplicaSpecs": {"Worker": replica(workers)}, "elasticPolicy": policy, "runPolicy": {}}  # type: ignore[assignment]
    parsed, _ = parse(raw, stored=True)
    return type(parsed)(**{**{f: getattr(parsed, f) for f in parsed.__struct_fields__}, "status": one.status})


def test_a_worker_on_a_node_that_is_reclaimed_and_cordoned_is_replaced_once() -> None:
    cluster = running(elastic_job(3, least=3))
    cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], node="spot")
    cluster.nodes = {"spot": tainted("spot", "aws-node-termination-handler/spot-itn")}
    plans = cluster.settle()
    cluster.run_all()
    cluster.nodes = {"spot": tainted("spot", "aws-node-termination-handler/spot-itn", is_cordoned=True)}
    plans += cluster.settle()
    assert [name for planned in plans for name in created(planned)] == ["train-worker-3"]


def test_a_worker_told_to_go_stays_when_another_is_lost_before_it_left() -> None:
    cluster = running(elastic_job(4, least=3))
    cluster.job = scaled(cluster.job, 3)
    cluster.round()
    assert [entry.member for entry in cluster.job.status.elastic.leaving] == ["train-worker-3"]  # type: ignore[union-attr]
    cluster.set("train-worker-0", Phase.FAILED, reason="Evicted")
    cluster.now = NOW + timedelta(seconds=60)
    plans = cluster.settle()
    assert "train-worker-3" not in [name for planned in plans for name in deleted(planned)]
    assert [pod.name for pod in cluster.pods.values() if pod.is_active] == ["train-worker-1", "train-worker-2", "train-worker-3"]
    assert cluster.job.status.elastic.leaving == ()  # type: ignore[union-attr]


def test_a_world_found_running_grows_in_the_status_as_its_members_come_back() -> None:
    """No controller ran when it was formed, and the rendezvous server restarted: its members presented themselves one after the other."""
    cluster = Cluster(elastic_job(3, least=2), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.world = World(generation=1, members=frozenset({"train-worker-1", "train-worker-2"}), phase="running")
    cluster.settle()
    assert cluster.job.status.elastic.world_size == 2  # type: ignore[union-attr]
    cluster.world = World(generation=1, members=frozenset(cluster.pods), phase="running", ranked=tuple(sorted(cluster.pods)))
    cluster.settle()
    assert cluster.job.status.elastic.world_size == 3  # type: ignore[union-attr]
    assert cluster.job.status.elastic.ranks == "0,1,2"  # type: ignore[union-attr]


def test_a_worker_told_to_go_stays_while_the_world_lives_on_it_though_its_time_is_up() -> None:
    """The rendezvous server had taken it in again, for its peer was lost; the controller's view of pods did not show that yet."""
    cluster = running(elastic_job(2, least=1))
    cluster.job = scaled(cluster.job, 1)
    cluster.round()
    assert [entry.member for entry in cluster.job.status.elastic.leaving] == ["train-worker-1"]  # type: ignore[union-attr]
    cluster.world = World(generation=2, members=frozenset({"train-worker-1"}), phase="running")
    cluster.now = NOW + timedelta(hours=1)
    assert [name for planned in cluster.settle() for name in deleted(planned)] == []
    cluster.world = World(generation=3, members=frozenset({"train-worker-0"}), phase="running")
    assert [name for planned in cluster.settle() for name in deleted(planned)] == ["train-worker-1"]


def test_that_a_worker_leaves_by_plan_is_written_down_before_its_pod_goes_also_without_any_grace() -> None:
    """A controller that died in between left a pod in deletion, which the next one took for a disruption."""
    cluster = running(elastic_job(2, elastic={"scaleInGraceSeconds": 0}))
    cluster.job = elastic_job(1, elastic={"scaleInGraceSeconds": 0}, status=cluster.job.status)
    assert deleted(cluster.round()) == []
    assert [entry.member for entry in cluster.job.status.elastic.leaving] == ["train-worker-1"]  # type: ignore[union-attr]
    assert deleted(cluster.round()) == ["train-worker-1"]


def test_that_a_pending_worker_leaves_is_written_down_before_its_pod_goes() -> None:
    """The view may lag: the pod runs, and is killed. A controller that died before it stored why left it for the next one to count."""
    cluster = running(elastic_job(2))
    cluster.set("train-worker-1", Phase.PENDING)
    cluster.world = World(generation=1, members=frozenset({"train-worker-0"}), phase="running")
    cluster.job = elastic_job(1, status=cluster.job.status)
    assert deleted(cluster.round()) == []
    assert [entry.member for entry in cluster.job.status.elastic.leaving] == ["train-worker-1"]  # type: ignore[union-attr]
    assert deleted(cluster.round()) == ["train-worker-1"]


def test_a_worker_that_looks_pending_and_is_in_the_world_has_its_time_to_leave() -> None:
    cluster = running(elastic_job(2))
    cluster.set("train-worker-1", Phase.PENDING)
    cluster.world = World(generation=1, members=frozenset({"train-worker-0", "train-worker-1"}), phase="running")
    cluster.job = elastic_job(1, status=cluster.job.status)
    assert [deleted(cluster.round()), deleted(cluster.round())] == [[], []]
    cluster.world = World(generation=2, members=frozenset({"train-worker-0"}), phase="running")
    assert deleted(cluster.round()) == ["train-worker-1"]


def test_a_worker_stuck_in_its_end_asks_for_no_rounds_once_its_time_is_up() -> None:
    cluster = running(elastic_job(2))
    gone_by = NOW + timedelta(seconds=30)
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_deleting=True, gone_by=gone_by)
    assert cluster.settle()[-1].look_again_at == gone_by
    cluster.now = NOW + timedelta(seconds=31)
    assert cluster.settle()[-1].look_again_at is None


@pytest.mark.parametrize("kind", ["TFJob", "JAXJob", "PyTorchJob"])
def test_a_worker_that_ends_with_0_because_it_was_told_to_stop_is_no_success(kind: str) -> None:
    cluster = Cluster(job(kind, Worker=replica(1, kind=kind)), lingering=True)
    cluster.settle()
    cluster.run_all()
    cluster.set("train-worker-0", Phase.SUCCEEDED, code=0, is_deleting=True)
    cluster.settle()
    del cluster.pods["train-worker-0"]
    cluster.settle()
    assert cluster.job.status.condition(ConditionType.SUCCEEDED.value) is None
    assert cluster.names() == ["train-worker-0"]


def test_two_controllers_with_views_of_different_age_count_the_end_of_a_pod_once() -> None:
    """One had deleted the pod and dropped its uid from the status; the other still saw the pod there, and counted it anew."""
    cluster = Cluster(job(Worker=replica(2, restart="ExitCode")))
    cluster.settle()
    cluster.run_all()
    cluster.set("train-worker-1", Phase.FAILED, code=137)
    cluster.round()
    old = dict(cluster.pods)
    for _ in range(3):
        cluster.settle()
        newest, cluster.pods = cluster.pods, old
        assert "PyTorchJobRestarting" not in reasons([cluster.round()])
        cluster.pods = newest
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {"user": 1}


def test_ends_of_pods_that_are_gone_are_not_kept_for_ever() -> None:
    cluster = Cluster(job(Worker=replica(1, restart="ExitCode")))
    for _ in range(REMEMBERED + 5):
        cluster.settle()
        cluster.run_all()
        cluster.set("train-worker-0", Phase.FAILED, code=137)
        cluster.now += timedelta(seconds=301)  # so far apart none waits for the one before
    cluster.settle()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {"user": REMEMBERED + 5}
    assert len(cluster.job.status.elastic.counted) == REMEMBERED


def test_a_worker_of_a_higher_place_stays_while_without_it_fewer_than_the_minimum_were_there() -> None:
    """As upstream has it, the others meet at worker 0, so its place is filled again; that must not cost the job its last workers."""
    cluster = Cluster(elastic_job(3, least=2, most=3), settings=replace(OURS, strict=True))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.set("train-worker-0", Phase.FAILED, reason="Evicted")
    cluster.job = elastic_job(2, least=2, most=3, status=cluster.job.status)
    plans = cluster.settle()
    assert [sorted(deleted(planned)) for planned in plans if deleted(planned)] == [["train-worker-0"], ["train-worker-2"]]
    assert [sorted(created(planned)) for planned in plans if created(planned)] == [["train-worker-0"]]
    assert cluster.names() == ["train-worker-0", "train-worker-1"]


def dynamic(**more: str) -> Cluster:
    workers = replica(3, restart="Never", kind="TFJob")
    one = job("TFJob", PS=replica(1, restart="Never", kind="TFJob"), Worker=workers, enableDynamicWorker=True, **more)
    cluster = Cluster(one)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def test_a_job_of_dynamic_workers_that_lost_worker_0_succeeds_when_the_others_have_done_the_work() -> None:
    cluster = dynamic()
    cluster.set("train-worker-0", Phase.FAILED, code=1)
    cluster.set("train-worker-1", Phase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.state() == "Running", "somebody still works"
    cluster.set("train-worker-2", Phase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.state() == "Succeeded"


@pytest.mark.parametrize(("policy", "last"), [({}, 1), ({"successPolicy": "AllWorkers"}, 0)])
def test_a_job_of_dynamic_workers_fails_once_nobody_is_left_who_could_bring_it_to_success(policy: dict[str, str], last: int) -> None:
    cluster = dynamic(**policy)
    for index in (0, 1):
        cluster.set(f"train-worker-{index}", Phase.FAILED, code=1)
        cluster.settle()
        assert cluster.state() == "Running"
    cluster.set("train-worker-2", Phase.FAILED if last else Phase.SUCCEEDED, code=last)
    cluster.settle()
    assert cluster.state() == "Failed"


def test_an_evicted_dynamic_worker_is_made_again_and_waited_for() -> None:
    cluster = dynamic()
    cluster.set("train-worker-0", Phase.FAILED, reason="Evicted")
    cluster.set("train-worker-1", Phase.SUCCEEDED, code=0)
    cluster.set("train-worker-2", Phase.SUCCEEDED, code=0)
    plans = cluster.settle()
    assert [name for planned in plans for name in created(planned)] == ["train-worker-0"]
    assert cluster.job.status.condition(ConditionType.SUCCEEDED.value) is None


def test_a_job_whose_restarts_are_used_up_fails_also_where_the_controller_dies_while_it_removes_the_pods() -> None:
    """What shows that the limit is reached, the restarts of containers, goes with the pods."""
    cluster = Cluster(job(Worker=replica(2), policy={"backoffLimit": 1}))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    worker = cluster.pods["train-worker-0"]
    cluster.pods[worker.name] = replace(worker, containers=(Container(name="pytorch", restarts=1, last_exit_code=1),))
    assert deleted(cluster.round()) == [], "first it is written down"
    cluster.pods.clear()
    cluster.settle()
    assert cluster.state() == "Failed"
    assert cluster.job.status.conditions[-1].message == "Job train has failed because it has reached the specified backoff limit"
    assert cluster.names() == []


def at_store(restart: str, *, workers: int = 3) -> Cluster:
    cluster = Cluster(elastic_job(workers, elastic={"rdzvBackend": "c10d"}, restart=restart), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def ends(cluster: Cluster, name: str, *, code: int, after_s: float, began_s: float = 0) -> None:
    own = Container("pytorch", exit_code=code, started_at=NOW + timedelta(seconds=began_s), ended_at=NOW + timedelta(seconds=after_s))
    phase = Phase.FAILED if code else Phase.SUCCEEDED
    cluster.pods[name] = replace(cluster.pods[name], phase=phase, is_ready=False, containers=(own,))
    cluster.now = max(cluster.now, NOW + timedelta(seconds=after_s + 1))


@pytest.mark.parametrize("restart", ["Never", "ExitCode"])
def test_a_worker_that_torch_shuts_out_when_its_peers_have_finished_does_not_fail_the_job(restart: str) -> None:
    """It had come when the others waited for each other to end: the first end with 0 closed the rendezvous, and its agent gave up."""
    cluster = at_store(restart)
    ends(cluster, "train-worker-1", code=0, after_s=300)
    ends(cluster, "train-worker-2", code=1, after_s=300)
    plans = cluster.settle()
    assert cluster.state() == "Running"
    assert not [name for planned in plans for name in created(planned)], "nobody is let in any more"
    assert "Rescaled" not in reasons(plans)
    cluster.now = NOW + timedelta(seconds=330)
    cluster.settle()
    assert cluster.state() == "Running"
    ends(cluster, "train-worker-0", code=0, after_s=331)
    cluster.settle()
    assert cluster.state() == "Succeeded"
    assert cluster.job.status.elastic.restarts == {}  # type: ignore[union-attr]


def test_a_worker_that_is_seen_to_be_shut_out_before_its_peer_is_seen_to_finish_does_not_fail_the_job() -> None:
    cluster = at_store("Never")
    ends(cluster, "train-worker-2", code=1, after_s=301)
    plans = cluster.settle()
    assert cluster.state() == "Running"
    assert plans[-1].look_again_at == NOW + timedelta(seconds=311)
    ends(cluster, "train-worker-1", code=0, after_s=300)
    ends(cluster, "train-worker-0", code=0, after_s=302)
    cluster.now = NOW + timedelta(seconds=330)
    cluster.settle()
    assert cluster.state() == "Succeeded"


def test_a_worker_that_begins_when_a_peer_has_finished_does_not_fail_the_job_however_late_it_ends() -> None:
    cluster = at_store("Never")
    ends(cluster, "train-worker-1", code=0, after_s=100)
    ends(cluster, "train-worker-2", code=1, began_s=200, after_s=400)
    cluster.now = NOW + timedelta(seconds=500)
    cluster.settle()
    assert cluster.state() == "Running"


def test_a_worker_that_trains_on_when_a_peer_has_finished_and_fails_later_fails_the_job() -> None:
    cluster = at_store("Never")
    ends(cluster, "train-worker-1", code=0, after_s=100)
    ends(cluster, "train-worker-2", code=1, after_s=400)
    cluster.now = NOW + timedelta(seconds=420)
    cluster.settle()
    assert cluster.state() == "Failed"


def test_a_worker_that_fails_before_its_peers_finish_fails_the_job() -> None:
    cluster = at_store("Never")
    ends(cluster, "train-worker-2", code=1, after_s=90)
    ends(cluster, "train-worker-1", code=0, after_s=100)
    cluster.now = NOW + timedelta(seconds=120)
    cluster.settle()
    assert cluster.state() == "Failed"


def test_a_worker_that_is_lost_when_a_peer_has_finished_is_not_replaced() -> None:
    """It could not be let in; a job that never restarts would fail for it."""
    cluster = at_store("Never")
    ends(cluster, "train-worker-1", code=0, after_s=100)
    del cluster.pods["train-worker-2"]
    plans = cluster.settle()
    assert not [name for planned in plans for name in created(planned)]


def test_agents_that_are_seen_to_end_before_their_store_do_not_fail_the_job() -> None:
    """The store is seen through another watch, which was behind that of the workers."""
    cluster = at_store("ExitCode")
    ends(cluster, "train-worker-0", code=1, after_s=3)
    plans = cluster.settle()
    assert (cluster.state(), plans[-1].look_again_at) == ("Running", NOW + timedelta(seconds=13))
    del cluster.owned["Pod", "train-rdzv"]
    for name in ("train-worker-1", "train-worker-2"):
        ends(cluster, name, code=1, after_s=3)
    cluster.now = NOW + timedelta(seconds=30)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    assert cluster.job.status.elastic.restarts == {}  # type: ignore[union-attr]


def test_a_failure_at_a_store_rests_on_the_store_that_was_seen() -> None:
    """A controller that had stood still saw the ends of all agents, and the store of a while ago: it asks for it before it writes."""
    cluster = at_store("Never")
    ends(cluster, "train-worker-0", code=1, after_s=3)
    cluster.now = NOW + timedelta(seconds=40)
    store = cluster.owned["Pod", "train-rdzv"]
    seen = {**store.raw, "metadata": {**store.raw["metadata"], "resourceVersion": "17"}}
    cluster.owned["Pod", "train-rdzv"] = replace(store, raw=seen)
    planned = plan(cluster.job, cluster.look())
    assert planned.rests_on == (Seen(PODS, "train-rdzv", "17"),)


def rendezvous_ids(cluster: Cluster) -> set[str]:
    """Of workers that would be made now."""
    made = (pod_for(cluster.job, "Worker", index, cluster.look()) for index in range(2))
    variables = (one for pod in made for container in pod["spec"]["containers"] for one in container["env"])
    return {one["value"] for one in variables if one["name"] == "PET_RDZV_ID"}


def test_workers_of_each_run_of_a_store_meet_apart() -> None:
    """An agent of the former group was still there when the new store came, joined the new group under the same id, and closed its
    rendezvous when it was deleted."""
    cluster = at_store("OnFailure")
    first = rendezvous_ids(cluster)
    del cluster.owned["Pod", "train-rdzv"]
    cluster.settle()
    second = rendezvous_ids(cluster)
    assert len(first) == len(second) == 1
    assert first.isdisjoint(second)


def test_workers_at_a_store_that_was_made_before_its_runs_had_ids_meet_with_those_that_are_there() -> None:
    cluster = at_store("OnFailure")
    store = cluster.owned["Pod", "train-rdzv"]
    old = {**store.raw, "metadata": {key: value for key, value in store.raw["metadata"].items() if key != "annotations"}}
    cluster.owned["Pod", "train-rdzv"] = replace(store, raw=old)
    assert rendezvous_ids(cluster) == {"job-uid"}
    (group,) = {pod_for(cluster.job, "Worker", 0, cluster.look())["metadata"]["labels"][GROUP]}
    assert group == f"c10d-{store.uid[:8]}-0", "as the pods that are there have it"


def test_a_loss_is_answered_only_once_the_store_is_deleted() -> None:
    """The deletion was refused, the status said that it was done, and the closed rendezvous failed the job."""
    cluster = at_store("OnFailure")
    del cluster.pods["train-worker-0"]
    cluster.settle()
    gave_up = Container("pytorch", restarts=1, waiting="CrashLoopBackOff", last_exit_code=1, ended_at=NOW + timedelta(seconds=8))
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(gave_up,))
    cluster.now = NOW + timedelta(seconds=9)
    planned = plan(cluster.job, cluster.look())
    assert "FreshRendezvous" in reasons([planned])
    assert deleted(planned) == ["train-rdzv"]
    assert planned.is_written_last


def test_an_agent_that_gives_up_for_a_worker_that_was_lost_before_it_was_seen_to_run_does_not_fail_the_job() -> None:
    """The controller's view stood still from the creation of the group on: of two pods it saw one that had failed, and not the other."""
    cluster = at_store("Never")
    del cluster.owned["Pod", "train-rdzv"]
    cluster.settle()
    del cluster.pods[cluster.names()[0]]
    ends(cluster, cluster.names()[0], code=1, after_s=3)
    cluster.now = NOW + timedelta(seconds=40)
    plans = cluster.settle()
    assert "FreshRendezvous" in reasons(plans)
    assert cluster.state() != "Failed"
