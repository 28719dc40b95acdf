"""Policy `schedule`: a given number of workers in windows of the week, in UTC, and the least number outside of them."""

from collections.abc import Sequence

from elastic.api.scaling import Day, Window
from elastic_training.autoscale.deciding.signals import Signals, Wish

DAY_S, MINUTE_S = 86400, 60
DAYS = tuple(Day)
FIRST_DAY = 3
"""1 January 1970 was a Thursday."""


def wish(signals: Signals, now: float) -> Wish:
    window = current(signals.policy.windows, now)
    if window is None:
        return Wish(signals.bounds.least, "no window of the schedule holds now", urgent=True)
    count = signals.bounds.largest(window.replicas)
    return Wish(count, f"the window from {window.start} to {window.end} UTC asks for {window.replicas}", urgent=True)


def current(windows: Sequence[Window], now: float) -> Window | None:
    """Return the first window that holds now."""
    return next((window for window in windows if _holds(window, now)), None)


def _holds(window: Window, now: float) -> bool:
    day, minute = divmod(int(now // MINUTE_S), DAY_S // MINUTE_S)
    start, end = _minute(window.start), _minute(window.end)
    if start < end:
        return start <= minute < end and _is_on(window, day)
    return (minute >= start and _is_on(window, day)) or (minute < end and _is_on(window, day - 1))


def _is_on(window: Window, day: int) -> bool:
    return not window.days or DAYS[(day + FIRST_DAY) % 7] in window.days


def _minute(text: str) -> int:
    return int(text[:2]) * 60 + int(text[3:])
