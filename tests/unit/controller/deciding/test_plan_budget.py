"""Check from the controller's side which restarts count, since when, and what happens to a job that has used up its budget."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from job_builders import NOW, OURS, Cluster, elastic_job, restarts
from msgspec import structs

from elastic.api.book import Charge
from elastic.api.job import ElasticStatus, JobStatus
from elastic.api.words import Cause
from elastic.client.script_job import ScriptOptions, Workers, job_of
from elastic.membership.wire import Restart
from elastic_training.controller.deciding.actions import Budget, End, Forget, SetExpectation
from elastic_training.controller.deciding.lifecycle.restart_accounting import with_reported_restarts, with_restart_count
from elastic_training.controller.facts.snapshot import Container, PodPhase, WorldSeen
from elastic_training.rendezvous.engine.messages.pace import WINDOW_S


def running(workers: int, *, settings: Any = OURS, restart: str = "OnFailure", **elastic: Any) -> Cluster:
    cluster = Cluster(elastic_job(workers, elastic=elastic, restart=restart), settings=settings)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    return cluster


def told(cluster: Cluster) -> SetExpectation:
    planned = cluster.round()
    return next(action for action in planned.actions if isinstance(action, SetExpectation))


def evicted(cluster: Cluster, name: str) -> None:
    cluster.run_all()
    cluster.settle()
    cluster.set(name, PodPhase.FAILED, reason="Evicted")
    cluster.settle()


def test_only_restarts_within_the_window_count_against_a_budget() -> None:
    cluster = Cluster(elastic_job(2, elastic={"restartBudget": {"disruption": 1, "windowSeconds": 600}}))
    cluster.settle()
    for _ in range(4):
        evicted(cluster, "train-worker-1")
        assert cluster.state() != "Failed"
        cluster.now += timedelta(seconds=601)
    evicted(cluster, "train-worker-1")
    evicted(cluster, "train-worker-1")
    assert cluster.state() == "Failed"
    words = "restarts used by cause disruption: 1 of 1 within 600 s"
    assert cluster.job.status.conditions[-1].message.endswith(words)
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {"disruption": 6}, "what is counted over the whole life stays, the last one too"
    assert cluster.job.status.elastic.restart_count == 5, "nothing restarted after the last one"


@pytest.mark.parametrize(
    ("counted", "number"),
    [({}, 0), ({"plan": 4}, 0), ({"plan": 4, "user": 2, "disruption": 1, "collateral": 7}, 3), ({"user": 10**6, "hang": 1}, 10**6)],
)
def test_one_number_counts_the_restarts_that_nobody_asked_for(counted: dict[str, int], number: int) -> None:
    """Also in the status that an earlier release left, with the next plan that writes it."""
    status = with_restart_count(JobStatus(elastic=ElasticStatus(restarts=counted)))
    assert status is not None
    assert status.elastic is not None
    assert status.elastic.restart_count == number
    assert with_restart_count(status) is status
    assert with_restart_count(None) is None


def test_no_restart_is_a_number_too() -> None:
    """Kubectl's column was empty for a job that had never restarted."""
    status = with_restart_count(JobStatus(elastic=ElasticStatus()))
    assert msgspec.to_builtins(status)["elastic"]["restartCount"] == 0


def test_restarts_that_the_server_counts_are_dated_once_and_told_to_a_server_that_knows_nothing() -> None:
    cluster = running(2, restartBudget={"windowSeconds": 600})
    members = frozenset(cluster.names())
    cluster.world = WorldSeen(
        generation=2, members=members, phase="running", unacknowledged_restarts=restarts("user"), fruitless=1, step=40
    )
    cluster.settle()
    cluster.now += timedelta(seconds=60)
    later = restarts("plan", "disruption", "disruption", generation=2)
    cluster.world = replace(cluster.world, unacknowledged_restarts=(*restarts("user"), *later), fruitless=0)
    cluster.settle()
    known = cluster.job.status.elastic
    assert known is not None
    assert known.charged == (Charge(cause="user", at=NOW), Charge(cause="disruption", at=NOW + timedelta(seconds=60), count=2))
    cluster.world = WorldSeen(generation=2, members=members, phase="running")  # a server that has just started
    cluster.settle()
    said = told(cluster)
    assert (said.charged, said.fruitless, said.step) == (known.charged, 0, 40)


def test_without_a_window_no_dates_are_kept() -> None:
    cluster = running(2)
    cluster.world = WorldSeen(generation=2, members=frozenset(cluster.names()), phase="running", unacknowledged_restarts=restarts("user"))
    cluster.settle()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.charged == ()


@pytest.mark.parametrize(
    ("elastic", "budget"),
    [
        ({}, Budget(max_restarts=0)),
        ({"maxRestarts": 3}, Budget(max_restarts=3)),
        ({"maxRestartsWithoutProgress": 2}, Budget(max_restarts=None, without_progress=2)),
        ({"maxRestartsWithoutProgress": 2, "maxRestarts": 9}, Budget(max_restarts=9, without_progress=2)),
        (
            {"restartBudget": {"windowSeconds": 60, "user": 4, "disruption": 5}, "hangTimeoutSeconds": 90},
            Budget(max_restarts=0, by_cause=(("user", 4), ("disruption", 5)), window_s=60, hang_s=90),
        ),
    ],
)
def test_the_server_is_told_the_whole_budget(elastic: dict[str, Any], budget: Budget) -> None:
    assert told(running(2, **elastic)).budget == replace(budget, pace_s=WINDOW_S)
    assert told(running(2, stragglers="Ignore", **elastic)).budget == budget


def test_a_closed_world_stands_in_the_status_before_anything_is_done_about_it() -> None:
    """Its server may die the next moment, and nobody else knows that the budget is spent."""
    cluster = running(2, restartBudget={"windowSeconds": 600})
    pods = cluster.names()
    reason = "a worker of train-worker-1 ended with status 1. Restarts used: 0 of 0."
    cluster.world = WorldSeen(
        generation=3, members=frozenset(), phase="closed", closed=reason, unacknowledged_restarts=restarts("user", generation=3)
    )
    first = cluster.round()
    assert first.actions == ()
    cluster.world = None
    assert cluster.names() == pods
    cluster.settle()
    assert cluster.state() == "Failed"
    assert cluster.job.status.conditions[-1].message.endswith(f"{reason}")
    assert cluster.job.status.elastic is not None
    assert (cluster.job.status.elastic.restarts, cluster.job.status.elastic.restart_count) == ({"user": 1}, 0)
    assert cluster.job.status.elastic.charged == (Charge(cause="user", at=NOW),)
    assert {pod.phase for pod in cluster.pods.values()} == {PodPhase.FAILED}, "stopped, and kept for their logs"


def test_a_closed_world_gives_the_reason_even_if_its_workers_have_failed_for_good() -> None:
    cluster = running(2, restart="Never")
    cluster.world = WorldSeen(
        generation=3, members=frozenset(), phase="closed", closed="the budget is spent", unacknowledged_restarts=restarts("user")
    )
    cluster.set("train-worker-0", PodPhase.FAILED, code=1)
    cluster.settle()
    assert cluster.state() == "Failed"
    assert cluster.job.status.conditions[-1].message.endswith("the budget is spent")


@pytest.mark.parametrize(("code", "reason", "cause"), [(139, "Error", Cause.USER), (137, "OOMKilled", Cause.OUT_OF_MEMORY)])
def test_a_pod_that_ended_by_its_own_doing_is_told_of_until_it_is_gone(code: int, reason: str, cause: Cause) -> None:
    cluster = running(2, restart="ExitCode", maxRestarts=9)
    cluster.set("train-worker-1", PodPhase.FAILED)
    container = Container(name="pytorch", exit_code=code, exit_reason=reason)
    failed = replace(cluster.pods["train-worker-1"], containers=(container,))
    cluster.pods["train-worker-1"] = failed
    end = End("train-worker-1", failed.uid, 0, cause, is_last=True)
    for _ in range(3):
        assert told(cluster).ended == (end,)
        assert "train-worker-1" in cluster.names()
    members = frozenset({"train-worker-0"})
    cluster.world = WorldSeen(
        generation=2, members=members, phase="running", unacknowledged_restarts=restarts(cause.value), explained=(end.id,)
    )
    assert told(cluster).ended == (end,)
    assert told(cluster).ended == (), "that the server has counted it stands in the status now, and so it goes"
    assert "train-worker-1" not in cluster.names()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {cause.value: 1}, "the server counts"


@pytest.mark.parametrize("code", [137, 143])
def test_a_container_that_was_killed_from_outside_is_not_the_programs_crash(code: int) -> None:
    cluster = running(2)
    name = "train-worker-1"
    again = Container(name="pytorch", restarts=1, last_exit_code=code, last_exit_reason="Error")
    cluster.pods[name] = replace(cluster.pods[name], containers=(again,))
    assert told(cluster).ended == (End(name, cluster.pods[name].uid, 0, Cause.DISRUPTION),)
    crashed = replace(again, last_exit_code=1)
    cluster.pods[name] = replace(cluster.pods[name], containers=(crashed,))
    assert told(cluster).ended == (End(name, cluster.pods[name].uid, 0, Cause.USER),)


@pytest.mark.parametrize(("code", "state"), [(1, "Failed"), (137, "Running")])
def test_a_worker_that_never_comes_so_far_as_to_join_uses_up_the_backoff_limit(code: int, state: str) -> None:
    cluster = Cluster(elastic_job(2, policy={"backoffLimit": 3}), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    crashing = Container(name="pytorch", restarts=3, waiting="CrashLoopBackOff", last_exit_code=code, last_exit_reason="Error")
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(crashing,))
    cluster.settle()
    assert cluster.state() == state


def test_the_backoff_limit_of_a_script_stops_what_never_joins_and_comes_after_its_max_restarts() -> None:
    """A shell script that ended with 4 was started for ever. A training script's disruptions do not reach the limit."""
    spec = job_of(Path("/train.sh"), [], ScriptOptions(workers=Workers(1, 2)), working_dir=Path("/"))["spec"]
    cluster = Cluster(elastic_job(2, policy=spec["runPolicy"], elastic=spec["elasticPolicy"]), settings=OURS)
    cluster.settle()
    cluster.run_all()
    cluster.settle()
    restarted = restarts(*["user"] * spec["elasticPolicy"]["maxRestarts"], *["disruption"] * 40, *["collateral"] * 9)
    cluster.world = WorldSeen(generation=2, members=frozenset(cluster.names()), phase="running", unacknowledged_restarts=restarted)
    again = Container(name="pytorch", restarts=2, last_exit_code=1, last_exit_reason="Error")
    for name, container in (("train-worker-1", again), ("train-worker-0", replace(again, last_exit_code=255, last_exit_reason="Unknown"))):
        cluster.pods[name] = replace(cluster.pods[name], containers=(container,))
    cluster.settle()
    assert cluster.state() == "Running"
    cluster.pods["train-worker-1"] = replace(cluster.pods["train-worker-1"], containers=(replace(again, restarts=5),))
    cluster.settle()
    assert cluster.state() == "Failed"
    why = "it has reached the specified backoff limit. First of all train-worker-1 failed with exit code 1."
    assert cluster.job.status.conditions[-1].message.endswith(why)


def test_how_a_pod_ended_that_is_being_deleted_is_not_told() -> None:
    cluster = running(2, restart="ExitCode")
    container = Container(name="pytorch", exit_code=139, exit_reason="Error")
    cluster.pods["train-worker-1"] = replace(
        cluster.pods["train-worker-1"], phase=PodPhase.FAILED, containers=(container,), is_deleting=True
    )
    assert told(cluster).ended == ()


def test_a_loss_that_proves_to_be_the_users_counts_there_and_no_longer_as_a_disruption() -> None:
    cluster = running(2, maxRestarts=3, restartBudget={"windowSeconds": 600})
    name = "train-worker-1"
    guess = Restart(id="1-s/a", generation=1, cause="disruption", pod=cluster.pods[name].uid, lost=True, unsure=True)
    members = frozenset(cluster.names())
    cluster.world = WorldSeen(generation=2, members=members, phase="running", unacknowledged_restarts=(guess,))
    cluster.settle()
    known = cluster.job.status.elastic
    assert known is not None
    assert (known.restarts, len(known.open), told(cluster).unsettled) == ({"disruption": 1}, 1, (guess,))
    sure = replace(guess, cause="user", lost=False, unsure=False)
    cluster.world = WorldSeen(generation=2, members=members, phase="running", unacknowledged_restarts=(sure,))
    cluster.settle()
    known = cluster.job.status.elastic
    assert known is not None
    assert (known.restarts, known.open) == ({"user": 1}, ())
    assert known.charged == (Charge(cause="user", at=NOW),)


def test_facts_that_only_the_server_knows_are_written_down_before_a_suspension_makes_it_forget() -> None:
    cluster = running(2)
    cluster.world = WorldSeen(
        generation=1, members=frozenset(cluster.names()), phase="running", unacknowledged_restarts=restarts("disruption")
    )
    cluster.job = structs.replace(cluster.job, run_policy=structs.replace(cluster.job.run_policy, suspend=True))
    first = cluster.round()
    assert first.actions == ()
    assert cluster.job.status.elastic is not None
    assert cluster.job.status.elastic.restarts == {"disruption": 1}
    assert cluster.round().actions == (), "the suspension is written down, too"
    assert Forget(is_awaited=True) in cluster.round().actions
    assert cluster.job.status.elastic.world_size == 0, "nobody works in it any more"


def test_a_job_resumes_only_once_the_server_has_forgotten_the_run_before() -> None:
    """The server was cut off while the job was suspended and resumed.

    It then heard the farewells of the former run's workers next to the workers of the next run, and counted three planned ends as
    disruptions.
    """
    cluster = running(3)
    start = cluster.job.status.start_time
    policy = cluster.job.run_policy
    cluster.job = structs.replace(cluster.job, run_policy=structs.replace(policy, suspend=True))
    cluster.settle()
    assert cluster.told[-1] == Forget(is_awaited=True)
    assert cluster.names() == [], "suspension itself waits for nobody"
    cluster.is_forgotten = False  # the message has not arrived
    cluster.job = structs.replace(cluster.job, run_policy=policy)
    cluster.now += timedelta(seconds=20)
    waiting = cluster.round()
    assert waiting.actions == (Forget(is_awaited=True),)
    assert cluster.state() == "Suspended"
    assert "once the rendezvous server has answered" in cluster.job.status.conditions[-1].message
    assert cluster.job.status.start_time == start
    cluster.is_forgotten = True
    cluster.settle()
    assert cluster.names() == ["train-worker-0", "train-worker-1", "train-worker-2"]
    assert cluster.job.status.start_time == cluster.now
    assert cluster.state() == "not Suspended"


def test_a_job_that_meets_in_an_etcd_resumes_once_that_has_forgotten_the_run_before_or_a_minute_later() -> None:
    """Agents of the next run found the world of the former one there, and counted its members as lost.

    If the etcd does not let the controller in, the job must not wait for ever.
    """
    cluster = running(2, rdzvBackend="etcd", rdzvHost="etcd")
    policy = cluster.job.run_policy
    for is_forgotten in (True, False):
        cluster.job = structs.replace(cluster.job, run_policy=structs.replace(policy, suspend=True))
        cluster.settle()
        assert cluster.names() == []
        cluster.is_forgotten = is_forgotten
        cluster.job = structs.replace(cluster.job, run_policy=policy)
        planned = cluster.round()
        if not is_forgotten:
            (forget,) = planned.actions
            assert isinstance(forget, Forget)
            assert forget.is_awaited
            assert forget.place is not None
            assert forget.place.endpoints == ("etcd:2379",)
            assert planned.look_again_at == cluster.now + timedelta(seconds=60)
            assert "once the etcd where it meets has forgotten" in cluster.job.status.conditions[-1].message
            cluster.is_forgotten = False
            cluster.now += timedelta(seconds=60)
        cluster.settle()
        assert cluster.names() == ["train-worker-0", "train-worker-1"]


def test_the_ends_of_all_workers_of_a_world_are_one_restart() -> None:
    """A crash of one worker of six was shown as six restarts."""

    def ended(*names: str, generation: int, cause: str) -> WorldSeen:
        entries = tuple(Restart(id=f"g{generation}/{name}", generation=generation, cause=cause, pod=name) for name in names)
        return WorldSeen(generation, frozenset(), unacknowledged_restarts=entries)

    status = with_reported_restarts(ElasticStatus(generation=1), ended("a", generation=1, cause="user"))
    for name in "bcdef":
        status = with_reported_restarts(status, ended(name, generation=1, cause="collateral"))
    assert (status.restart_count, status.restarts) == (1, {"collateral": 5, "user": 1})
    lost = with_reported_restarts(status, ended("a", "b", generation=2, cause="disruption"))
    assert (lost.restart_count, lost.restarts["disruption"]) == (2, 2), "a node with two workers was lost"
    assert with_reported_restarts(lost, ended("a", "b", generation=2, cause="disruption")) == lost, "told again"
    asked = with_reported_restarts(lost, ended("c", generation=3, cause="plan"))
    assert asked.restart_count == 2
    alone = with_reported_restarts(
        asked, WorldSeen(3, frozenset(), unacknowledged_restarts=(Restart(id="d/0", generation=3, cause="user", pod="d"),))
    )
    assert alone.restart_count == 3, "its container ended outside any world"


@pytest.mark.parametrize("id", ["3-a/w1", "w1/0"])
def test_the_failure_that_ends_the_job_is_no_restart(id: str) -> None:
    """A script with a bug and maxRestarts 0 was shown with one restart."""
    before = (Restart(id="2-a/w1", generation=2, cause="user", pod="w1"),)
    last = Restart(id=id, generation=3, cause="user", pod="w1")
    closing = WorldSeen(3, frozenset(), closed="Restarts used: 1 of 1.", unacknowledged_restarts=(*before, last))
    status = with_reported_restarts(ElasticStatus(generation=1), closing)
    assert (status.restart_count, status.restarts) == (1, {"user": 2})
    assert with_reported_restarts(structs.replace(status, closed=closing.closed), closing).restart_count == 1, "told again"


def test_a_restart_whose_cause_is_found_later_stays_one_if_it_ends_the_job() -> None:
    lost = Restart(id="2-a/w1", generation=2, cause="disruption", pod="w1", lost=True, unsure=True)
    status = with_reported_restarts(ElasticStatus(generation=1), WorldSeen(3, frozenset(), unacknowledged_restarts=(lost,)))
    known = replace(lost, cause="user", lost=False, unsure=False)
    closing = WorldSeen(3, frozenset(), closed="Restarts used: 0 of 0.", unacknowledged_restarts=(known,))
    for before in (status, ElasticStatus(generation=1)):
        assert with_reported_restarts(before, closing).restart_count == 1
