"""Agents that meet in etcd, each with its real presence, on an etcd in memory and a virtual clock."""

from collections.abc import Iterator

import pytest
from etcd_agents import Hosts, Job
from etcd_store import PREFIX

from elastic_worker.etcd.decide import MOST_SUSPECTS
from elastic_worker.etcd.leases import Leases


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def test_one_agent_waits_for_the_last_call_and_then_trains_alone(job: Job) -> None:
    job.start("w0")
    job.turn()
    assert "waiting 2 s for others that may come" in job.agents["w0"].view.waiting
    job.live(3)
    assert job.names() == ("w0",)
    assert job.agents["w0"].held.store == "w0:0"


def test_nobody_waits_for_a_last_call_once_the_greatest_size_is_reached(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    assert job.names() == ("w0", "w1", "w2"), "by age, and no time has passed"
    assert {agent.held.rank for agent in job.agents.values()} == {0, 1, 2}


def test_a_newcomer_is_taken_in_and_survivors_keep_their_ranks(job: Job) -> None:
    job.start("w5", "w6")
    job.live(5)
    job.start("w0")
    job.live(5)
    assert job.names() == ("w5", "w6", "w0")
    assert job.world().generation == 2
    assert job.world().reason == "w0 joined; 3 members"
    assert job.world().restarts == {}, "a join charges nothing"


def test_the_world_trains_on_while_a_newcomer_is_gathered(job: Job) -> None:
    job.start("w0")
    job.live(5)
    job.start("w1")
    job.turn()
    assert not job.agents["w0"].view.reform, "others may come yet"


def test_a_killed_agent_is_missed_when_its_lease_ends(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.end("w0")
    job.live(4)
    assert job.world().generation == 1
    job.live(3)
    assert job.names() == ("w2", "w1"), "the hole at rank 0 is filled, and the other survivor keeps its rank"
    assert job.world().restarts == {"disruption": 1}


def test_a_killed_agent_whose_host_says_so_is_missed_once_its_peers_fail(job: Job) -> None:
    job.hosts.are_there = True
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.end("w0")
    job.agents["w1"].fail()
    job.live(1)
    assert job.names() == ("w2", "w1")
    assert job.world().restarts == {"disruption": 1, "collateral": 1}


def test_while_nobody_fails_hosts_are_not_asked(job: Job) -> None:
    job.hosts.are_there = True
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.end("w0")
    job.live(4)
    assert job.world().generation == 1, "its lease says it, and nobody's work was disturbed until then"


def test_each_member_looks_after_the_next_ones_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(max=20)
    names = [f"w{index:02}" for index in range(20)]
    job.start(*names)
    job.turn(4)
    addresses = {agent.alive_at: name for name, agent in job.agents.items()}
    asked: dict[str, list[str]] = {}
    for name, agent in job.agents.items():
        hosts = Hosts()
        monkeypatch.setattr(hosts, "ask", lambda found, name=name: asked.setdefault(name, [addresses[address] for address in found]))
        monkeypatch.setattr(agent.presence, "_asking", hosts)
    job.agents["w00"].fail()
    job.turn(2)
    ranks = job.names()
    assert asked[ranks[0]] == list(ranks[1 : MOST_SUSPECTS + 1])
    assert asked[ranks[15]] == [*ranks[16:20], *ranks[1:5]]
    job.close()


def test_an_agent_that_leaves_is_missed_at_once_and_nobody_is_charged(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.end("w1", politely=True)
    job.turn()
    assert "w1 left: received SIGTERM" in job.agents["w0"].view.reform
    job.live(1)
    assert len(job.names()) == 2
    assert job.world().restarts == {"disruption": 1}
    assert job.member("w1") is None, "what it left behind went with the next world"


def test_a_peers_failure_calls_everybody_and_the_first_one_is_charged(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.agents["w1"].fail()
    job.turn()
    job.agents["w0"].fail()
    job.agents["w2"].fail()
    job.live(2)
    assert len(job.names()) == 3
    assert job.world().generation == 2
    assert job.world().restarts == {"user": 1, "collateral": 2}
    assert "a worker of w1 ended with status 1" in job.world().reason


def test_a_worker_that_was_killed_for_its_memory_is_charged_to_memory(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.agents["w1"].fail("the kernel killed the worker", status=137, out_of_memory=True)
    job.live(2)
    assert job.world().restarts == {"outOfMemory": 1}
    assert job.world().reason.startswith("a worker of w1 ended with status 137, SIGKILL, because the memory of its container was used up")


def test_a_worker_that_a_signal_ended_names_it(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.agents["w1"].fail(status=139)
    job.turn()
    job.agents["w0"].fail()
    job.agents["w2"].fail()
    job.live(2)
    assert "a worker of w1 ended with status 139, SIGSEGV" in job.world().reason


def test_a_worker_that_fell_with_its_peer_is_not_charged_though_it_ended_before(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.agents["w0"].fail("RuntimeError: Connection closed by peer [10.0.0.2]:4711")
    job.turn()
    job.agents["w1"].fail("ValueError: bad batch")
    job.live(2)
    assert {end.name: end.cause for end in job.world().ends} == {"w0": "collateral", "w1": "user"}


def test_workers_that_fail_because_a_peer_was_lost_are_charged_to_nobody(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.end("w1")
    job.agents["w0"].fail()
    job.agents["w2"].fail()
    job.live(8)
    assert job.world().restarts == {"disruption": 1, "collateral": 2}


def test_a_spent_budget_closes_the_job_for_everybody() -> None:
    job = Job(max_restarts=1)
    job.start("w0", "w1", "w2")
    job.turn(6)
    for _ in range(2):
        job.agents["w1"].fail()
        job.live(5)
    assert "Restarts used: 1 of 1." in job.agents["w0"].view.closed
    job.start("w9")
    job.turn()
    assert job.agents["w9"].view.closed
    job.close()


def test_fewer_than_the_least_size_wait_and_say_how_many_they_are() -> None:
    job = Job(min=2)
    job.start("w0")
    job.live(10)
    assert job.agents["w0"].view.waiting == "1 of at least 2 members is here"
    job.start("w1")
    job.live(5)
    assert len(job.names()) == 2
    job.end("w1", politely=True)
    job.live(2)
    assert job.agents["w0"].is_ready
    job.close()


def test_only_allowed_sizes_are_formed() -> None:
    job = Job(min=1, max=4, sizes=(1, 2, 4))
    job.start("w0", "w1", "w2")
    job.live(8)
    assert len(job.names()) == 2
    job.start("w3")
    job.live(8)
    assert len(job.names()) == 4
    job.close()


def test_an_agent_whose_lease_ended_while_it_was_stopped_comes_back_as_another(job: Job) -> None:
    """It woke with a view of a world that had gone on without it, and must not believe that view."""
    job.start("w0", "w1")
    job.live(5)
    frozen = job.agents["w1"]
    frozen.is_frozen = True
    before = job.member("w1").incarnation
    job.live(8)
    assert job.names() == ("w0",)
    frozen.is_frozen = False
    frozen.turn()
    assert "the lease of this member ended" in frozen.view.reform
    frozen.come()
    job.live(5)
    assert set(job.names()) == {"w0", "w1"}
    assert job.member("w1").incarnation != before


def test_an_agent_stopped_between_the_seal_and_its_entry_does_not_enter_later(job: Job) -> None:
    job.start("w0", "w1", "w2")
    for agent in job.agents.values():
        agent.presence._try()
    for agent in job.agents.values():
        agent.presence._try()
    assert job.world() is not None
    assert job.agents["w2"].presence.view.generation == 0 or job.agents["w2"].presence.view.generation == 1
    job.agents["w2"].presence._try()
    assert job.agents["w2"].presence.view.generation == 1
    job.etcd.advance(20)
    stale = job.agents["w2"].presence.view
    assert stale.generation == 0
    assert "was not renewed for 20 s" in stale.waiting


def test_a_member_that_does_not_come_back_is_given_up_until_it_does() -> None:
    job = Job(grace_s=5.0)
    job.start("w0", "w1", "w2")
    job.turn(6)
    stuck = job.agents["w2"]
    stuck.come = lambda trouble="": None  # type: ignore[method-assign]
    job.end("w1", politely=True)
    job.live(30)
    assert job.names() == ("w0",)
    assert "went on without this member" in stuck.view.reform
    del stuck.come
    job.live(10)
    assert set(job.names()) == {"w0", "w2"}
    job.close()


def test_the_work_is_done_when_all_have_finished_and_a_late_agent_hears_it(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.agents["w0"].presence.report_state("finished", generation=1)
    job.turn()
    assert not job.agents["w1"].view.peers_finished
    job.agents["w1"].presence.report_state("finished", generation=1)
    job.turn()
    assert job.agents["w2"].view.peers_finished
    job.agents["w2"].presence.report_state("finished", generation=1)
    job.turn()
    for name in ("w0", "w1", "w2"):
        job.end(name, politely=True)
    job.etcd.advance(60)
    job.start("w3")
    job.live(5)
    assert "the training has ended" in job.agents["w3"].view.finished
    assert job.world().generation == 1


def test_a_worker_lost_while_others_finish_disturbs_nobody(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.agents["w0"].presence.report_state("finished", generation=1)
    job.end("w1")
    job.start("w4")
    job.live(20)
    assert not job.agents["w2"].view.reform
    assert not job.agents["w4"].view.finished
    assert "finishing" in job.agents["w4"].view.waiting
    job.agents["w2"].presence.report_state("finished", generation=1)
    job.live(1)
    assert job.agents["w4"].view.finished


def test_a_worker_interrupted_after_others_have_finished_begins_again_if_it_may(job: Job) -> None:
    job.start("w0", "w1")
    job.live(5)
    job.agents["w0"].presence.report_state("finished", generation=1)
    job.agents["w1"].fail()
    job.live(5)
    assert job.names() == ("w1",)
    assert job.world().restarts == {"collateral": 1}


def test_everything_goes_once_nobody_has_been_here_for_the_linger_time(job: Job) -> None:
    job.start("w0")
    job.live(5)
    job.end("w0", politely=True)
    assert job.etcd.keys
    job.etcd.advance(301)
    assert not job.etcd.keys


def test_a_lease_that_a_stranger_took_first_is_not_the_jobs(job: Job) -> None:
    """Leases need no permission: with an id that derives from the prefix alone, another job's user could give this job a world of 2 s."""
    stranger = Leases(job.etcd, prefix=PREFIX, token="another token", own_s=2, job_s=2)
    stranger.keep(0.0)
    job.start("w0", "w1")
    job.live(20)
    assert job.world().generation == 1
    assert stranger.job not in job.etcd.leases


def test_more_members_than_etcd_compares_one_by_one() -> None:
    job = Job(max=130)
    job.start(*(f"w{index}" for index in range(130)))
    job.turn(4)
    assert len(job.names()) == 130
    job.close()
