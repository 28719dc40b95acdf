"""Check which pods a more important pod displaces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pod_builder import asking, node

from elastic.kube.placement import candidate, place
from elastic.local.scheduler.preempt import preempt, priority, waits_for_victims


def names(preemption):
    return sorted(victim["metadata"]["name"] for victim in preemption.victims)


def test_the_least_important_leave_and_no_more_than_needed():
    on = [asking("low", cpu="2"), asking("lower", cpu="1", priority=-5), asking("high", cpu="1", priority=100)]
    chosen = preempt(asking("new", cpu="1", priority=10), [candidate(node(), on)])
    assert (chosen.node, names(chosen)) == ("n", ["lower"])
    assert names(preempt(asking("new", cpu="3", priority=10), [candidate(node(), on)])) == ["low", "lower"]


def test_no_pod_leaves_if_that_would_not_help():
    on = [asking("high", cpu="4", priority=100)]
    assert preempt(asking("new", cpu="1", priority=10), [candidate(node(), on)]) is None
    assert preempt(asking("new", cpu="9", priority=200), [candidate(node(), on)]) is None


def test_a_pod_that_must_not_displace_waits():
    subject = asking("new", cpu="4", priority=10)
    subject["spec"]["preemptionPolicy"] = "Never"
    assert preempt(subject, [candidate(node(), [asking("low", cpu="4")])]) is None


def test_the_node_with_the_least_important_victims_is_chosen():
    nodes = [candidate(node("a"), [asking("x", cpu="4", priority=5)]), candidate(node("b"), [asking("y", cpu="4", priority=1)])]
    assert preempt(asking("new", cpu="4", priority=10), nodes).node == "b"


def guarded(pod, allowed):
    pod["metadata"]["labels"] = {"job": "train"}
    pod["metadata"]["namespace"] = "team"
    budget = {"metadata": {"namespace": "team"}, "spec": {"selector": {"matchLabels": {"job": "train"}}}}
    return pod, budget | {"status": {"disruptionsAllowed": allowed}}


def test_a_pod_that_a_disruption_budget_guards_leaves_only_if_nothing_else_helps():
    """Inference displaces training. Workers above minReplicas go first, and the others only if that is the only way."""
    first, budget = guarded(asking("first", cpu="2"), 1)
    second, _ = guarded(asking("second", cpu="2"), 1)
    other = asking("other", cpu="2", priority=5)
    subject = asking("new", cpu="2", priority=10)
    one = [candidate(node(), [first, other])]
    assert names(preempt(subject, one, [budget | {"status": {"disruptionsAllowed": 0}}])) == ["other"]
    assert names(preempt(subject, one, [budget])) == ["first"], "the budget has room, and it is less important"
    both = [candidate(node(), [first, second])]
    assert len(names(preempt(subject, both, [budget]))) == 1
    assert names(preempt(asking("new", cpu="4", priority=10), both, [budget | {"status": {}}])) == ["first", "second"]


def test_a_node_on_which_no_budget_is_hurt_comes_first():
    worker, budget = guarded(asking("worker", cpu="4"), 0)
    nodes = [candidate(node("a"), [worker]), candidate(node("b"), [asking("batch", cpu="4", priority=5)])]
    assert preempt(asking("new", cpu="4", priority=10), nodes, [budget]).node == "b"


def test_while_victims_leave_nobody_else_is_asked():
    leaving = asking("low", cpu="4")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    subject = asking("new", cpu="4", priority=10)
    subject["status"]["nominatedNodeName"] = "n"
    assert waits_for_victims(subject, [candidate(node(), [leaving])])
    assert not waits_for_victims(subject, [candidate(node(), [])])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 12)), max_size=6), st.integers(1, 4))
def test_victims_are_less_important_and_their_going_makes_room(residents, wish):
    on = [asking(f"p{index}", cpu=str(cpu), priority=rank) for index, (cpu, rank) in enumerate(residents)]
    subject = asking("new", cpu=str(wish), priority=10)
    chosen = preempt(subject, [candidate(node(), on)])
    if chosen is None:
        return
    assert all(priority(victim) < priority(subject) for victim in chosen.victims)
    stay = [other for other in on if other not in chosen.victims]
    assert place(subject, [candidate(node(), stay)]).node == "n"
    if place(subject, [candidate(node(), on)]).node is None:
        for back in chosen.victims:
            assert place(subject, [candidate(node(), [*stay, back])]).node is None
