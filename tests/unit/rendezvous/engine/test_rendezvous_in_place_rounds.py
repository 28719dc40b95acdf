"""Check the rounds of a change in process: forming that fails, late messages, changes that are called off, and servers that start again."""

import pytest
from living_group import generation, living, newcomer, restarts, told
from rendezvous_group import Group, group_of

from elastic.membership.wire import Ready
from elastic_training.rendezvous.engine.events import Said
from elastic_training.rendezvous.engine.messages.in_place import Formed, Holds, Receives, Stage, Unformed
from elastic_training.rendezvous.engine.state.membership import MemberPhase

# --- when forming fails


def test_a_world_that_cannot_be_formed_is_tried_three_times_and_then_all_restart() -> None:
    group = living(3)
    group.fail("w2")
    for _ in range(3):
        for name in ("w0", "w1"):
            group.obey(name)
        assert told(group, "w0", "w1") == {Stage.FORM}
        group.say("w0", Unformed(round=group.job.in_place.round, words="Connection refused"))
    assert group.agents["w1"].view.reform == (
        "w0 could not enter the world: Connection refused; all processes restart, because 3 attempts to form a world in process have failed"
    )
    assert restarts(group) == {"user": 1}
    group.come_all()
    assert {"w0", "w1"} <= set(group.world())


def test_a_member_that_never_enters_the_world_is_waited_for_a_few_seconds() -> None:
    group = living(2)
    group.complain("w0")
    group.advance(1.1)
    group.obey("w0")
    group.obey("w1")
    group.obey("w0")
    group.advance(3.0)
    assert told(group) == {Stage.FORM}
    group.advance(0.2)
    assert told(group) == {Stage.ABORT}
    group.obey_all()
    assert told(group) == {Stage.RUN}


def test_a_member_that_receives_the_state_has_more_time() -> None:
    group = living(2, max=3)
    group.expect("w0", "w1", "w2", max=3)
    newcomer(group, "w2")
    group.obey_all_but("w2", Stage.FORM)
    for _ in range(5):
        group.advance(3.0)
        group.say("w2", Receives(round=group.job.in_place.round))
        assert told(group, "w0", "w1") == {Stage.FORM}
    group.advance(6.0)
    assert told(group, "w0", "w1") == {Stage.ABORT}


# --- messages that come late, twice, or from nobody


def test_answers_to_another_round_change_nothing() -> None:
    group = living(2)
    round = group.job.in_place.round
    for message in (
        Holds(round=round, step=9),
        Formed(round=round + 1),
        Unformed(round=round - 1),
        Unformed(round=round),
        Ready(after=1, alive=True, step=900, round=round),
        Ready(after=1, alive=True, step=900, round=round + 7),
    ):
        before = group.job.in_place, group.job.membership.world
        group.say("w0", message)
        assert (group.job.in_place, group.job.membership.world) == before
        assert group.job.membership.members["w0"].phase is MemberPhase.RUNNING
    assert told(group) == {Stage.RUN}


def test_a_newcomer_gives_no_state_however_high_its_step() -> None:
    group = living(2, max=3)
    group.expect("w0", "w1", "w2", max=3)
    group.start("w2")
    group.hello("w2", step=900)
    group.obey_all()
    assert {agent.trained for agent in group.agents.values()} == {6}


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_member_that_never_heard_of_its_world_answers_the_change_that_ends_it(is_cut: bool) -> None:
    group = living(3)
    group.fail("w2")
    group.obey("w0")
    group.agents["w1"].is_linked = False
    round = group.job.in_place.round
    group.apply(Said("w1", group.agents["w1"].incarnation, Ready(after=1, alive=True, step=5, round=round)))
    assert told(group, "w0") == {Stage.FORM}, "the view with the world is lost on its way to w1, or a newer one took its place"
    group.say("w0", Unformed(round=group.job.in_place.round, words="Connection refused"))
    agent = group.agents["w1"]
    agent.is_ready, agent.alive, agent.step, agent.round = True, True, 5, round
    if is_cut:
        agent.round = group.job.in_place.round
    group.link("w1")
    group.obey_all()
    assert set(group.world()) == {"w0", "w1"}
    assert (told(group, "w0", "w1"), {group.agents[name].trained for name in ("w0", "w1")}) == ({Stage.RUN}, {5})


# --- a change that is called off


def called_off(group: Group) -> None:
    """Let a planned change begin, and be called off."""
    group.expect("w0", "w1", "w9", max=3)
    newcomer(group, "w9")
    group.obey("w0")
    group.kill("w9")
    group.expect("w0", "w1", max=3)
    group.advance(1.1)
    assert told(group) == {Stage.RUN}


def test_broken_communication_is_heard_after_a_change_was_called_off() -> None:
    group = living(2, max=3)
    called_off(group)
    group.complain("w0")
    group.advance(1.1)
    assert told(group) == {Stage.ABORT}
    group.obey_all()
    assert (told(group), restarts(group)) == ({Stage.RUN}, {})


@pytest.mark.parametrize("stage", [Stage.HOLD, Stage.STOP])
def test_broken_communication_is_heard_during_a_planned_change(stage: Stage) -> None:
    group = living(2, max=3)
    group.expect("w0", "w1", "w2", max=3)
    newcomer(group, "w2")
    if stage is Stage.STOP:
        group.obey("w0")
        group.obey("w1")
    assert told(group, "w0", "w1") == {stage}
    group.complain("w0")
    assert told(group, "w0", "w1") == {Stage.ABORT}
    group.obey_all()
    assert (set(group.world()), told(group)) == ({"w0", "w1", "w2"}, {Stage.RUN})


# --- a new server


def test_a_server_that_restarts_finds_the_world_training_and_disturbs_nobody() -> None:
    group = living(3)
    round = group.job.in_place.round
    group.start_server()
    group.retell()
    for name in group.agents:
        group.link(name)
        group.say(name, Formed(round=group.agents[name].formed))
    group.advance(20)
    assert (told(group), generation(group), group.job.in_place.round) == ({Stage.RUN}, 1, round)
    group.kill("w1")
    group.advance(1.1)
    group.obey_all()
    assert (set(group.world()), told(group)) == ({"w0", "w2"}, {Stage.RUN})
    assert group.job.in_place.round > round


def test_a_server_that_restarts_hears_of_broken_communication() -> None:
    group = living(2)
    group.start_server()
    group.retell()
    for name in group.agents:
        group.link(name)
        group.complain(name)
        group.say(name, Formed(round=group.agents[name].formed))
    group.advance(1.1)
    group.obey_all()
    assert (told(group), generation(group)) == ({Stage.RUN}, 2)


@pytest.mark.parametrize("answered", range(8))
def test_a_server_that_restarts_in_the_middle_of_a_change_finishes_it(answered: int) -> None:
    group = living(3, max=4)
    group.expect("w0", "w1", "w2", "w3", max=4)
    newcomer(group, "w3")
    order = [name for _ in range(4) for name in ("w0", "w1", "w2", "w3")]
    for name in order[:answered]:
        group.obey(name)
    group.start_server()
    group.retell()
    for name, agent in group.agents.items():
        group.link(name)
        if agent.formed and agent.is_working:
            group.say(name, Formed(round=agent.formed))
        if agent.is_ready and agent.workers and agent.held is None:
            group.hello(name)
    for _ in range(10):
        group.obey_all()
        group.advance(5)
        group.come_all()
    assert set(group.world()) == {"w0", "w1", "w2", "w3"}
    assert restarts(group) == {}


def test_a_restored_state_is_not_lost_if_a_new_server_hears_of_workers_before_their_step() -> None:
    group = group_of(2)
    group.hello("w0", step=40)
    group.start_server()
    group.retell()
    group.agents["w1"].workers = 1
    for name in group.agents:
        group.link(name)
    for name in group.agents:
        group.hello(name, step=40)
    change = group.agents["w0"].view.change
    assert change is not None
    assert (change.stage, change.step) == (Stage.FORM, 40)


def test_a_new_server_disturbs_nobody_after_a_change_was_called_off() -> None:
    group = living(2, max=3)
    called_off(group)
    for agent in group.agents.values():
        agent.round = group.job.in_place.round
    group.start_server()
    group.retell()
    for name, agent in group.agents.items():
        group.link(name)
        group.say(name, Formed(round=agent.formed))
    group.advance(20)
    assert (told(group), generation(group)) == ({Stage.RUN}, 1)
