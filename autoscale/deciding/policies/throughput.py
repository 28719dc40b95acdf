"""Policy `throughput`: grow while the next worker brings at least the share that is asked for; shrink when the last one does not."""

from autoscale.deciding.signals import Signals, Wish

SILENT = "training reports no steps; send them with elastic_worker.report, or name elasticPolicy.progress"
GROWS_BY = 4
"""A step is one worker, or one in so many of those that there are."""


def wish(signals: Signals, replicas: int) -> Wish:
    """Growing needs an estimate, shrinking a certainty: bounds that cross the asked share change nothing."""
    curve, share = signals.curve, signals.policy.min_gain_percent / 100
    if signals.working != replicas or not curve.knows(replicas):
        return Wish(replicas, _waiting(signals, replicas))
    smaller = max((size for size in curve.measured if signals.bounds.least <= size < replicas), default=None)
    if smaller is not None and curve.gain(smaller, replicas).high < share:
        brings = curve.gain(smaller, replicas).mid
        return Wish(
            smaller, f"{_workers(replicas - smaller)} beyond {smaller} bring {_percent(brings)} each, {_percent(share)} are asked for"
        )
    steps = (signals.bounds.above(replicas + more) for more in (max(1, replicas // GROWS_BY), 1))
    larger = [size for size in steps if size is not None]
    if smaller is None and all(curve.knows(size) and curve.gain(replicas, size).high < share for size in larger):
        fewer = signals.bounds.below(replicas)
        # A job that began with many has to try fewer: nothing else says what its last worker brings.
        if fewer is not None and (not larger or curve.gain(fewer, replicas).mid < share):
            return Wish(fewer, f"what the last of {replicas} workers brings is not known; {_workers(fewer)} are tried")
    if not larger:
        return Wish(replicas, f"{replicas} is the most that the job may have")
    for size in larger:
        gain = curve.gain(replicas, size)
        if (gain.low if curve.knows(size) else min(gain.mid, gain.high)) >= share:
            how = "brought" if curve.knows(size) else "is expected to bring"
            return Wish(size, f"each worker up to {size} {how} {_percent(gain.mid)}, {_percent(share)} are asked for")
    return Wish(replicas, f"a worker more would bring {_percent(curve.gain(replicas, larger[-1]).mid)}, {_percent(share)} are asked for")


def _waiting(signals: Signals, replicas: int) -> str:
    if not signals.working and not signals.reports:
        return f"no progress is known: {signals.trouble or SILENT}"
    if signals.working != replicas:
        return f"{signals.working} of {replicas} workers train together; the throughput is measured when all do"
    if not signals.reports:
        return f"no progress is known: {signals.trouble or SILENT}"
    return f"the throughput of {_workers(replicas)} is being measured"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _percent(part: float) -> str:
    return f"{max(-999, min(999, round(part * 100)))} %"
