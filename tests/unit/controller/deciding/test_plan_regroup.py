"""Check restartScope Group: jobs start again as a whole after a lost replica, because their processes cannot go on."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_builders import NOW, Cluster, created, deleted, job, pod_for, reasons, replica

from elastic.api import parse
from elastic.api.job import ElasticStatus, Job, to_object
from elastic_training.controller.deciding.lifecycle.collateral import REPORTED_WITHIN_S
from elastic_training.controller.facts.snapshot import Container, PodPhase

GROUP = {"restartScope": "Group"}


def jax(workers: int = 3, *, restart: str = "OnFailure", policy: dict[str, Any] = GROUP, **more: Any) -> Job:
    return job("JAXJob", Worker=replica(workers, restart=restart, kind="JAXJob"), policy=policy, **more)


def running(one: Job, *, lingering: bool = False) -> Cluster:
    cluster = Cluster(one, lingering=lingering)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def uids(cluster: Cluster) -> set[str]:
    return {one.uid for one in cluster.pods.values()}


def elastic(cluster: Cluster) -> ElasticStatus:
    assert cluster.job.status.elastic is not None
    return cluster.job.status.elastic


def fail(cluster: Cluster, name: str, code: int, *, after_s: float = 0, **changes: Any) -> None:
    ended = Container(name=cluster.job.kind.container, exit_code=code, ended_at=NOW + timedelta(seconds=after_s))
    cluster.pods[name] = replace(cluster.pods[name], phase=PodPhase.FAILED, is_ready=False, containers=(ended,), **changes)


def test_the_failure_of_one_replica_restarts_all_and_is_charged_once() -> None:
    cluster = running(jax())
    before = uids(cluster)
    fail(cluster, "train-worker-1", 137)
    plans = cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1", "train-worker-2"]
    assert not before & uids(cluster)
    assert elastic(cluster).restarts == {"user": 1}
    assert elastic(cluster).generation == 1
    assert reasons(plans).count("JAXJobRestarting") == 1
    assert cluster.state() == "Restarting"
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    assert elastic(cluster).world_size == 3


def test_a_failure_is_written_down_before_any_pod_goes() -> None:
    cluster = running(jax())
    fail(cluster, "train-worker-1", 137)
    assert deleted(cluster.round()) == []
    assert sorted(deleted(cluster.round())) == ["train-worker-0", "train-worker-1", "train-worker-2"]


def test_nobody_of_the_new_group_is_made_while_one_of_the_old_is_there() -> None:
    """Otherwise the new pods would meet the old one under its name."""
    cluster = running(jax(), lingering=True)
    fail(cluster, "train-worker-1", 137)
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-2"], "they take their time to end"
    assert cluster.state() == "Restarting"
    del cluster.pods["train-worker-0"]
    assert created(cluster.round()) == []
    del cluster.pods["train-worker-2"]
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1", "train-worker-2"]


@pytest.mark.parametrize("restart", ["OnFailure", "ExitCode"])
def test_the_failures_of_others_when_a_peer_is_gone_are_not_held_against_the_job(restart: str) -> None:
    """The first of the ends that are seen together decides. Ends that are seen later do not matter."""
    cluster = running(jax(restart=restart, policy={**GROUP, "backoffLimit": 2}))
    fail(cluster, "train-worker-1", 137)
    fail(cluster, "train-worker-0", 1, after_s=1)
    cluster.round()
    fail(cluster, "train-worker-2", 1, after_s=3)
    cluster.settle()
    assert cluster.state() == "Restarting"
    assert elastic(cluster).restarts == {"user": 1}


@pytest.mark.parametrize("restart", ["Never", "OnFailure", "ExitCode"])
def test_an_eviction_restarts_all_under_any_restart_policy_and_costs_nothing(restart: str) -> None:
    cluster = running(jax(restart=restart, policy={**GROUP, "backoffLimit": 0}))
    before = uids(cluster)
    fail(cluster, "train-worker-0", 1)
    fail(cluster, "train-worker-1", 143, after_s=2, reason="Evicted", disruption="EvictionByEvictionAPI")
    cluster.settle()
    assert not before & uids(cluster)
    assert elastic(cluster).restarts == {"disruption": 1}


def test_a_program_that_fails_for_good_still_fails_the_job() -> None:
    cluster = running(jax(restart="ExitCode"))
    fail(cluster, "train-worker-1", 3)
    fail(cluster, "train-worker-0", 134, after_s=2)
    cluster.settle()
    assert cluster.state() == "Running", "a loss that explains it may still be reported"
    cluster.now += timedelta(seconds=REPORTED_WITHIN_S)
    cluster.settle()
    assert cluster.state() == "Failed"


@pytest.mark.parametrize("is_seen_leaving", [True, False])
def test_a_pod_that_somebody_deletes_takes_its_group_along(is_seen_leaving: bool) -> None:
    cluster = running(jax())
    before = uids(cluster)
    if is_seen_leaving:
        cluster.pods["train-worker-2"] = replace(cluster.pods["train-worker-2"], is_deleting=True)
        plans = [cluster.round(), cluster.round()]
        del cluster.pods["train-worker-2"]
    else:
        del cluster.pods["train-worker-2"]
        plans = []
    plans += cluster.settle()
    assert not before & uids(cluster)
    assert len(cluster.pods) == 3
    assert elastic(cluster).restarts == {}
    assert reasons(plans).count("JAXJobRestarting") == 1


def test_a_group_that_is_not_complete_yet_is_only_filled() -> None:
    cluster = Cluster(jax())
    cluster.settle()
    del cluster.pods["train-worker-1"]
    cluster.set("train-worker-0", PodPhase.RUNNING)
    before = uids(cluster)
    cluster.settle()
    assert before < uids(cluster)
    assert cluster.names() == ["train-worker-0", "train-worker-1", "train-worker-2"]


def test_finished_workers_start_again_with_the_rest() -> None:
    """A peer that has succeeded would never come to meet the one that is made again."""
    cluster = running(jax())
    cluster.set("train-worker-0", PodPhase.SUCCEEDED, code=0)
    cluster.settle()
    assert cluster.state() == "Running"
    fail(cluster, "train-worker-1", 137)
    cluster.settle()
    assert all(one.phase is PodPhase.PENDING for one in cluster.pods.values())


def test_an_end_that_is_tolerated_hides_no_other() -> None:
    worker, server = (replica(count, restart="Never", kind="TFJob") for count in (3, 1))
    cluster = running(job("TFJob", Worker=worker, PS=server, enableDynamicWorker=True, policy=GROUP))
    fail(cluster, "train-worker-1", 1)
    cluster.settle()
    assert (cluster.pods["train-worker-1"].phase, cluster.state()) == (PodPhase.FAILED, "Running")
    fail(cluster, "train-worker-2", 143, after_s=60, disruption="EvictionByEvictionAPI")
    cluster.settle()
    assert {one.phase for one in cluster.pods.values()} == {PodPhase.PENDING}


def test_the_kubelet_leaves_restarts_to_us() -> None:
    one = jax(restart="OnFailure")
    assert pod_for(one, "Worker", 0, Cluster(one).look())["spec"]["restartPolicy"] == "Never"
    alone = jax(restart="OnFailure", policy={})
    assert pod_for(alone, "Worker", 0, Cluster(alone).look())["spec"]["restartPolicy"] == "OnFailure"


def test_without_a_word_only_the_failed_replica_of_a_static_job_is_made_again() -> None:
    cluster = running(jax(policy={}))
    before = uids(cluster)
    fail(cluster, "train-worker-1", 137)
    cluster.settle()
    assert len(before & uids(cluster)) == 2


def mxjob(**more: Any) -> Job:
    types = {type: replica(count, restart="OnFailure", kind="MXJob") for type, count in (("Scheduler", 1), ("Server", 1), ("Worker", 2))}
    return job("MXJob", **types, **more)


@pytest.mark.parametrize(
    "one",
    [
        mxjob(),
        jax(policy={}, elasticPolicy={"minReplicas": 2, "maxReplicas": 4}),
        job("PyTorchJob", Master=replica(), Worker=replica(2), policy=GROUP),
        job("MPIJob", Launcher=replica(kind="MPIJob"), Worker=replica(2, kind="MPIJob"), policy=GROUP),
    ],
    ids=["mxnet", "elastic jax", "static pytorch", "static mpi"],
)
def test_jobs_that_restart_as_a_whole(one: Job) -> None:
    cluster = running(one)
    cluster.run_all()
    cluster.settle()
    before = uids(cluster)
    fail(cluster, "train-worker-1", 137)
    cluster.settle()
    assert not before & uids(cluster)
    assert len(cluster.pods) == len(before)


@pytest.mark.parametrize(
    "one",
    [
        mxjob(policy={"restartScope": "Pod"}),
        mxjob(jobMode="MXTune"),
        job("MPIJob", Launcher=replica(kind="MPIJob"), Worker=replica(2, kind="MPIJob"), policy=GROUP, elasticPolicy={"minReplicas": 1}),
        jax(policy={"restartScope": "Pod"}, elasticPolicy={"minReplicas": 2, "maxReplicas": 4}),
        job("TFJob", PS=replica(kind="TFJob"), Worker=replica(2, kind="TFJob"), elasticPolicy={"minReplicas": 1, "maxReplicas": 4}),
    ],
    ids=["mxnet by choice", "mxnet tuning", "elastic horovod", "elastic jax by choice", "elastic parameter servers"],
)
def test_jobs_that_restart_only_one_pod(one: Job) -> None:
    cluster = running(one)
    before = uids(cluster)
    fail(cluster, "train-worker-1", 137)
    cluster.settle()
    assert len(before - uids(cluster)) == 1


def test_scope_group_is_no_word_for_a_job_that_heals_by_itself() -> None:
    raw = to_object(job(Worker=replica(2), policy=GROUP, elasticPolicy={"minReplicas": 1, "maxReplicas": 3}))
    _, warnings = parse(raw)
    assert [str(warning.at[-1]) for warning in warnings] == ["restartScope"]


def test_a_group_that_keeps_failing_restarts_after_growing_pauses_until_one_has_worked_for_long() -> None:
    cluster = running(jax())
    pauses = []
    for _ in range(8):
        fail(cluster, "train-worker-1", 1)
        cluster.settle()
        begun = cluster.now
        while not cluster.pods:
            until = cluster.round().look_again_at
            assert until is not None
            cluster.now = until
            cluster.settle()
        pauses.append((cluster.now - begun).total_seconds())
        cluster.run_all()
        cluster.settle()
    assert pauses == [0, 10, 20, 40, 80, 160, 300, 300]
    cluster.now += timedelta(seconds=1000)
    fail(cluster, "train-worker-1", 1)
    cluster.settle()
    assert len(cluster.pods) == 3, "its past is forgiven"


def test_a_clock_that_steps_back_makes_nobody_wait_until_it_is_there_again() -> None:
    cluster = running(jax())
    for _ in range(2):
        fail(cluster, "train-worker-1", 1)
        cluster.settle()
        cluster.run_all()
    assert cluster.pods == {}, "the second time it waits"
    began = cluster.now
    cluster.now -= timedelta(seconds=90)
    cluster.settle()
    assert len(cluster.pods) == 3
    cluster.run_all()
    cluster.now = began + timedelta(seconds=1)
    cluster.settle()
    assert "It waits" not in cluster.job.status.conditions[-1].message, "the pause that was over does not begin again"


def test_disruptions_never_make_it_wait() -> None:
    cluster = running(jax())
    for _ in range(3):
        fail(cluster, "train-worker-1", 143, disruption="EvictionByEvictionAPI")
        cluster.settle()
        assert len(cluster.pods) == 3
        cluster.run_all()
        cluster.settle()


def test_a_job_that_was_suspended_resumes_without_a_restart() -> None:
    cluster = running(jax())
    status = cluster.job.status
    cluster.job = jax(policy={**GROUP, "suspend": True}, status=status)
    cluster.settle()
    assert cluster.names() == []
    cluster.job = jax(status=cluster.job.status)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    assert cluster.state() == "Running"
    assert elastic(cluster).generation == 0


def test_a_right_world_needs_nothing() -> None:
    cluster = running(jax())
    fail(cluster, "train-worker-1", 137)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    planned = cluster.round()
    assert (planned.actions, planned.news, planned.status) == ((), (), cluster.job.status)


def test_a_resize_of_a_group_restarts_all_at_the_new_size() -> None:
    cluster = running(jax(2))
    before = uids(cluster)
    cluster.job = jax(3, status=cluster.job.status)
    cluster.settle()
    assert not before & uids(cluster)
    assert len(cluster.pods) == 3
    cluster.run_all()
    cluster.settle()
    assert (elastic(cluster).world_size, elastic(cluster).generation) == (3, 0)


HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(["fail", "evict", "delete", "gone", "run", "finish", "look"]), st.integers(0, 2)), max_size=25
)


@given(HAPPENINGS, st.sampled_from(["OnFailure", "Never", "ExitCode"]))
def test_after_any_history_no_two_groups_meet_and_in_the_end_all_work_together(happenings: list[tuple[str, int]], restart: str) -> None:
    cluster = Cluster(jax(restart=restart), lingering=True)
    for what, index in happenings:
        _happens(cluster, what, f"train-worker-{index}")
        before = {one.uid: one.group for one in cluster.pods.values()}
        generation = cluster.job.status.elastic.generation if cluster.job.status.elastic else 0
        cluster.round()
        new = {one.group for one in cluster.pods.values() if one.uid not in before}
        assert not new or {*before.values(), *new} == new, "the new ones would meet the old"
        assert (cluster.job.status.elastic.generation if cluster.job.status.elastic else 0) >= generation
    for _ in range(6):
        cluster.pods = {name: one for name, one in cluster.pods.items() if not one.is_deleting}
        cluster.now += timedelta(seconds=300)
        cluster.settle()
        cluster.run_all()
    if cluster.state() not in ("Failed", "Succeeded"):
        assert (cluster.state(), len(cluster.pods)) == ("Running", 3)
        assert len({one.group for one in cluster.pods.values()}) == 1


def _happens(cluster: Cluster, what: str, name: str) -> None:
    one = cluster.pods.get(name)
    if what == "run":
        cluster.run_all()
    elif one is None:
        return
    elif what == "gone" and one.is_deleting:
        del cluster.pods[name]
    elif what == "delete":
        cluster.delete(name)
    elif what == "finish" and one.phase is PodPhase.RUNNING:
        cluster.set(name, PodPhase.SUCCEEDED, code=0)
    elif what in ("fail", "evict") and one.phase is PodPhase.RUNNING and not one.is_deleting:
        fail(cluster, name, 137, **({"disruption": "EvictionByEvictionAPI"} if what == "evict" else {}))
