"""Look past a number of workers that was measured to be slow: decide when to try a larger one, and judge its trial.

A size may have been slow because a node was busy, or because its workers were badly placed. So once a job has settled, a larger size is
tried if its best possible gain pays. A trial uses free room only, and in doubt the job goes back to its former size. If an event that is
unrelated to the size ends a trial, such as a quota, a lost node or an edit, the next trial comes sooner than after a slow size.
"""

from collections.abc import Iterator
from dataclasses import replace

from elastic.api.scaling import MOST_DOUBLINGS, PolicyName
from elastic_training.autoscale.deciding.signals import Bounds, Memory, Signals, Step, Trial, Wish

HORIZON_S = 3600.0
"""Seconds in which the hoped-for gain must pay for both changes of a trial."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 3600.0, 86400.0
"""Seconds of rest before a trial, after a change, a trial or a number held by hand."""
DOUBLINGS = {Step.FAILED: 3, Step.BROKEN_OFF: 1}
"""Number of times that the end of a trial doubles the rest, until a trial is kept. A trial that always fails must not come every hour."""
COST_SHARE = 20
"""Trials may cost 1/20 of a job's time, and a change 1/20 of the time between two changes."""
DOUBT_S = 600.0
"""Seconds after which the mean decides about a trial whose gain is still uncertain."""
REFUSED_S = 120.0
"""Seconds for which a trial waits for pods that the API server refuses, because a quota or a webhook may refuse for a moment."""
LONGEST_S = 1800.0
"""Seconds after which a trial without a measurement has failed, and after which a failed one is given up if the job did not go back."""


def begun(signals: Signals, replicas: int, now: float) -> Wish | None:
    """Return the larger number of workers to try now, if any.

    It is the nearest of the most promising sizes. A size that is skipped may grow faster and become the next step instead: the job then
    takes a smaller step, but always a step.
    """
    if not is_due(signals, now):
        return None
    share = signals.policy.min_gain_percent / 100
    # Round, so that a rounding error does not prefer the farther of two sizes with the same hoped gain.
    hopes = [(round(signals.curve.hoped_gain(replicas, size), 6), -size) for size in _sizes(signals.bounds, replicas)]
    hopes = [(gain, size) for gain, size in hopes if gain >= share and _pays(signals, replicas, gain * (-size - replicas))]
    if not hopes:
        return None
    gain, size = max(hopes)
    reason = f"{-size} workers are tried: each further worker may bring up to {percent(gain)} ({goal(share)})"
    return Wish(-size, reason, is_whole=True, trial=Step.BEGINS)


def is_due(signals: Signals, now: float) -> bool:
    """Return whether the job kept its size for long enough."""
    memory = signals.memory
    since = max(memory.changed_at or 0.0, memory.tried_at or 0.0, memory.hand.until if memory.hand is not None else 0.0)
    return now - since >= pause_s(signals, memory.trial_doublings)


def judged(trial: Trial, signals: Signals, replicas: int, now: float, *, waiting: str) -> Wish:
    """Return the wish during a trial, and after a failed one until the job is back. `waiting` is the reason until it is measured."""
    if trial.has_failed:
        return Wish(trial.origin, f"the trial of {trial.target} workers has ended", trial=Step.FAILED)
    if replicas != trial.target:
        return Wish(trial.target, f"{trial.target} workers are tried", is_whole=True, trial=Step.BEGINS)
    share, took_s = signals.policy.min_gain_percent / 100, now - trial.at
    is_measured = signals.curve.measured_since(trial.target, trial.at)
    if not is_measured:
        is_refused = signals.refused != "" and signals.working < replicas
        if is_refused and took_s >= REFUSED_S:
            words = f"{replicas} workers were tried, and no pods are made: {signals.refused}"
            return _back(trial, signals, words, Step.BROKEN_OFF)
        if took_s < LONGEST_S:
            words = f"no pods are made: {signals.refused}" if is_refused else waiting
            return Wish(replicas, f"{replicas} workers are tried: {words}")
        words = f"{replicas} workers were tried, and not measured within {round(LONGEST_S / 60)} min: {waiting}"
        return _back(trial, signals, words, Step.FAILED)
    gain = signals.curve.gain(trial.origin, trial.target)
    words = f"each worker beyond {trial.origin} brings {percent(gain.mid)} ({goal(share)})"
    if gain.low >= share or (took_s >= DOUBT_S and gain.mid >= share):
        return Wish(replicas, f"{replicas} workers were tried: {words}", trial=Step.KEPT)
    if gain.high < share or took_s >= DOUBT_S:
        return _back(trial, signals, f"{replicas} workers were tried: {words}", Step.FAILED)
    return Wish(replicas, f"{replicas} workers are tried: {words}, as far as is known")


def _back(trial: Trial, signals: Signals, words: str, step: Step) -> Wish:
    next_s = pause_s(signals, signals.memory.trial_doublings + DOUBLINGS[step])
    return Wish(trial.origin, f"{words}; the next number is tried in {max(1, round(next_s / 3600))} h at the earliest", trial=step)


def pause_s(signals: Signals, doublings: int) -> float:
    """Return the seconds of rest before the next trial."""
    cost_s = 2 * COST_SHARE * (signals.rescale_s or 0.0)
    first_s = max(FIRST_PAUSE_S, cost_s, float(signals.policy.cooldown_seconds))
    return max(cost_s, min(first_s * 2.0**doublings, LONGEST_PAUSE_S))


def up_to_date(signals: Signals, replicas: int, now: float) -> Memory:
    """Return the memory up to date: the first trial's clock runs from the first decision, and trials ended by others are broken off."""
    memory = signals.memory
    if signals.policy.policy is not PolicyName.THROUGHPUT:
        return replace(memory, trial=None) if memory.trial is not None else memory
    if memory.changed_at is None and memory.tried_at is None:
        memory = replace(memory, tried_at=now)
    trial = memory.trial
    if trial is not None and trial.has_failed:
        is_on_way = replicas == trial.target and now - (memory.tried_at or 0.0) < LONGEST_S
        return memory if is_on_way else replace(memory, trial=None)
    if trial is not None and not signals.bounds.allows(trial.target):
        # The user's edit says nothing about the size, and the next trial waits no longer for it.
        return replace(memory, trial=replace(trial, has_failed=True) if replicas == trial.target else None, tried_at=now)
    is_open = trial is None or replicas == trial.target or (replicas == trial.origin and now - trial.at < DOUBT_S)
    return memory if is_open else ended(memory, Step.BROKEN_OFF, now)


def started(memory: Memory, *, origin: int, target: int, now: float) -> Memory:
    """Return the memory with the trial. A trial that was decided before and is not carried out yet is the same one."""
    if memory.trial is not None:
        return memory
    return replace(memory, trial=Trial(origin, target, now), changed_at=now, was_whole=False, asked=target, votes=0, vote_for=0)


def taken_back(memory: Memory, step: Step, now: float) -> Memory:
    """Return the memory that wants the way back until the job has gone it: an autoscaler looks every 15 s, and a write may conflict."""
    trial = memory.trial
    if trial is None or trial.has_failed:
        return memory
    return replace(ended(memory, step, now), trial=replace(trial, has_failed=True), changed_at=now, asked=trial.origin, votes=0, vote_for=0)


def ended(memory: Memory, step: Step, now: float) -> Memory:
    """Return the memory without a trial. A failed trial is counted already."""
    if memory.trial is None or memory.trial.has_failed:
        return replace(memory, trial=None)
    return replace(memory, trial=None, tried_at=now, trial_doublings=min(memory.trial_doublings + DOUBLINGS[step], MOST_DOUBLINGS))


def kept(memory: Memory, now: float) -> Memory:
    return replace(memory, trial=None, tried_at=now, trial_doublings=0, grew=True)


def goal(share: float) -> str:
    """Return the gain that the policy requires, for a reason."""
    return f"minGainPercent is {round(share * 100)}"


def percent(part: float) -> str:
    return f"{max(-999, min(999, round(part * 100)))} %"


def _sizes(bounds: Bounds, replicas: int) -> Iterator[int]:
    """Yield sizes that are larger by 1, 2, 4 and so on: up to twice as many workers, and from one worker up to three."""
    more, most = 1, max(2 * replicas, replicas + 2)
    while replicas + more <= most:
        size = bounds.above(replicas + more)
        if size is not None and size <= most:
            yield size
        more *= 2


def _pays(signals: Signals, replicas: int, gains: float) -> bool:
    """Return whether a trial pays for its two changes. `gains` is in units of the gain of one worker at the minimum size."""
    here = signals.curve.rate(replicas).mid
    return here > 0 and gains * signals.curve.share / here * HORIZON_S >= 2 * (signals.rescale_s or 0.0)
