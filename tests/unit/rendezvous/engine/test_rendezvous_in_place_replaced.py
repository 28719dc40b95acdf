"""Check that the rendezvous engine goes on with the state of a member's other workers if one of them is replaced by a new process."""

from living_group import generation, is_restarting, living, reason, restarts, told

from elastic.membership.wire import Budget
from elastic_training.rendezvous.engine.messages.in_place import Formed, Stage, Unable
from elastic_training.rendezvous.engine.views import summary


def test_a_member_whose_lost_worker_is_replaced_goes_on_with_the_state_of_the_others() -> None:
    group = living(1, budget=Budget(max_restarts=1))
    group.fail("w0", status=9, replaced=True)
    assert told(group) == {Stage.ABORT}
    assert not is_restarting(group)
    group.obey_all()
    assert (set(group.world()), told(group), generation(group)) == ({"w0"}, {Stage.RUN}, 2)
    assert (reason(group), restarts(group)) == ("a worker of w0 ended with status 9; 1 member", {"user": 1})
    assert group.agents["w0"].trained == 5, "the state that the world began with"
    group.fail("w0", status=9, replaced=True)
    group.obey_all()
    assert "Restarts used: 1 of 1." in summary(group.job).closed, "it is charged like any failure"


def test_if_a_member_has_no_process_for_its_lost_worker_all_its_processes_restart() -> None:
    group = living(1)
    group.fail("w0", status=9, replaced=True)
    assert told(group) == {Stage.ABORT}
    group.fail("w0", status=1)
    assert is_restarting(group)
    group.come_all()
    assert (set(group.world()), restarts(group)) == ({"w0"}, {"user": 1})


def test_if_the_new_process_of_a_member_does_not_come_all_its_processes_restart() -> None:
    group = living(1)
    group.fail("w0", status=9, replaced=True)
    group.say("w0", Unable(words="the new process of local rank 1 has not come within 30 s"))
    assert is_restarting(group)
    group.come_all()
    assert (set(group.world()), restarts(group)) == ({"w0"}, {"user": 1})


def test_a_new_server_hears_of_a_replaced_worker_and_counts_it_once() -> None:
    group = living(1)
    group.fail("w0", status=9, replaced=True)
    group.start_server()
    group.retell()
    group.link("w0")
    group.say("w0", Formed(round=group.agents["w0"].formed))
    group.fail("w0", status=9, replaced=True)
    group.advance(20)
    assert not is_restarting(group)
    group.obey_all()
    assert (set(group.world()), told(group), restarts(group)) == ({"w0"}, {Stage.RUN}, {"user": 1})
