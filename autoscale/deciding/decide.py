"""Decide how many workers a job should have: its policy says how many it wants, and the guard says when it may have them."""

from dataclasses import replace

from autoscale.deciding import troubles
from autoscale.deciding.guard import guarded, held
from autoscale.deciding.policies import capacity, cost, deadline, schedule, throughput
from autoscale.deciding.signals import Memory, Signals, SizeDecision, Wish
from autoscale.deciding.trials import up_to_date
from elastic.api.scaling import PolicyName


def decide(signals: Signals, replicas: int, now: float) -> SizeDecision:
    """`replicas` is the number in the spec, `now` in seconds since 1970."""
    signals = replace(signals, memory=_until_now(signals.memory, now, hold_s=signals.policy.hold_seconds))
    by_hand = held(signals, replicas, now)
    if by_hand is not None:
        return replace(by_hand, trouble=troubles.in_words(signals, now))
    memory = up_to_date(signals, replicas, now)
    signals = replace(signals, memory=memory)
    decision = guarded(_wish(signals, replicas, now), signals, replicas, now)
    return replace(decision, trouble=troubles.in_words(signals, now))


def _until_now(memory: Memory, now: float, *, hold_s: float) -> Memory:
    """Return the memory without times in the future: a clock was set back, or another process's was ahead, and nothing waits for that."""
    hand, trial = memory.hand, memory.trial
    return replace(
        memory,
        changed_at=_past(memory.changed_at, now),
        tried_at=_past(memory.tried_at, now),
        refused_at=_past(memory.refused_at, now),
        hand=replace(hand, until=min(hand.until, now + hold_s)) if hand is not None else None,
        trial=replace(trial, at=min(trial.at, now)) if trial is not None else None,
    )


def _past(at: float | None, now: float) -> float | None:
    return min(at, now) if at is not None else None


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
