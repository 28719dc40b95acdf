"""From accepted to over: what a plan makes of a job whose pods do as they should, or fail."""

from datetime import timedelta

import pytest
from job_builders import NOW, Cluster, created, deleted, elastic_job, job, reasons, replica

from elastic.kube.resources import PODS
from elastic_training.controller.deciding.actions import Delete, DeleteJob
from elastic_training.controller.facts.snapshot import PodPhase


def conditions(cluster: Cluster) -> list[str]:
    return [c.type if c.status == "True" else f"{c.type}=False" for c in cluster.job.status.conditions]


def test_a_new_job_gets_pods_and_services_and_is_created() -> None:
    cluster = Cluster(job(Master=replica(), Worker=replica(2)))
    cluster.settle()
    assert cluster.names() == ["train-master-0", "train-worker-0", "train-worker-1"]
    assert sorted(cluster.services) == cluster.names()
    assert conditions(cluster) == ["Created"]
    assert cluster.job.status.start_time == NOW


def test_a_right_world_needs_nothing() -> None:
    cluster = Cluster(job(Master=replica(), Worker=replica(2)))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    planned = cluster.round()
    assert planned.actions == ()
    assert planned.status == cluster.job.status
    assert planned.news == ()


def test_the_master_decides_that_the_job_runs_and_has_succeeded() -> None:
    cluster = Cluster(job(Master=replica(), Worker=replica(2)))
    cluster.settle()
    cluster.set("train-worker-0", PodPhase.RUNNING)
    cluster.settle()
    assert cluster.state() == "Created"
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    cluster.set("train-master-0", PodPhase.SUCCEEDED, code=0)
    plans = cluster.settle()
    assert conditions(cluster) == ["Created", "Running=False", "Succeeded"]
    assert cluster.job.status.replica_statuses["Worker"].succeeded == 2
    assert cluster.job.status.completion_time == NOW
    assert "PyTorchJobSucceeded" in reasons(plans)


def test_a_failed_worker_is_made_again_and_counted_once_before_its_pod_goes() -> None:
    cluster = Cluster(job(Master=replica(), Worker=replica(1)))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.set("train-worker-0", PodPhase.FAILED, code=1)
    first = cluster.round()
    assert not [a for a in first.actions if isinstance(a, Delete)], "its end is not recorded yet"
    assert reasons([first]).count("PyTorchJobRestarting") == 1
    plans = cluster.settle()
    assert "PyTorchJobRestarting" not in reasons(plans)
    assert cluster.pods["train-worker-0"].phase is PodPhase.PENDING
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {"user": 1}
    assert cluster.state() == "Running"


def test_a_failed_master_leaves_the_job_restarting_until_it_runs_again() -> None:
    cluster = Cluster(job(Master=replica(), Worker=replica(1)))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.set("train-master-0", PodPhase.FAILED, code=137)
    cluster.settle()
    assert conditions(cluster) == ["Created", "Restarting"]
    cluster.run_all()
    cluster.settle()
    assert conditions(cluster) == ["Created", "Running"]


def test_restart_never_ends_the_job_and_keeps_the_counts_of_that_moment() -> None:
    cluster = Cluster(job(Master=replica(restart="Never"), Worker=replica(2, restart="Never")))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.set("train-worker-1", PodPhase.FAILED, code=3)
    cluster.settle()
    assert conditions(cluster) == ["Created", "Running=False", "Failed"]
    worker = cluster.job.status.replica_statuses["Worker"]
    assert (worker.active, worker.failed) == (1, 1)


@pytest.mark.parametrize("restart", ["Never", "OnFailure", "ExitCode"])
def test_an_eviction_costs_nothing_under_any_restart_policy(restart: str) -> None:
    cluster = Cluster(job(Worker=replica(2, restart=restart), policy={"backoffLimit": 0}))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.set("train-worker-1", PodPhase.FAILED, reason="Evicted", disruption="EvictionByEvictionAPI")
    cluster.settle()
    assert cluster.pods["train-worker-1"].phase is PodPhase.PENDING
    assert cluster.state() == "Running"
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {"disruption": 1}


@pytest.mark.parametrize(("code", "state"), [(1, "Failed"), (127, "Failed"), (128, "Running"), (137, "Running")])
def test_an_exit_code_below_128_is_final(code: int, state: str) -> None:
    cluster = Cluster(job(Worker=replica(2, restart="ExitCode")))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.set("train-worker-1", PodPhase.FAILED, code=code)
    cluster.settle()
    assert cluster.state() == state
    if state == "Failed":
        assert cluster.job.status.completion_time is not None


def test_pods_that_fail_count_against_the_backoff_limit() -> None:
    cluster = Cluster(job(Worker=replica(1), policy={"backoffLimit": 2}))
    cluster.settle()
    for _ in range(2):
        assert cluster.state() != "Failed"
        cluster.run_all()
        cluster.settle()
        cluster.set("train-worker-0", PodPhase.FAILED, code=1)
        cluster.settle()
    assert cluster.state() == "Failed"
    assert cluster.names() == []
    assert cluster.services == {}


def test_the_deadline_comes_by_itself_and_takes_everything() -> None:
    cluster = Cluster(job(Worker=replica(2), policy={"activeDeadlineSeconds": 5}))
    cluster.settle()
    cluster.run_all()
    planned = cluster.round()
    assert planned.look_again_at == NOW + timedelta(seconds=5)
    cluster.now = NOW + timedelta(seconds=5)
    assert deleted(cluster.round()) == [], "first it is written down"
    last = cluster.round()
    assert last.is_written_last
    assert cluster.state() == "Failed"
    assert cluster.names() == []


@pytest.mark.parametrize(("policy", "left"), [("None", ["m", "w0", "w1"]), ("Running", ["m", "w0"]), ("All", [])])
def test_pods_are_cleaned_up_as_the_policy_says(policy: str, left: list[str]) -> None:
    names = {"m": "train-master-0", "w0": "train-worker-0", "w1": "train-worker-1"}
    cluster = Cluster(job(Master=replica(), Worker=replica(2), policy={"cleanPodPolicy": policy}))
    cluster.settle()
    cluster.run_all()
    cluster.set("train-worker-0", PodPhase.SUCCEEDED, code=0)
    cluster.set("train-master-0", PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.names() == sorted(names[word] for word in left)
    assert sorted(cluster.services) == cluster.names()


def test_a_finished_job_goes_when_its_time_has_come() -> None:
    cluster = Cluster(job(Worker=replica(1), policy={"ttlSecondsAfterFinished": 5}))
    cluster.settle()
    cluster.set("train-worker-0", PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.round().look_again_at == NOW + timedelta(seconds=5)
    cluster.now = NOW + timedelta(seconds=5)
    assert DeleteJob() in cluster.round().actions


def test_suspending_takes_the_pods_and_counts_those_that_still_run() -> None:
    cluster = Cluster(job(Worker=replica(2)), lingering=True)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    running = cluster.job
    cluster.job = job(Worker=replica(2), policy={"suspend": True}, status=running.status)
    cluster.round()
    cluster.round()
    assert conditions(cluster) == ["Created", "Running=False", "Suspended"]
    assert cluster.job.status.replica_statuses["Worker"].active == 2, "Kueue must see that they still run"
    cluster.pods.clear()
    cluster.settle()
    assert cluster.job.status.replica_statuses["Worker"].active == 0
    assert cluster.services == {}


def test_resuming_starts_over_with_a_new_start_time() -> None:
    cluster = Cluster(job(Worker=replica(1), policy={"suspend": True}))
    cluster.settle()
    assert conditions(cluster) == ["Created", "Suspended"]
    assert cluster.job.status.start_time is None
    cluster.now = NOW + timedelta(seconds=60)
    cluster.job = job(Worker=replica(1), status=cluster.job.status)
    cluster.settle()
    assert conditions(cluster) == ["Created", "Suspended=False"]
    assert cluster.job.status.start_time == cluster.now
    cluster.run_all()
    cluster.settle()
    assert conditions(cluster) == ["Created", "Suspended=False", "Running"]


def test_a_job_of_another_manager_is_not_touched() -> None:
    cluster = Cluster(job(Worker=replica(1), policy={"managedBy": "kueue.x-k8s.io/multikueue"}))
    planned = cluster.round()
    assert planned.actions == ()
    assert planned.status is None


def test_an_elastic_job_without_workers_left_to_come_has_not_succeeded() -> None:
    cluster = Cluster(elastic_job(3))
    cluster.settle()
    assert cluster.state() == "Created"
    cluster.run_all()
    cluster.set("train-worker-1", PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.state() == "Running", "two still train"
    for name in ("train-worker-0", "train-worker-2"):
        cluster.set(name, PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.state() == "Succeeded"


def test_pods_are_the_same_bytes_every_time() -> None:
    one = job(Master=replica(), Worker=replica(2))
    assert Cluster(one).round().actions == Cluster(one).round().actions
    assert created(Cluster(one).round()) == ["train-master-0", "train-worker-0", "train-worker-1"]
    assert all(a.resource == PODS for a in Cluster(one).round().actions if a.object["kind"] == "Pod")  # type: ignore[union-attr]


def test_a_cause_with_a_budget_of_its_own_ends_the_job_when_it_is_used_up() -> None:
    budget = {"restartBudget": {"disruption": 1}}
    cluster = Cluster(elastic_job(2, elastic=budget))
    cluster.settle()
    for _ in range(2):
        assert cluster.state() != "Failed"
        cluster.run_all()
        cluster.settle()
        cluster.set("train-worker-1", PodPhase.FAILED, reason="Evicted")
        cluster.settle()
    assert cluster.state() == "Failed"
    assert cluster.job.status.conditions[-1].message.endswith("restarts used by cause disruption: 1 of 1")


def test_a_job_that_asks_for_etcd_is_told_what_that_needs() -> None:
    cluster = Cluster(elastic_job(1, elastic={"rdzvBackend": "etcd-v2", "rdzvHost": "etcd", "rdzvPort": 2379}))
    assert "EtcdRendezvous" in reasons([cluster.round()])


def test_a_job_that_ends_while_it_restarts_restarts_no_more() -> None:
    cluster = Cluster(job(Worker=replica(1), policy={"activeDeadlineSeconds": 60}))
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    cluster.set("train-worker-0", PodPhase.FAILED, code=1)
    cluster.settle()
    assert conditions(cluster) == ["Created", "Restarting"]
    cluster.now = NOW + timedelta(seconds=60)
    cluster.settle()
    assert conditions(cluster) == ["Created", "Failed"]
