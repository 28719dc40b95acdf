"""Decide how many workers one job should have: its policy says what it wants, and the guard when it may have it.

The way of a job from 2 workers to 3: the rendezvous server streams the steps of the training, or `watching.sources` reads them from a log
or a page (`Book.heard`, `Book.read`). `measures` turns them into the throughput with 2 workers. In each round, every few seconds,
`round.decide_all` builds the job's `curve` and calls `decide`. `held` first keeps a number that somebody has set by hand. The policy's
`wish` says 3, because the curve expects enough gain. `guarded` cuts the wish to the limits, the allowed sizes, the free room and the
job's share of it (`sharing`), and makes it wait for pauses and votes, so that the number does not go up and down.

The leader then carries it out (`running.rounds.Rounds._write`): it writes the annotation with the decision and the memory, then the
number through the subresource scale, then an Event with the reason. A crash in between costs nothing, because the next round reads the
annotation. The controller sees three replicas in the spec, and makes the third pod.

If a pod of higher priority finds no room, `giving` picks the jobs that shrink. If the third worker brings less than expected, the policy
wants 2 again; `trials` decides when 3 deserves another look.
"""

from dataclasses import replace

from elastic.api.scaling import PolicyName
from elastic_training.autoscale.deciding import troubles
from elastic_training.autoscale.deciding.guard import guarded, held
from elastic_training.autoscale.deciding.policies import capacity, cost, deadline, schedule, throughput
from elastic_training.autoscale.deciding.signals import Memory, Signals, SizeDecision, Wish
from elastic_training.autoscale.deciding.trials import up_to_date


def decide(signals: Signals, replicas: int, now: float) -> SizeDecision:
    """Return the decision about a job with so many replicas in its spec. `now` is in seconds since 1970."""
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
