"""Check that an eviction charges nothing, in whatever order its facts become known.

The facts are the peers' failures, because their collectives break, the end of the evicted agent (its goodbye, or only its broken
connection), the controller's word that it must leave, and that its pod is gone.
"""

from collections.abc import Callable
from itertools import permutations

import pytest
from rendezvous_group import Group, group_of

from elastic.api.words import CHARGED
from elastic.membership.wire import Budget, LeaveOrder

BUDGET = Budget(max_restarts=0)
LEAVING = (LeaveOrder(member="w0", cause="disruption", by_s=10.0),)


def peers_fail(group: Group) -> None:
    for name in ("w1", "w2"):
        if group.agents[name].generation == 1 and group.agents[name].is_working:
            group.fail(name)
            group.come(name)


def own_worker_fails(group: Group) -> None:
    if "w0" in group.agents:
        group.fail("w0", 143)


def says_goodbye(group: Group) -> None:
    if group.agents["w0"].is_linked:
        group.leave("w0")
    else:
        del group.agents["w0"]


def is_killed(group: Group) -> None:
    group.kill("w0")


def must_leave(group: Group) -> None:
    group.expect("w1", "w2", "w3", pending=("w3",), leaving=LEAVING, budget=BUDGET)


def pod_is_gone(group: Group) -> None:
    group.expect("w1", "w2", "w3", pending=("w3",), budget=BUDGET)


def server_restarts(group: Group) -> None:
    """Restart the server, as a drain of its node does. Its successor knows of the evicted worker only that its seat is empty."""
    group.start_server()
    for name in group.agents:
        group.link(name)
    group.retell()


Step = Callable[[Group], None]


def is_possible(order: tuple[Step, ...]) -> bool:
    """Return whether this order can occur. The pod goes after its agent, and an agent that is gone reports nothing.

    If a worker fails by itself, and its agent goes before the controller says that it must, that worker is the cause.
    """
    at = {step: place for place, step in enumerate(order)}
    end = min(at.get(says_goodbye, len(order)), at.get(is_killed, len(order)))
    if at.get(own_worker_fails, 0) > end or at[pod_is_gone] < end:
        return False
    if own_worker_fails in at and at.get(must_leave, len(order)) > end:
        return False
    return at.get(must_leave, 0) < at[pod_is_gone]


def play(order: tuple[Step, ...], *, gap_s: float) -> Group:
    group = group_of(3, budget=BUDGET)
    for event in order:
        event(group)
        others_obey(group)
        group.advance(gap_s)
    for _ in range(25):
        others_obey(group)
        group.advance(1)
    return group


def others_obey(group: Group) -> None:
    """Bring the other agents to the barrier. The evicted one does not come back, because it got SIGTERM."""
    for name in ("w1", "w2"):
        agent = group.agents[name]
        if agent.is_working and (agent.view.reform or agent.failed):
            group.come(name)


@pytest.mark.parametrize("gap_s", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("end", [says_goodbye, is_killed])
@pytest.mark.parametrize("besides", [(), (own_worker_fails,), (server_restarts,)])
@pytest.mark.parametrize("is_announced", [True, False])
def test_an_eviction_charges_nothing_in_whatever_order_it_becomes_known(
    besides: tuple[Step, ...], end: Step, *, gap_s: float, is_announced: bool
) -> None:
    """On real nodes a failure became known, then its peer was told to leave, and the next world was formed before the goodbye."""
    events = (peers_fail, end, pod_is_gone, *((must_leave,) if is_announced else ()), *besides)
    for order in filter(is_possible, permutations(events)):
        group = play(order, gap_s=gap_s)
        story = ", ".join(event.__name__ for event in order)
        assert group.world().keys() == {"w1", "w2"}, story
        assert not CHARGED & group.job.accounting.restarts.keys(), f"{story}: {group.job.accounting.restarts}"
        assert not group.job.accounting.closed, story


def test_a_crash_of_a_worker_is_charged_though_a_peer_was_asked_to_leave_by_plan() -> None:
    group = group_of(3, budget=Budget(max_restarts=3))
    group.fail("w1")
    group.expect("w1", "w2", leaving=(LeaveOrder(member="w0", cause="plan", by_s=10.0),), budget=Budget(max_restarts=3))
    group.advance(1.2)
    group.come_all()
    group.advance(1)
    assert group.world().keys() == {"w1", "w2"}
    assert group.job.accounting.restarts == {"user": 1}


def test_a_world_that_an_eviction_ended_names_it_as_the_reason() -> None:
    group = group_of(3, budget=BUDGET)
    peers_fail(group)
    must_leave(group)
    group.advance(1.2)
    assert group.world().keys() == {"w1", "w2"}
    assert group.job.membership.world is not None
    assert group.job.membership.world.reason == "w0 had to leave (disruption); 2 members"
    assert group.job.membership.world.cause == "disruption"
