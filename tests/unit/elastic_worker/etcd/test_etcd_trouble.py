"""An etcd that is away, silent, emptied, or holds what is not ours: what agents that meet there do. In memory and virtual time."""

from collections.abc import Iterator

import pytest
from etcd_agents import Job

from elastic_worker.etcd.records import WORLD, Seal, World


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    yield made
    made.close()


def test_training_goes_on_while_etcd_is_away(job: Job) -> None:
    job.start("w0", "w1")
    job.live(5)
    for agent in job.agents.values():
        agent.link.is_cut = True
    for _ in range(20):
        job.turn(1)
        job.etcd.now += 3.0  # leases do not end while there is no etcd
    assert job.in_world() == {"w0", "w1"}
    assert job.agents["w0"].presence.away_s > 50
    for lease in job.etcd.leases.values():
        lease.until = job.etcd.now + lease.ttl
    for agent in job.agents.values():
        agent.link.is_cut = False
    job.live(10)
    assert job.world().generation == 1
    assert job.in_world() == {"w0", "w1"}


def cut(job: Job, seconds: float) -> None:
    """Cut all agents off from etcd while its leases end, and connect them again."""
    for agent in job.agents.values():
        agent.link.is_cut = True
    for _ in range(int(seconds)):
        job.etcd.advance(1.0)
        job.turn(1)
    for agent in job.agents.values():
        agent.link.is_cut = False


def test_training_goes_on_if_all_leases_ended_while_nobody_reached_etcd(job: Job) -> None:
    """An etcd that is stopped for longer than the leases ends them all when it goes on: all workers were restarted for nothing."""
    job.start("w0", "w1", "w2")
    job.live(5)
    cut(job, 30)
    assert not job.etcd.open("members/w0")
    job.live(20)
    assert job.in_world() == {"w0", "w1", "w2"}
    assert job.world().generation == 1
    assert job.member("w0").incarnation.endswith(".1")
    job.end("w2")
    job.live(10)
    assert (job.names(), job.world().restarts) == (("w0", "w1"), {"disruption": 1}), "as if nothing had been"


def test_a_member_that_died_while_nobody_reached_etcd_is_missed_soon_after(job: Job) -> None:
    job.start("w0", "w1", "w2")
    job.live(5)
    job.end("w2")
    for agent in job.agents.values():
        agent.fail("Connection closed by peer")
    cut(job, 30)
    job.live(4)
    assert job.world().generation == 1
    job.live(10)
    assert set(job.names()) == {"w0", "w1"}
    assert job.world().restarts == {"disruption": 1, "collateral": 2}


def test_one_that_returns_late_is_a_newcomer(job: Job) -> None:
    job.start("w0", "w1")
    job.live(5)
    cut(job, 30)
    late = job.agents["w1"]
    late.link.is_cut = True
    job.live(10)
    assert job.names() == ("w0",)
    late.link.is_cut = False
    job.live(10)
    assert set(job.names()) == {"w0", "w1"}
    assert job.member("w1").incarnation.endswith(".2")


def test_an_agent_that_was_stopped_alone_trains_on(job: Job) -> None:
    job.start("w0")
    job.live(5)
    job.etcd.advance(30)
    job.live(5)
    assert (job.world().generation, job.in_world()) == (1, {"w0"})


def test_an_agent_at_the_barrier_says_that_etcd_does_not_answer(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.start("w0")
    job.agents["w0"].link.is_cut = True
    job.turn()
    assert "does not answer: connection refused" in job.agents["w0"].view.waiting
    assert len([record for record in caplog.records if "does not answer" in record.message]) == 1, "once, and by the first attempt already"


@pytest.mark.parametrize("answer", [{}, {"ID": "nonsense"}, {"ID": []}, {"result": 7, "header": 5, "kvs": "x"}])
def test_an_etcd_that_answers_nonsense_is_named_at_the_barrier(
    job: Job, answer: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    job.start("w0")
    agent = job.agents["w0"]
    monkeypatch.setattr(agent.link, "call", lambda path, body: answer)
    for _ in range(3):
        job.etcd.advance(5)
        job.turn(1)
    assert "does not answer: it gave no lease: is it an etcd?" in agent.view.waiting
    assert agent.presence.away_s >= 10, "so that away_timeout holds"


def test_an_unexpected_answer_counts_as_no_answer(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.start("w0")
    agent = job.agents["w0"]

    def broken(path: str, body: object) -> dict[str, object]:
        raise RecursionError

    monkeypatch.setattr(agent.link, "call", broken)
    job.turn()
    job.etcd.advance(5)
    assert "answers what this agent does not understand" in agent.view.waiting
    assert agent.presence.away_s >= 5


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


def test_foreign_records_are_ignored_and_overwritten(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.etcd.write(WORLD, b"garbage")
    job.etcd.write("members/w7", b'{"v":1}')
    job.etcd.write("elsewhere/x", b"\x80\x04.")
    job.start("w0")
    job.live(5)
    assert job.names() == ("w0",)
    assert "the value of /elastic-training/job/world in etcd is ignored: it is not JSON" in caplog.text


def test_a_world_of_another_token_is_overwritten_only_by_members_that_have_trained_here(job: Job) -> None:
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
