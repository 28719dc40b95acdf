"""Steps that workers report at a rendezvous in etcd: who writes them down, what a hang costs, and when restarts lead nowhere.

In memory and virtual time.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from etcd_agents import Job, Link

from elastic_worker.etcd.gateway import Unreachable
from elastic_worker.etcd.records import PROGRESS, Leaving, Progress
from elastic_worker.etcd.steps import REPORT_S


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job(hang_s=60.0)
    yield made
    made.close()


def train(job: Job, seconds: float, *, step: int, every: tuple[str, ...] = ()) -> int:
    """Let every worker, or the named ones, make two steps a second. Return the newest step."""
    for _ in range(int(seconds / 0.5)):
        step += 1
        for agent in job.agents.values():
            if agent.is_working and not agent.view.reform and (not every or agent.name in every):
                agent.step(step)
        job.live(0.5)
    return step


def progress(job: Job) -> Progress | None:
    found = job.etcd.open(PROGRESS)
    return found if isinstance(found, Progress) else None


def started(**rules: Any) -> Job:
    job = Job(**rules)
    job.start("w0", "w1", "w2")
    job.turn(6)
    return job


def test_one_member_writes_the_steps_that_all_report_and_only_now_and_then() -> None:
    job = started()
    job.agents["w1"].step(1)
    job.agents["w0"].step(1)
    job.turn()
    assert progress(job) == Progress(step=1, generation=1, in_world=1), "the first step of a world is news"
    writes = job.etcd.writes
    train(job, 30, step=1)
    assert job.etcd.writes - writes <= 30 / REPORT_S + 1
    found = progress(job)
    assert found is not None
    assert found.in_world >= 61 - 2 * (REPORT_S + 1)
    job.close()


def test_if_rank_0_reports_nothing_another_member_writes() -> None:
    job = started()
    train(job, 20, step=0, every=("w2",))
    found = progress(job)
    assert found is not None
    assert found.in_world >= 40 - 2 * (REPORT_S + 2)
    job.close()


def test_training_that_stands_still_is_restarted_once_and_charged_as_a_hang(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    step = train(job, 10, step=0)
    job.live(55)
    assert job.world().generation == 1
    job.live(15)
    assert job.world().generation == 2
    assert job.world().reason == "training reported no further step for 60 s; 3 members"
    assert (job.world().cause, job.world().restarts) == ("hang", {"hang": 1})
    train(job, 100, step=step)
    assert job.world().generation == 2


def test_a_job_that_never_reports_never_hangs(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.live(300)
    assert job.world().generation == 1


def test_an_outage_of_etcd_is_no_hang(job: Job) -> None:
    """While etcd is down its leases stand still, and nobody can write how far training comes."""
    job.start("w0", "w1")
    job.live(5)
    step = train(job, 10, step=0)
    for agent in job.agents.values():
        agent.link.is_cut = True
    for _ in range(200):
        job.etcd.now += 1.0
        for lease in job.etcd.leases.values():
            lease.until += 1.0
        step += 1
        for agent in job.agents.values():
            agent.step(step)
            agent.turn()
    for agent in job.agents.values():
        agent.link.is_cut = False
    train(job, 20, step=step)
    assert (job.world().generation, job.world().restarts) == (1, {})


def test_one_that_was_stopped_itself_calls_no_hang(job: Job) -> None:
    job.start("w0", "w1")
    job.live(5)
    step = train(job, 10, step=0)
    stopped = job.agents["w0"]
    stopped.link.is_deaf = True  # what its watch brings is read later than its clock goes on
    stopped.is_frozen = True
    for _ in range(160):
        step = train(job, 0.5, step=step, every=("w1",))
        job.etcd.leases[stopped.presence._leases.own].until = job.etcd.now + 5  # its lease is the only thing that goes on
    stopped.is_frozen = False
    stopped.presence._check_at = job.etcd.now + 1000
    stopped.turn()
    assert (job.world().generation, job.world().round) == (1, None)


def test_while_somebody_has_finished_nobody_hangs(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    train(job, 5, step=0)
    job.agents["w0"].presence.report_state("finished", generation=1)
    job.live(200)
    assert job.world().generation == 1


def test_the_time_to_the_first_step_of_a_world_counts_from_its_beginning(job: Job) -> None:
    job.start("w0", "w1")
    job.live(5)
    train(job, 50, step=0)
    job.start("w2")
    job.live(50)
    assert len(job.names()) == 3
    assert job.world().restarts == {}
    job.live(20)
    assert job.world().restarts == {"hang": 1}


def test_hangs_and_failures_share_a_budget() -> None:
    job = started(hang_s=10.0, max_restarts=1)
    train(job, 5, step=0)
    job.live(15)
    assert job.world().restarts == {"hang": 1}
    job.agents["w0"].fail()
    job.live(5)
    assert job.agents["w1"].view.closed.endswith("Restarts used: 1 of 1.")
    job.close()


def crash(job: Job) -> None:
    job.agents["w1"].fail()
    job.live(5)


def test_restarts_in_a_row_without_a_further_step_end_the_job() -> None:
    job = started(without_progress=2)
    step = train(job, 10, step=0)
    crash(job)
    assert job.world().fruitless == 1
    crash(job)
    assert job.world().fruitless == 2
    train(job, 10, step=step)
    crash(job)
    assert job.world().fruitless == 1, "it came further"
    for _ in range(2):
        train(job, 5, step=0)
        crash(job)
    words = "2 restarts in a row, as many as maxRestartsWithoutProgress allows, brought no step forward."
    assert job.agents["w0"].view.closed.endswith(words)
    job.close()


def test_a_requested_change_is_no_restart_without_progress() -> None:
    job = started(without_progress=1, max=4)
    for name in ("w3", "w4"):
        job.start(name)
        job.live(5)
    assert (len(job.names()), job.world().fruitless) == (4, 0)
    job.close()


def test_without_reports_a_world_that_lasted_has_got_somewhere() -> None:
    job = started(without_progress=1)
    for _ in range(3):
        job.live(310, step_s=1.0)
        crash(job)
    assert (job.world().fruitless, job.world().closed) == (1, "")
    crash(job)
    assert job.agents["w0"].view.closed
    job.close()


def test_an_etcd_that_takes_no_more_writes_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    job = started()
    whole, refused = Link.call, []

    def full(link: Link, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path in ("kv/put", "kv/txn"):
            refused.append(path)
            raise Unreachable("answered 429: etcdserver: mvcc: database space exceeded")
        return whole(link, path, body)

    monkeypatch.setattr(Link, "call", full)
    train(job, 60, step=0)
    assert 1 <= len(refused) <= 6
    assert not any(agent.view.reform or agent.presence.denied for agent in job.agents.values())
    job.close()


# --- state is passed on


def test_a_member_that_alone_has_the_state_stays_until_another_has_made_a_step() -> None:
    job = Job(max=4)
    job.expect("w0")
    job.start("w0")
    job.live(2)
    step = train(job, 5, step=0)
    job.expect("w1", newcomers=("w1",), pending=("w1",), leaving=(Leaving("w0", "disruption"),), max=2)
    train(job, 5, step=step)
    assert job.names() == ("w0",), "nobody else could go on"
    job.start("w1")
    job.expect("w1", newcomers=("w1",), leaving=(Leaving("w0", "disruption"),), max=2)
    job.live(3)
    assert job.names() == ("w0", "w1"), "rank 0 has the state"
    train(job, 5, step=step + 10)
    assert job.names() == ("w1",)
    assert job.world().restarts == {}
    job.close()


def test_without_reports_the_state_is_passed_on_after_a_while() -> None:
    job = Job(max=4)
    job.expect("w0", state_s=20.0)
    job.start("w0")
    job.live(25)
    leaving = (Leaving("w0", "disruption"),)
    job.expect("w1", "w2", newcomers=("w1", "w2"), leaving=leaving, max=3, state_s=20.0)
    job.start("w1", "w2")
    job.live(10)
    assert set(job.names()) == {"w0", "w1", "w2"}
    job.live(20)
    assert set(job.names()) == {"w1", "w2"}
    job.close()


def test_a_member_that_may_have_to_leave_is_exchanged_in_one_change() -> None:
    job = Job(max=4)
    job.expect("w0", "w1")
    job.start("w0", "w1")
    job.live(2)
    train(job, 5, step=0)
    prepared = (Leaving("w1", "disruption", when_replaced=True),)
    job.expect("w0", "w2", pending=("w2",), newcomers=("w2",), leaving=prepared, max=2)
    train(job, 5, step=10)
    assert (job.names(), job.world().generation) == (("w0", "w1"), 1)
    job.start("w2")
    job.live(3)
    assert (job.names(), job.world().generation) == (("w0", "w2"), 2)
    job.close()


# --- what a worker hears


def test_a_worker_hears_by_when_it_must_have_left_and_that_its_world_changes() -> None:
    job = Job(max=4)
    job.expect("w0", "w1")
    job.start("w0", "w1")
    job.live(2)
    assert job.agents["w0"].presence.answer() == {"stop": False, "reason": "", "checkpoint_s": None}
    job.expect("w0", leaving=(Leaving("w1", "disruption", by_s=30.0),))
    job.turn(1)
    answer = job.agents["w1"].presence.answer()
    assert (answer["stop"], answer["checkpoint_s"]) == (True, 30.0)
    assert "w1 is leaving (disruption)" in answer["reason"]
    job.etcd.advance(10)
    assert job.agents["w1"].presence.answer()["checkpoint_s"] == 20.0
    job.close()


def test_a_worker_that_may_have_to_leave_hears_it_for_a_while() -> None:
    job = Job()
    job.expect("w0", "w1", leaving=(Leaving("w0", "disruption", by_s=30.0, when_replaced=True),))
    job.start("w0", "w1")
    job.live(2)
    assert job.agents["w0"].presence.answer()["checkpoint_s"] is not None
    job.live(31)
    assert job.agents["w0"].presence.answer()["checkpoint_s"] is None
    job.close()
