"""How long ago something was, in one word."""

from __future__ import annotations

from datetime import UTC, datetime

MINUTE, HOUR, DAY = 60, 3600, 86400


def age(stamp: object, now: datetime) -> str:
    """Return the age as kubectl writes it, or - if there is no date."""
    try:
        then = datetime.fromisoformat(str(stamp))
    except ValueError:
        return "-"
    return duration((now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds())


def duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 2 * MINUTE:
        return f"{whole}s"
    if whole < 2 * HOUR:
        return f"{whole // MINUTE}m"
    return f"{whole // HOUR}h" if whole < 2 * DAY else f"{whole // DAY}d"
