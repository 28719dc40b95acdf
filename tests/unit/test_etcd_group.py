"""What agents do together that meet in etcd, each with its real presence, on an etcd in memory and a virtual clock."""

from collections.abc import Iterator

import pytest
from etcd_store import Job

from elastic_worker.etcd.records import EXPECTED, WORLD, Leaving, Seal, World


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def in_world(job: Job) -> set[str]:
    return {agent.name for agent in job.agents.values() if agent.is_working and not agent.view.reform}


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


def test_a_killed_agent_is_missed_when_its_lease_is_over(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.end("w0")
    job.live(4)
    assert job.world().generation == 1
    job.live(3)
    assert job.names() == ("w2", "w1"), "the hole at rank 0 is filled, and the other survivor keeps its rank"
    assert job.world().restarts == {"disruption": 1}


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
    assert "all 1 restarts that max_restarts allows are used up" in job.agents["w0"].view.closed
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


def test_a_worker_interrupted_after_others_have_finished_begins_again_where_it_may(job: Job) -> None:
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


def test_more_members_than_etcd_compares_one_by_one() -> None:
    job = Job(max=130)
    job.start(*(f"w{index}" for index in range(130)))
    job.turn(4)
    assert len(job.names()) == 130
    job.close()


# --- etcd's own troubles


def test_training_goes_on_while_etcd_is_away(job: Job) -> None:
    job.start("w0", "w1")
    job.live(5)
    for agent in job.agents.values():
        agent.link.is_cut = True
    for _ in range(20):
        job.turn(1)
        job.etcd.now += 3.0  # leases do not end while there is no etcd
    assert in_world(job) == {"w0", "w1"}
    assert job.agents["w0"].presence.away_s > 50
    for lease in job.etcd.leases.values():
        lease.until = job.etcd.now + lease.ttl
    for agent in job.agents.values():
        agent.link.is_cut = False
    job.live(10)
    assert job.world().generation == 1
    assert in_world(job) == {"w0", "w1"}


def test_an_agent_at_the_barrier_says_that_etcd_does_not_answer(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.start("w0")
    job.agents["w0"].link.is_cut = True
    job.turn()
    assert "does not answer: connection refused" in job.agents["w0"].view.waiting
    assert len([record for record in caplog.records if "does not answer" in record.message]) == 1, "once, and by the first attempt already"


def test_compaction_is_answered_with_a_new_list(job: Job) -> None:
    job.start("w0", "w1")
    job.live(5)
    for agent in job.agents.values():
        agent.link.is_deaf = True
    job.start("w2")
    job.turn()
    job.etcd.compacted = job.etcd.revision
    for agent in job.agents.values():
        agent.link.is_deaf = False
    job.live(5)
    assert len(job.names()) == 3


def test_a_silent_watch_is_found_by_a_range(job: Job) -> None:
    job.start("w0", "w1")
    job.live(5)
    for agent in job.agents.values():
        agent.link.is_deaf = True
    job.end("w1", politely=True)
    job.live(12)
    assert job.names() == ("w0",), "though no watch brought a word of it"


def test_an_etcd_that_lost_everything_ends_no_job(job: Job) -> None:
    job.start("w0", "w1")
    job.live(5)
    job.etcd.keys.clear()
    job.etcd.leases.clear()
    for agent in job.agents.values():
        agent.link.watches[0].is_broken = True
    job.live(10)
    assert set(job.names()) == {"w0", "w1"}
    assert job.world().generation == 2, "a generation is never used twice"


def test_a_write_whose_answer_was_lost_is_not_repeated(job: Job) -> None:
    job.start("w0")
    job.turn()
    job.agents["w0"].link.loses_answers = True
    job.live(5)
    assert [world.generation for world, _ in job.etcd.worlds] == [1]


def test_what_is_not_ours_is_ignored_and_overwritten(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.etcd.write(WORLD, b"garbage")
    job.etcd.write("members/w7", b'{"v":1}')
    job.etcd.write("elsewhere/x", b"\x80\x04.")
    job.start("w0")
    job.live(5)
    assert job.names() == ("w0",)
    assert "the value of /elastic-training/job/world in etcd is ignored: it is not JSON" in caplog.text


def test_a_world_of_another_token_is_written_over_only_by_those_who_have_trained_here(job: Job) -> None:
    world = World(9, (), "", "", "")
    job.etcd.write(WORLD, Seal("another token", "job").close(WORLD, world))
    job.start("w0")
    job.live(10)
    assert "is ELASTIC_TOKEN the same for all agents?" in job.agents["w0"].view.waiting
    assert job.world() is None
    job.etcd.remove(WORLD)
    job.live(5)
    job.etcd.write(WORLD, Seal("another token", "job").close(WORLD, world))
    job.live(5)
    assert job.names() == ("w0",)


def test_a_lost_world_key_repeats_no_generation(job: Job) -> None:
    """Members that still worked in generation 1 looked as if they were at the barrier, and a newcomer sealed another generation 1."""
    job.start("w0", "w1")
    job.live(5)
    job.start("w2")
    job.etcd.remove(WORLD)
    job.turn(6)
    assert job.world() is None
    job.live(5)
    assert (job.world().generation, len(job.names())) == (2, 3)


def test_a_second_agent_of_the_same_name_replaces_the_first(job: Job) -> None:
    job.start("w0")
    job.live(5)
    first = job.agents.pop("w0")
    job.start("w0")
    job.turn()
    first.turn()
    assert first.presence.refused == "another agent has come as w0"
    job.live(8)
    assert job.names() == ("w0",)
    assert job.agents["w0"].is_working
    first.presence.close()


# --- with a controller


def test_with_a_controller_nobody_waits_for_a_last_call() -> None:
    job = Job(last_call_s=1000)
    job.expect("w0", "w1")
    job.start("w0", "w1")
    job.turn(6)
    assert set(job.names()) == {"w0", "w1"}
    job.close()


def test_expected_members_that_are_not_here_are_waited_for_a_while(job: Job) -> None:
    job.expect("w0", "w1", "w2", pending=("w2",))
    job.start("w0")
    job.turn()
    assert job.agents["w0"].view.waiting == "waiting for w1"
    job.live(6)
    assert job.names() == ("w0",)


def test_without_a_word_of_the_controller_none_is_formed_where_there_is_one() -> None:
    job = Job(needs_controller=True)
    job.start("w0", "w1", "w2")
    job.live(10)
    assert job.world() is None
    job.expect("w0", "w1", floor=7)
    job.live(1)
    assert job.world().generation == 8
    assert set(job.names()) == {"w0", "w1"}
    assert "w2 is leaving (plan)" in job.agents["w2"].view.waiting
    job.close()


def test_a_member_that_must_leave_is_let_go_and_never_rank_0(job: Job) -> None:
    job.expect("w0", "w1", "w2")
    job.start("w0", "w1", "w2")
    job.turn(6)
    job.expect("w0", "w1", "w2", leaving=(Leaving("w0", "disruption"),))
    job.live(3)
    assert set(job.names()) == {"w1", "w2"}
    assert job.world().reason.startswith("w0 must go (disruption)")
    assert job.world().restarts == {}


def test_a_controller_closes_the_job_for_everybody(job: Job) -> None:
    job.expect("w0")
    job.start("w0")
    job.live(2)
    job.expect("w0", closed="the deadline is over")
    job.turn()
    assert job.agents["w0"].view.closed == "the deadline is over"


def test_a_controller_that_goes_leaves_the_job_to_its_agents(job: Job) -> None:
    job.expect("w0", "w1")
    job.start("w0", "w1")
    job.turn(6)
    job.etcd.remove(EXPECTED)
    job.end("w1", politely=True)
    job.live(3)
    assert job.names() == ("w0",)
