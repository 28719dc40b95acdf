"""Limit how far and how fast an autoscaler may go.

The limits are its minimum and maximum, and its behavior's stabilization windows and policies, which look at its former recommendations and
changes. Pure; a history is a value that the caller keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

Object = dict[str, Any]
DOWNSCALE_WINDOW_S = 300.0
UP_FACTOR, UP_AT_LEAST = 2.0, 4.0
MOST_KEPT = 10_000
"""Largest number of kept recommendations: those of an hour, the longest window, at more than two a second."""


@dataclass(frozen=True, slots=True)
class At:
    """A number of replicas that was recommended, added or removed at a time."""

    at: float
    replicas: int


@dataclass(frozen=True, slots=True)
class History:
    recommended: tuple[At, ...] = ()
    added: tuple[At, ...] = ()
    taken: tuple[At, ...] = ()


@dataclass(frozen=True, slots=True)
class Limited:
    """The allowed number of replicas, with the two conditions that say why."""

    replicas: int
    able: tuple[str, str]
    """Reason and message of AbleToScale."""
    is_limited: bool
    limited: tuple[str, str]
    """Reason and message of ScalingLimited."""
    history: History


READY = ("ReadyForNewScale", "recommended size matches current size")
DOWN_STABILIZED = ("ScaleDownStabilized", "recent recommendations were higher than current one, applying the highest recent recommendation")
UP_STABILIZED = ("ScaleUpStabilized", "recent recommendations were lower than current one, applying the lowest recent recommendation")
WITHIN = ("DesiredWithinRange", "the desired count is within the acceptable range")
TOO_MANY = ("TooManyReplicas", "the desired replica count is more than the maximum replica count")
TOO_FEW = ("TooFewReplicas", "the desired replica count is less than the minimum replica count")
TOO_FAST_UP = ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate")
TOO_FAST_DOWN = ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate")


def begun(history: History, replicas: int, *, now: float) -> History:
    """Begin a history: the target's first observed number of replicas counts as recommended."""
    return history if history.recommended else replace(history, recommended=(At(now, replicas),))


def limited(spec: Object, current: int, wanted: int, history: History, *, now: float) -> Limited:
    least, most, behavior = spec.get("minReplicas", 1), spec["maxReplicas"], spec.get("behavior")
    windows: tuple[float, ...]
    if behavior is None:
        stable, able = _highest(history, wanted, now=now), DOWN_STABILIZED
        windows = (DOWNSCALE_WINDOW_S,)
        replicas, why = _bounded(current, stable, least, most)
    else:
        up, down = behavior["scaleUp"], behavior["scaleDown"]
        windows = (_window(up, 0.0), _window(down, DOWNSCALE_WINDOW_S))
        stable = _stabilized(history, current, wanted, windows, now=now)
        able = UP_STABILIZED if wanted >= current else DOWN_STABILIZED
        replicas, why = _at_rate(behavior, (least, most), current, stable, history, now=now)
    kept = _recommended(history, At(now, wanted), max(windows))
    return Limited(replicas, READY if stable == wanted else able, replicas != stable, why, kept)


def _highest(history: History, wanted: int, *, now: float) -> int:
    return max([wanted, *(r.replicas for r in history.recommended if r.at >= now - DOWNSCALE_WINDOW_S)])


def _window(rules: Object, default: float) -> float:
    given = rules.get("stabilizationWindowSeconds")
    return default if given is None else float(given)


def _stabilized(history: History, current: int, wanted: int, windows: Sequence[float], *, now: float) -> int:
    lowest = min([wanted, *(r.replicas for r in history.recommended if r.at > now - windows[0])])
    highest = max([wanted, *(r.replicas for r in history.recommended if r.at > now - windows[1])])
    return min(max(current, lowest), highest)


def _recommended(history: History, newest: At, window_s: float) -> History:
    recent = tuple(r for r in history.recommended if r.at >= newest.at - window_s)
    return replace(history, recommended=(*recent[-MOST_KEPT:], newest))


def _bounded(current: int, wanted: int, least: int, most: int) -> tuple[int, tuple[str, str]]:
    fastest = int(max(UP_FACTOR * current, UP_AT_LEAST))
    ceiling, why = (fastest, TOO_FAST_UP) if most > fastest else (most, TOO_MANY)
    if wanted < least:
        return least, TOO_FEW
    return (ceiling, why) if wanted > ceiling else (wanted, WITHIN)


def _at_rate(
    behavior: Object, bounds: tuple[int, int], current: int, wanted: int, history: History, *, now: float
) -> tuple[int, tuple[str, str]]:
    least, most = bounds
    if wanted > current:
        fastest = max(current, _up_limit(behavior["scaleUp"], current, history, now=now))
        ceiling, why = (fastest, TOO_FAST_UP) if most > fastest else (most, TOO_MANY)
        return (ceiling, why) if wanted > ceiling else (wanted, WITHIN)
    if wanted < current:
        slowest = min(current, _down_limit(behavior["scaleDown"], current, history, now=now))
        floor, why = (slowest, TOO_FAST_DOWN) if least < slowest else (least, TOO_FEW)
        return (floor, why) if wanted < floor else (wanted, WITHIN)
    return wanted, WITHIN


def _up_limit(rules: Object, current: int, history: History, *, now: float) -> int:
    if rules.get("selectPolicy") == "Disabled":
        return current
    proposed: list[int] = []
    for policy in rules.get("policies") or ():
        start, value = _at_start(policy, current, history, now=now), int(policy["value"])
        proposed.append(start + value if policy["type"] == "Pods" else math.ceil(start * (1 + value / 100)))
    return min(proposed) if rules.get("selectPolicy") == "Min" else max(proposed)


def _down_limit(rules: Object, current: int, history: History, *, now: float) -> int:
    if rules.get("selectPolicy") == "Disabled":
        return current
    proposed: list[int] = []
    for policy in rules.get("policies") or ():
        start, value = _at_start(policy, current, history, now=now), int(policy["value"])
        proposed.append(start - value if policy["type"] == "Pods" else int(start * (1 - value / 100)))
    return max(proposed) if rules.get("selectPolicy") == "Min" else min(proposed)


def _at_start(policy: Object, current: int, history: History, *, now: float) -> int:
    """Return the number of replicas at the beginning of the policy's period."""
    since = now - policy["periodSeconds"]
    added = sum(e.replicas for e in history.added if e.at > since)
    return current - added + sum(e.replicas for e in history.taken if e.at > since)


def scaled(history: History, behavior: Object | None, before: int, after: int, *, now: float) -> History:
    """Return the history with a change of replicas. Only policies need it."""
    if behavior is None:
        return history
    longest = {way: max((p["periodSeconds"] for p in behavior[way].get("policies") or ()), default=0) for way in ("scaleUp", "scaleDown")}
    if after > before:
        return replace(history, added=_noted(history.added, At(now, after - before), since=now - longest["scaleUp"]))
    return replace(history, taken=_noted(history.taken, At(now, before - after), since=now - longest["scaleDown"]))


def _noted(events: tuple[At, ...], newest: At, *, since: float) -> tuple[At, ...]:
    """Add an event as the real controller does: it replaces the last event that is too old.

    The other old events still count for longer periods of the other direction.
    """
    last = max((index for index, event in enumerate(events) if event.at < since), default=None)
    return (*events, newest) if last is None else (*events[:last], newest, *events[last + 1 :])
