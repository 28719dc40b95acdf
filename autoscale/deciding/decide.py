"""Decides how many workers a job should have: its policy says what it wants, and the guard when it may have it."""

from dataclasses import replace

from autoscale.deciding import troubles
from autoscale.deciding.guard import guarded, held
from autoscale.deciding.policies import capacity, cost, deadline, schedule, throughput
from autoscale.deciding.signals import Decision, Signals, Wish
from autoscale.deciding.trials import up_to_date
from elastic.api.scaling import PolicyName


def decide(signals: Signals, replicas: int, now: float) -> Decision:
    """`replicas` is the number in the spec, `now` in seconds since 1970."""
    by_hand = held(signals, replicas, now)
    if by_hand is not None:
        return replace(by_hand, trouble=troubles.in_words(signals, now))
    memory = up_to_date(signals, replicas, now)
    signals = signals if memory is signals.memory else replace(signals, memory=memory)
    decision = guarded(_wish(signals, replicas, now), signals, replicas, now)
    return replace(decision, trouble=troubles.in_words(signals, now))


def _wish(signals: Signals, replicas: int, now: float) -> Wish:
    match signals.policy.policy:
        case PolicyName.THROUGHPUT:
            return throughput.wish(signals, replicas, now)
        case PolicyName.CAPACITY:
            return capacity.wish(signals, replicas)
        case PolicyName.DEADLINE:
            return deadline.wish(signals, replicas, now)
        case PolicyName.COST:
            return cost.wish(signals, replicas)
        case PolicyName.SCHEDULE:
            return schedule.wish(signals, now)
        case PolicyName.HPA:
            return Wish(replicas, "only elasticPolicy.metrics decide")
