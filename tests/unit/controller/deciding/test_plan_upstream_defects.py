"""Defects of the Training Operator that were reproduced on a real API server, each made impossible here. docs/compat.md lists them all."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from job_builders import NOW, OURS, PLAIN, Cluster, created, elastic_job, job, places, reasons, replica, restarts, with_status
from prometheus_client import CollectorRegistry

from elastic.api.job import Job, JobStatus
from elastic.api.kinds import KINDS
from elastic_training.controller.deciding.actions import Create, DeleteJob, Plan
from elastic_training.controller.facts.snapshot import Container, PodPhase, WorldSeen
from elastic_training.controller.running.metrics import Metrics

METRICS = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]
HEADS = {
    "PyTorchJob": "Master",
    "TFJob": "Chief",
    "XGBoostJob": "Master",
    "PaddleJob": "Master",
    "MPIJob": "Launcher",
    "MXJob": "Scheduler",
}


def of(kind: str, *, restart: str = "Never", workers: int = 2, **more: Any) -> Job:
    """Return a job with a head, if the kind has one."""
    types = {"Worker": replica(workers, kind=kind, restart=restart)}
    if kind in HEADS:
        types[HEADS[kind]] = replica(1, kind=kind, restart=restart)
    return job(kind, **types, **more)


def running(one: Job, **more: Any) -> Cluster:
    cluster = Cluster(one, **more)
    cluster.settle()
    cluster.run_all()
    if cluster.settings.rendezvous is not None:
        cluster.world = WorldSeen(generation=1, members=frozenset(cluster.pods), phase="running")
    cluster.settle()
    assert cluster.state() == "Running"
    return cluster


def resized(cluster: Cluster, one: Job) -> list[Plan]:
    cluster.job = with_status(one, cluster.job.status)
    return cluster.settle()


def counted(old: JobStatus, new: JobStatus) -> dict[str, float]:
    """Return the changes of upstream's counters from one status to the next."""
    registry = CollectorRegistry()
    seconds = itertools.count(step=3600)
    metrics = Metrics(registry, waiting=lambda: 0, sent={}, clock=lambda: next(seconds))
    metrics.changed(namespace="team", framework="pytorch", old=old, new=new)
    list(registry.collect())  # the first scrape shows that there is something to count
    samples = [sample for family in registry.collect() for sample in family.samples]
    ours = [s for s in samples if s.name.startswith("training_operator_jobs_") and s.name.endswith("_total")]
    assert all(s.labels == {"job_namespace": "team", "framework": "pytorch"} for s in ours)
    return {s.name.removeprefix("training_operator_jobs_").removesuffix("_total"): s.value for s in ours if s.value}


def test_a_job_without_workers_has_not_succeeded() -> None:
    cluster = running(job(Worker=replica(2)))
    plans = resized(cluster, job(Worker=replica(0)))
    assert cluster.names() == []
    assert cluster.state() == "Running"
    assert not {"PyTorchJobSucceeded", "PyTorchJobFailed"} & set(reasons(plans))


@pytest.mark.parametrize("kind", sorted(HEADS))
def test_no_pod_is_made_for_a_type_of_no_replicas(kind: str) -> None:
    cluster = Cluster(of(kind, workers=0))
    plans = cluster.settle()
    assert [name for planned in plans for name in created(planned)] == cluster.names() == places(of(kind, workers=0))


def test_a_hole_below_the_new_size_is_filled_and_one_above_it_never() -> None:
    cluster = running(job(Worker=replica(5)))
    for name in ("train-worker-2", "train-worker-3"):
        del cluster.pods[name]
    plans = resized(cluster, job(Worker=replica(2)))
    assert [name for planned in plans for name in created(planned)] == []
    assert cluster.names() == ["train-worker-0", "train-worker-1"]


@pytest.mark.parametrize("settings", [PLAIN, OURS], ids=["places", "rendezvous"])
def test_a_clean_scale_in_is_neither_a_failure_nor_a_restart(settings: Any) -> None:
    cluster = running(elastic_job(3, restart="Never"), settings=settings, lingering=True)
    before = cluster.job.status
    plans = resized(cluster, elastic_job(1, restart="Never"))
    if settings is OURS:
        left = restarts("plan", "plan", "collateral")
        cluster.world = WorldSeen(generation=2, members=frozenset({"train-worker-0"}), phase="running", unacknowledged_restarts=left)
        plans += cluster.settle()
    worker = cluster.job.status.replica_statuses["Worker"]
    assert (worker.active, worker.failed) == (1, 0)
    assert cluster.state() == "Running"
    assert not {"PyTorchJobRestarting", "PyTorchJobFailed"} & set(reasons(plans))
    assert counted(before, cluster.job.status) == {}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_pod_that_is_being_deleted_has_not_failed(kind: str) -> None:
    cluster = running(of(kind, runPolicy={"restartScope": "Pod"}) if kind == "MXJob" else of(kind))
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_deleting=True)
    plans = cluster.settle()
    assert cluster.job.status.replica_statuses["Worker"].failed == 0
    assert not {f"{kind}Failed", "MPIJobMPIJobFailed"} & set(reasons(plans))
    del cluster.pods["train-worker-1"]
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"


def test_a_permanent_failure_has_an_end_that_is_counted_and_after_which_the_job_goes() -> None:
    policy = {"ttlSecondsAfterFinished": 0}
    cluster = running(job(Master=replica(restart="ExitCode"), Worker=replica(1, restart="ExitCode"), policy=policy))
    before = cluster.job.status
    cluster.set("train-worker-0", PodPhase.FAILED, code=1)
    planned = cluster.round()
    assert cluster.state() == "Failed"
    assert cluster.job.status.completion_time == NOW
    assert "PyTorchJobRestarting" not in reasons([planned])
    assert counted(before, cluster.job.status) == {"failed": 1}
    assert DeleteJob() in cluster.round().actions


def test_restarts_for_an_exit_code_are_bounded_by_the_backoff_limit() -> None:
    cluster = running(job(Worker=replica(1, restart="ExitCode"), policy={"backoffLimit": 2}))
    for _ in range(2):
        assert cluster.state() == "Running"
        cluster.set("train-worker-0", PodPhase.FAILED, code=137)
        cluster.settle()
        cluster.run_all()
        cluster.settle()
    assert cluster.state() == "Failed"


def test_restarts_of_sidecars_do_not_count() -> None:
    for container, state in (("log", "Running"), ("pytorch", "Failed")):
        cluster = running(job(Worker=replica(1), policy={"backoffLimit": 3}))
        beside = (Container(name="pytorch"), Container(name=container, restarts=9))
        cluster.pods["train-worker-0"] = replace(cluster.pods["train-worker-0"], containers=beside)
        cluster.settle()
        assert cluster.state() == state


def scaled_by_metrics(**more: Any) -> Job:
    return elastic_job(2, elastic={"metrics": METRICS}, **more)


@pytest.mark.parametrize("end", ["finished", "suspended", "metrics removed"])
def test_an_autoscaler_goes_when_nothing_is_to_be_scaled(end: str) -> None:
    cluster = running(scaled_by_metrics())
    assert ("HorizontalPodAutoscaler", "train") in cluster.owned
    if end == "finished":
        for name in cluster.names():
            cluster.set(name, PodPhase.SUCCEEDED, code=0)
    elif end == "suspended":
        cluster.job = with_status(scaled_by_metrics(policy={"suspend": True}), cluster.job.status)
    else:
        cluster.job = with_status(elastic_job(2), cluster.job.status)
    cluster.settle()
    assert ("HorizontalPodAutoscaler", "train") not in cluster.owned


def carried_out(**more: Any) -> Cluster:
    return running(elastic_job(2, elastic={"scalingPolicy": {"through": "hpa"}, **more}))


def test_an_autoscaler_carries_the_decision_out_if_the_policy_says_so() -> None:
    cluster = carried_out()
    spec = cluster.owned["HorizontalPodAutoscaler", "train"].raw["spec"]
    (metric,) = spec["metrics"]
    assert metric["external"]["metric"] == {
        "name": "desired_workers",
        "selector": {"matchLabels": {"kind": "PyTorchJob", "job": "train"}},
    }
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert [spec["behavior"][way]["tolerance"] for way in ("scaleUp", "scaleDown")] == ["0", "0"]
    beside = carried_out(metrics=METRICS).owned["HorizontalPodAutoscaler", "train"].raw["spec"]
    assert [m["type"] for m in beside["metrics"]] == [*(m["type"] for m in METRICS), "External"]
    assert not [way for way in beside["behavior"].values() if "tolerance" in way], "a user's metrics keep the usual tolerance"


def test_a_tolerance_that_the_api_server_drops_is_asked_for_once() -> None:
    cluster = carried_out()
    owned = cluster.owned["HorizontalPodAutoscaler", "train"]
    behavior = {way: {k: v for k, v in rules.items() if k != "tolerance"} for way, rules in owned.raw["spec"]["behavior"].items()}
    cluster.owned["HorizontalPodAutoscaler", "train"] = replace(
        owned, raw={**owned.raw, "spec": {**owned.raw["spec"], "behavior": behavior}}
    )
    assert cluster.round().actions == ()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_workers_of_every_elastic_kind_can_be_found_by_an_autoscaler(kind: str) -> None:
    cluster = Cluster(of(kind, elasticPolicy={"minReplicas": 1, "maxReplicas": 4}))
    cluster.settle()
    selector = cluster.job.status.replica_statuses["Worker"].selector
    assert "training.kubeflow.org/job-name=train" in selector
    assert "training.kubeflow.org/replica-type=worker" in selector


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_is_left_to_another_manager(kind: str) -> None:
    assert Cluster(of(kind, policy={"managedBy": "kueue.x-k8s.io/multikueue"})).round() == Plan()


def test_a_launcher_that_ended_with_a_code_to_be_tried_again_is() -> None:
    cluster = running(of("MPIJob", restart="ExitCode"))
    cluster.set("train-launcher", PodPhase.FAILED, code=137)
    cluster.settle()
    assert cluster.pods["train-launcher"].phase is PodPhase.PENDING
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"


def hosts(planned: Plan) -> str:
    (found,) = [a.object["data"] for a in planned.actions if isinstance(a, Create) and a.object["kind"] == "ConfigMap"]
    return str(found["discover_hosts.sh"])


def test_a_host_that_leaves_is_not_discovered_any_more() -> None:
    cluster = running(of("MPIJob"))
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], is_deleting=True)
    del cluster.owned["ConfigMap", "train-config"]
    assert hosts(cluster.round()) == "#!/bin/sh\necho train-worker-0:1"


def test_an_empty_rdzv_conf_is_no_obstacle() -> None:
    cluster = Cluster(elastic_job(2, elastic={"rdzvConf": []}))
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1"]


def test_a_controller_that_restarts_counts_no_job_twice() -> None:
    first = Cluster(job(Worker=replica(1)))
    first.round()
    assert counted(JobStatus(), first.job.status) == {"created": 1}
    again = Cluster(first.job)
    again.pods = first.pods
    again.settle()
    assert counted(first.job.status, again.job.status) == {}


def test_a_restart_is_counted_once() -> None:
    cluster = running(job(Master=replica(), Worker=replica(1)))
    before = cluster.job.status
    cluster.set("train-worker-0", PodPhase.FAILED, code=137)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert counted(before, cluster.job.status) == {"restarted": 1}


def test_processes_of_a_pod_count_in_the_world_and_elastic_workers_hear_of_no_fixed_one() -> None:
    def variables(one: Job) -> dict[str, str]:
        (pod, *_) = [a.object for a in Cluster(one).round().actions if isinstance(a, Create) and a.object["kind"] == "Pod"]
        return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}

    assert variables(job(Master=replica(), Worker=replica(3), nprocPerNode="8"))["WORLD_SIZE"] == "32"
    assert variables(job(Master=replica(), Worker=replica(3), nprocPerNode="gpu"))["WORLD_SIZE"] == "4"
    assert not {"WORLD_SIZE", "RANK", "MASTER_ADDR", "PET_NODE_RANK"} & set(variables(elastic_job(3)))
