"""Policy `throughput`: grow while the next worker brings at least `minGainPercent`; shrink when the last one does not."""

from collections.abc import Sequence

from elastic.api.counting import counted
from elastic_training.autoscale.deciding import trials
from elastic_training.autoscale.deciding.signals import Signals, Step, Wish
from elastic_training.autoscale.deciding.trials import percent
from elastic_training.autoscale.deciding.troubles import no_progress

GROWS_BY = 4
"""A step is one worker, or one part in this number of the present workers if that is more."""


def wish(signals: Signals, replicas: int, now: float) -> Wish:
    """Return the size that the policy wants.

    A job grows on an estimate, but shrinks only if the whole confidence interval is below minGainPercent.
    """
    curve, share = signals.curve, signals.policy.min_gain_percent / 100
    if signals.memory.trial is not None:
        return trials.judged(signals.memory.trial, signals, replicas, now, waiting=_waiting(signals, replicas))
    if signals.working != replicas or not curve.knows(replicas):
        return Wish(replicas, _waiting(signals, replicas))
    steps = (signals.bounds.above(replicas + more) for more in (max(1, replicas // GROWS_BY), 1))
    larger = [size for size in steps if size is not None]
    less = _fewer(signals, replicas, larger, share)
    if less is not None:
        return less
    if not larger:
        return Wish(replicas, f"{replicas} is the most that the job may have")
    for size in [*larger, *_measured_beyond(signals, replicas, larger)]:
        gain = curve.gain(replicas, size)
        if (gain.low if curve.knows(size) else min(gain.mid, gain.high)) >= share:
            how = "brought" if curve.knows(size) else "is expected to bring"
            reason = f"each worker up to {size} {how} {percent(gain.mid)} ({trials.goal(share)})"
            # A trial skips the pause and the votes before a change of direction. A better-founded step must not wait longer than a trial.
            is_turn = signals.memory.changed_at is not None and not signals.memory.grew
            step = Step.BEGINS if is_turn and trials.is_due(signals, now) else None
            return Wish(size, reason, is_whole=size not in larger, trial=step)
    tried = trials.begun(signals, replicas, now)
    if tried is not None:
        return tried
    return Wish(replicas, f"one more worker would bring {percent(curve.gain(replicas, larger[-1]).mid)} ({trials.goal(share)})")


def _fewer(signals: Signals, replicas: int, larger: Sequence[int], share: float) -> Wish | None:
    curve, bounds = signals.curve, signals.bounds
    smaller = [size for size in reversed(curve.measured) if bounds.least <= size < replicas]
    for index, size in enumerate(smaller):
        # Compare with the nearest smaller size, or with a size of at least half: a much smaller size says little about the last workers.
        if (index == 0 or 2 * size >= replicas) and curve.gain(size, replicas).high < share:
            brings = curve.gain(size, replicas).mid
            more, verb = counted(replicas - size, "worker"), "brings" if replicas - size == 1 else "bring"
            return Wish(size, f"{more} beyond {size} {verb} {percent(brings)} each ({trials.goal(share)})")
    if not smaller and all(curve.knows(size) and curve.gain(replicas, size).high < share for size in larger):
        fewer = bounds.below(replicas)
        # A job that started large has no smaller measurement, so try a smaller size.
        if fewer is not None and (not larger or curve.gain(fewer, replicas).mid < share):
            return Wish(fewer, f"the gain of worker {replicas} is unknown; trying {counted(fewer, 'worker')}")
    return None


def _measured_beyond(signals: Signals, replicas: int, larger: Sequence[int]) -> list[int]:
    """Return measured sizes beyond the next ones, because they may fit the nodes better."""
    found = (size for size in signals.curve.measured if replicas < size <= 2 * replicas and size not in larger)
    return [size for size in found if signals.bounds.above(size) == size]


def _waiting(signals: Signals, replicas: int) -> str:
    if not signals.working and not signals.reports:
        return no_progress(signals)
    if signals.working != replicas:
        return f"{signals.working} of {replicas} workers train together; the throughput is measured when all do"
    if not signals.reports:
        return no_progress(signals)
    return f"the throughput of {counted(replicas, 'worker')} is being measured"
