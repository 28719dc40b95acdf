"""Change worlds in process in an etcd: the engine's stages, as they go through the records."""

import base64
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from etcd_living import PLAIN, LivingJob
from etcd_store import JOB, PREFIX, TOKEN, coded

from elastic.etcd import observed, records
from elastic_worker.etcd import changes, in_process
from elastic_worker.etcd import records as theirs
from elastic_worker.etcd.records import MEMBERS, WORLD, Leaving, World


@pytest.fixture
def job() -> Iterator[LivingJob]:
    made = LivingJob(max=4, grace_s=5.0)
    made.hosts.are_there = True
    yield made
    made.close()


def trained(job: LivingJob, *names: str) -> None:
    """Let these members form a world in process, and make a step."""
    job.start(*names)
    job.expect(*names)
    job.live(10)
    assert (job.in_world(), job.change().stage) == (set(names), "run")
    job.train()
    job.turn()


def test_the_first_world_is_formed_in_process_once_all_workers_wait_at_their_first_boundary(job: LivingJob) -> None:
    trained(job, "w0", "w1", "w2")
    assert job.starts() == {"w0": 1, "w1": 1, "w2": 1}


def test_a_leaver_goes_without_a_restart_of_the_others(job: LivingJob) -> None:
    trained(job, "w0", "w1", "w2")
    job.expect("w0", "w1", leaving=(Leaving("w2", "plan", 30.0),))
    job.live(10)
    world = job.world()
    assert world is not None
    assert (job.names(), job.change().stage, world.restarts, world.cause) == (("w0", "w1"), "run", {}, "plan")
    assert (job.starts()["w0"], job.starts()["w1"]) == (1, 1)


def test_a_newcomer_starts_beside_the_world_and_all_stop_after_the_same_step(job: LivingJob) -> None:
    trained(job, "w0", "w1")
    job.agents["w0"].worker.is_inside = True  # it has begun the next step
    job.expect("w0", "w1", "w2")
    job.start("w2")
    job.live(10)
    assert (job.in_world(), job.change().stage, job.starts()) == ({"w0", "w1", "w2"}, "run", {"w0": 1, "w1": 1, "w2": 1})
    assert {agent.worker.step for agent in job.agents.values()} == {2}


def test_the_survivors_of_a_lost_pod_live_on(job: LivingJob) -> None:
    trained(job, "w0", "w1", "w2")
    job.end("w0")
    job.live(10)
    world = job.world()
    assert world is not None
    assert (job.in_world(), job.change().stage, world.restarts) == ({"w1", "w2"}, "run", {"disruption": 1})
    assert job.starts() == {"w1": 1, "w2": 1}


def test_a_failed_worker_starts_again_as_a_newcomer(job: LivingJob) -> None:
    trained(job, "w0", "w1", "w2")
    job.agents["w1"].fail()
    job.live(10)
    world = job.world()
    assert world is not None
    assert (job.in_world(), job.change().stage, world.restarts) == ({"w0", "w1", "w2"}, "run", {"user": 1})
    assert job.starts() == {"w0": 1, "w1": 2, "w2": 1}


def test_broken_communication_forms_the_world_again_and_twice_within_a_few_steps_restarts_all(job: LivingJob) -> None:
    trained(job, "w0", "w1")
    job.agents["w0"].complain()
    job.live(10)
    world = job.world()
    assert world is not None
    assert (job.in_world(), job.change().stage, job.starts()) == ({"w0", "w1"}, "run", {"w0": 1, "w1": 1})
    assert "w0 could not reach a peer" in world.reason
    job.agents["w1"].complain()
    job.live(10)
    assert (job.in_world(), job.starts()) == ({"w0", "w1"}, {"w0": 2, "w1": 2})


def test_a_change_that_is_no_longer_wanted_is_called_off(job: LivingJob) -> None:
    trained(job, "w0", "w1")
    job.agents["w1"].is_frozen = True  # it does not answer
    job.expect("w0", "w1", "w2")
    job.start("w2")
    job.live(3)
    assert job.change().stage == "hold"
    job.end("w2")
    job.expect("w0", "w1")
    job.agents["w1"].is_frozen = False
    job.agents["w1"].presence._leases.keep(job.etcd.now)
    job.live(5)
    assert (job.names(), job.change().stage, job.starts()) == (("w0", "w1"), "run", {"w0": 1, "w1": 1})
    job.train()
    assert {agent.worker.is_training for agent in job.agents.values()} == {True}


@pytest.mark.parametrize("stage", ["hold", "stop", "form"])
def test_no_stage_is_written_over_a_loss_that_its_writer_has_not_seen(job: LivingJob, stage: str) -> None:
    trained(job, "w0", "w1", "w2")
    calls = {name: agent.link.call for name, agent in job.agents.items()}
    answers: list[bool] = []

    def losing(name: str, path: str, body: Any) -> Any:
        put = body["success"][0].get("request_put") if path == "kv/txn" else None
        world = job.etcd.seal.open(WORLD, base64.b64decode(put["value"])) if put and put["key"] == coded(PREFIX + WORLD) else None
        if isinstance(world, World) and world.change is not None and world.change.stage == stage and not answers:
            job.etcd.remove(MEMBERS + "w1")
            answers.append(calls[name](path, body).get("succeeded") is True)
            return {}
        return calls[name](path, body)

    for name, agent in job.agents.items():
        agent.link.call = partial(losing, name)
    job.expect("w0", "w1", leaving=(Leaving("w2", "plan", 600.0),))
    job.live(20)
    assert answers == [False]
    assert (job.in_world(), job.change().stage, job.starts()["w0"]) == ({"w0", "w1"}, "run", 1)


def test_a_change_after_one_that_was_called_off_has_a_round_of_its_own(job: LivingJob) -> None:
    test_a_change_that_is_no_longer_wanted_is_called_off(job)
    called_off = job.change()
    assert called_off.round > called_off.world_round
    job.end("w1")
    job.live(10)
    assert (job.in_world(), job.change().stage, job.starts()) == ({"w0"}, "run", {"w0": 1})
    assert job.change().round > called_off.round


def test_a_loss_in_the_middle_of_a_planned_change_makes_one_change_of_both(job: LivingJob) -> None:
    trained(job, "w0", "w1", "w2")
    job.agents["w2"].is_frozen = True
    job.expect("w0", "w1", leaving=(Leaving("w2", "plan", 30.0),))
    job.live(2)
    assert job.change().stage == "hold"
    job.end("w1")
    job.agents["w2"].is_frozen = False
    job.live(10)
    assert (job.in_world(), job.change().stage, job.starts()["w0"]) == ({"w0"}, "run", 1)


def test_a_world_that_its_processes_cannot_form_is_formed_by_a_restart_at_the_third_time(job: LivingJob) -> None:
    trained(job, "w0", "w1")
    job.agents["w1"].worker.forms = False
    job.agents["w0"].complain()
    job.live(60)
    world = job.world()
    assert world is not None
    assert (job.in_world(), job.starts()) == ({"w0", "w1"}, {"w0": 2, "w1": 2})
    assert "attempts to form a world in process have failed" in world.reason


def test_an_agent_that_knows_no_changes_in_process_lets_all_processes_restart(job: LivingJob) -> None:
    trained(job, "w0", "w1")
    job.release_of = lambda name: PLAIN
    job.expect("w0", "w1", "w2")
    job.start("w2")
    job.live(15)
    assert (job.in_world(), job.change().stage) == ({"w0", "w1", "w2"}, "plain")
    assert (job.starts()["w0"], job.change().why) == (2, "w2 cannot change worlds in process")
    job.end("w2")
    job.live(15)
    assert (job.in_world(), job.change().stage, job.starts()) == ({"w0", "w1"}, "run", {"w0": 3, "w1": 3}), "afterwards they can again"


def test_workers_that_wait_for_one_that_never_comes_to_a_boundary_train_plainly_after_a_while(job: LivingJob) -> None:
    """An agent without a place for its door's socket let all others wait at their first boundary for ever."""
    job.start("w0", "w1")
    job.agents["w1"].hello = lambda: None
    job.expect("w0", "w1")
    job.live(60)
    assert (job.in_world(), job.agents["w0"].worker.is_plain) == ({"w0", "w1"}, False)
    job.live(90)
    assert job.change().stage == "plain"
    assert "w1 have not come to a first step" in job.change().why
    assert (job.agents["w0"].worker.is_plain, job.starts()) == (True, {"w0": 1, "w1": 1})


def test_a_spare_that_cannot_change_in_process_does_not_hold_up_the_world_that_forms() -> None:
    """The stage run was written, and no agent saw it while the spare waited."""
    job = LivingJob(max=2, grace_s=5.0)
    job.hosts.are_there = True
    trained(job, "w0", "w1")
    late = job.agents["w1"].worker
    late.forms = False
    job.agents["w0"].complain()
    for _ in range(20):
        if job.change().stage == "form":
            break
        job.live(0.5)
    assert job.change().stage == "form"
    job.release_of = lambda name: PLAIN
    job.expect("w0", "w1", "w2")
    job.start("w2")
    job.turn()
    late.forms, known = True, dict(late.known)
    late._on_change(late.change)
    late.known.update(known)
    late._try_to_form()
    job.live(3)
    assert (job.in_world(), job.change().stage) == ({"w0", "w1"}, "run")
    assert [job.agents[name].worker.is_training for name in ("w0", "w1")] == [True, True]
    job.close()


@pytest.mark.parametrize("stage", ["hold", "stop"])
def test_a_newcomer_survives_that_all_members_finish_during_the_change_that_it_caused(job: LivingJob, stage: str) -> None:
    trained(job, "w0", "w1")
    job.agents["w1"].is_frozen = True
    job.expect("w0", "w1", "w2")
    job.start("w2")
    job.live(3)
    assert job.change().stage == "hold"
    job.agents["w1"].is_frozen = False
    job.agents["w1"].presence._leases.keep(job.etcd.now)
    if stage == "stop":
        job.agents["w0"].worker.train = lambda: None
        job.agents["w1"].worker.train = lambda: None
        job.live(1)
    for name in ("w0", "w1"):
        agent = job.agents[name]
        agent.presence.send({"t": "unable", "words": "the loop has ended"})
        agent.presence.report_state("finished", generation=agent.generation)
    job.live(10)
    assert (job.names(), bool(job.agents["w2"].view.finished)) == (("w0", "w1"), True)


def test_members_that_come_back_to_etcd_within_their_lease_go_on(job: LivingJob) -> None:
    trained(job, "w0", "w1")
    for name in ("w0", "w1"):
        job.agents[name].link.is_cut = True
    job.live(20)
    for name in ("w0", "w1"):
        job.agents[name].link.is_cut = False
    job.live(20)
    assert (job.in_world(), job.change().stage, job.starts()) == ({"w0", "w1"}, "run", {"w0": 1, "w1": 1})


def test_without_a_controller_members_come_and_go_in_process(job: LivingJob) -> None:
    job.start("w0", "w1")
    job.live(10)
    job.start("w2")
    job.live(10)
    assert (job.in_world(), job.change().stage) == ({"w0", "w1", "w2"}, "run")
    job.end("w1", politely=True)
    job.live(10)
    assert (job.in_world(), job.change().stage, job.starts()) == ({"w0", "w2"}, "run", {"w0": 1, "w2": 1})


def test_an_etcd_that_forgets_all_members_during_a_change_loses_nobody(job: LivingJob) -> None:
    trained(job, "w0", "w1", "w2")
    job.agents["w2"].is_frozen = True
    job.expect("w0", "w1", leaving=(Leaving("w2", "plan", 30.0),))
    job.live(2)
    assert job.change().stage == "hold"
    for agent in job.agents.values():
        agent.link.is_cut = True
    job.etcd.advance(20)
    job.turn()
    for agent in job.agents.values():
        agent.link.is_cut = agent.is_frozen = False
    job.live(15)
    world = job.world()
    assert world is not None
    assert (job.in_world(), job.change().stage, world.restarts) == ({"w0", "w1"}, "run", {})
    assert (job.starts()["w0"], job.starts()["w1"]) == (1, 1)


def test_a_world_of_too_many_members_restarts_its_processes(job: LivingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOST_MEMBERS", 2)
    trained(job, "w0", "w1")
    job.start("w2")
    job.expect("w0", "w1", "w2")
    job.live(15)
    assert (job.in_world(), job.change().stage, job.change().why) == ({"w0", "w1", "w2"}, "plain", "more than 2 members meet in an etcd")
    job.end("w2")
    job.live(15)
    assert (job.in_world(), job.change().stage) == ({"w0", "w1"}, "run")


def test_addresses_that_are_too_many_for_a_record_let_the_processes_restart(job: LivingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(job, "w0", "w1")
    monkeypatch.setattr(in_process, "LONGEST_RECORD", 100)
    job.agents["w0"].complain()
    job.live(60)
    assert (job.in_world(), job.starts()["w0"] > 1) == ({"w0", "w1"}, True)


def test_a_member_that_started_again_alone_is_taken_in_at_once(job: LivingJob) -> None:
    """It was sent to a world of its own first, because the lost world had changed in process, and came in at the next look."""
    trained(job, "w0")
    job.end("w0")
    job.start("w0")
    job.turn(4)
    world = job.world()
    assert world is not None
    assert (world.generation, job.in_world(), job.starts()) == (2, {"w0"}, {"w0": 1})


def test_a_member_that_has_finished_is_left_alone_whatever_it_answered(job: LivingJob) -> None:
    trained(job, "w0", "w1")
    job.agents["w0"].complain()
    job.live(10)
    for name in ("w0", "w1"):
        agent = job.agents[name]
        agent.presence.send({"t": "unable", "words": "the loop has ended"})
        agent.presence.report_state("finished", generation=agent.generation)
    job.start("w2")
    job.expect("w0", "w1", "w2")
    job.live(10)
    world = job.world()
    assert world is not None
    assert (job.names(), bool(job.agents["w2"].view.finished)) == (("w0", "w1"), True)


def test_the_controller_hears_that_the_processes_lived_on(job: LivingJob) -> None:
    def rung() -> str:
        world = records.Seal(TOKEN, JOB).open(WORLD, theirs.Seal(TOKEN, JOB).close(WORLD, job.world()))
        assert isinstance(world, records.World)
        rescale = observed.heard("job", records.Records(world=world), None, age_s=1.0, phases={}, silent=()).rescale
        assert rescale is not None
        return rescale.rung

    trained(job, "w0", "w1")
    assert rung() == "", "the first world came from no other"
    job.end("w1")
    job.live(10)
    assert rung() == "in-process"


def test_the_keys_of_state_transfers_differ_from_world_to_world_without_a_token(job: LivingJob) -> None:
    trained(job, "w0", "w1")
    first = job.change().nonce
    assert len({agent.presence.secret(1, 1) for agent in job.agents.values()}) == 1
    job.agents["w0"].complain()
    job.live(10)
    assert first
    assert job.change().nonce not in ("", first)
