"""Check that the rendezvous engine awaits the process of a worker that has left its training loop early, if a peer complains."""

from living_group import is_restarting, living, reason, restarts, told

from elastic.membership.wire import Budget
from elastic_training.rendezvous.engine.messages.in_place import Stage, Unable
from elastic_training.rendezvous.engine.views import summary

RAISED = Unable(words="the program of rank 1 raised an error", early=True, rank=1, error="ValueError: bad batch")


def test_a_change_waits_for_the_end_of_a_process_whose_program_raised_and_charges_the_program() -> None:
    group = living(2, budget=Budget(max_restarts=1))
    group.say("w1", RAISED)
    group.complain("w0")
    group.advance(6.0)
    assert told(group, "w0") == {Stage.RUN}, "the process of w1 flushes its logs"
    group.fail("w1", status=1, rank=1, error="ValueError: bad batch")
    group.obey_all()
    assert set(group.world()) == {"w0"}
    assert reason(group) == "a worker of w1 ended with status 1 (rank 1: ValueError: bad batch); 1 member"
    assert restarts(group) == {"user": 1}


def test_a_complaint_that_comes_before_the_news_of_the_early_end_waits_as_well() -> None:
    group = living(2)
    group.complain("w0")
    group.advance(0.5)
    group.say("w1", RAISED)
    group.advance(5.0)
    assert told(group, "w0") == {Stage.RUN}
    group.fail("w1", status=1)
    group.obey_all()
    assert restarts(group) == {"user": 1}


def test_a_process_that_hangs_after_its_program_raised_is_awaited_for_the_grace_and_charged() -> None:
    group = living(2, budget=Budget(max_restarts=1))
    group.say("w1", RAISED)
    group.complain("w0")
    group.advance(29.0)
    assert told(group, "w0") == {Stage.RUN}
    group.say("w1", RAISED)
    group.advance(2.0)
    group.obey_all()
    words = "a worker of w1 left its training loop, and did not end within 30 s (rank 1: ValueError: bad batch); 1 member"
    assert (reason(group), restarts(group)) == (words, {"user": 1})


def test_a_program_that_raises_in_each_world_uses_up_its_restarts() -> None:
    group = living(2, budget=Budget(max_restarts=1))
    for _ in range(2):
        group.say("w1", RAISED)
        group.complain("w0")
        group.advance(3.0)
        group.fail("w1", status=1, rank=1, error="ValueError: bad batch")
        group.obey_all()
        if not group.job.accounting.closed:
            group.come("w1")
            group.hello("w1")
            group.obey_all()
    assert "Restarts used: 1 of 1." in group.job.accounting.closed


def test_a_loop_that_ended_in_good_order_explains_no_broken_communication() -> None:
    group = living(2)
    group.say("w1", Unable(words="the loop has ended"))
    group.complain("w0")
    group.advance(1.1)
    assert is_restarting(group)
    assert restarts(group) == {}


LEFT = Unable(words="the program of rank 1 left its training loop early", early=True, rank=1)


def test_a_worker_that_ends_with_status_0_in_the_middle_of_the_training_is_told_and_charged_at_once() -> None:
    """Its peer stood still without a word, until its own wait for the network had ended. The restart was then called collateral."""
    group = living(2, budget=Budget(max_restarts=1))
    group.say("w1", LEFT)
    group.complain("w0")
    group.finish("w1")
    group.advance(0.1)
    assert told(group, "w0") == {Stage.ABORT}
    while group.obey("w0"):
        pass
    assert (set(group.world()), told(group, "w0")) == ({"w0"}, {Stage.RUN})
    words = "a worker of w1 ended with status 0 (rank 1: its program ended in the middle of the training); 1 member"
    assert (reason(group), restarts(group)) == (words, {"user": 1})
    rescale = summary(group.job).rescale
    assert rescale is not None
    assert rescale.cause == "user"
    group.finish("w0")
    group.advance(1.0)
    assert group.job.is_done, "the training ends as any other"


def test_workers_that_leave_the_loop_after_the_same_step_and_end_are_charged_with_nothing() -> None:
    group = living(2)
    for name in ("w0", "w1"):
        group.say(name, LEFT)
        group.finish(name)
    group.advance(1.0)
    assert group.job.is_done
    assert restarts(group) == {}


def test_an_early_end_is_told_at_once_though_its_peers_are_too_few_for_a_world() -> None:
    """It was told once the peers had failed as well, after up to three minutes of waiting for their connections."""
    group = living(2, min=2)
    group.say("w1", LEFT)
    group.finish("w1")
    assert summary(group.job).ended_early == ""
    group.complain("w0")
    words = (
        "w1 ended with status 0 (rank 1: its program ended in the middle of the training), and its peers are too few to go on without it"
    )
    assert (summary(group.job).ended_early, restarts(group)) == (words, {})
    group.fail("w0")
    assert summary(group.job).ended_early == words


def test_a_loop_that_all_leave_after_the_same_step_is_no_early_end() -> None:
    group = living(2, min=2)
    for name in ("w0", "w1"):
        group.say(name, LEFT)
    group.finish("w1")
    group.advance(1.0)
    assert summary(group.job).ended_early == ""


def test_peers_too_few_for_a_world_leave_the_work_of_the_worker_that_ended_done() -> None:
    group = living(2, min=2)
    group.say("w1", LEFT)
    group.finish("w1")
    group.complain("w0")
    group.fail("w0")
    group.come("w0")
    group.advance(1.0)
    assert group.job.is_done
