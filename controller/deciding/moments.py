"""Compute with dates and seconds of any size. Users write them, and some mean `never` by the largest number that there is."""

from datetime import UTC, datetime, timedelta

FIRST = datetime(1, 1, 2, tzinfo=UTC)
LAST = datetime(9999, 12, 31, tzinfo=UTC)
"""LAST stands for every later date, which a datetime cannot hold, and FIRST for every earlier one."""


def after(moment: datetime, seconds: float) -> datetime:
    return moment + timedelta(seconds=seconds) if seconds < (LAST - moment).total_seconds() else LAST


def of_timestamp(seconds: float) -> datetime:
    """Return the date in UTC, at least FIRST and at most LAST."""
    return datetime.fromtimestamp(min(max(seconds, FIRST.timestamp()), LAST.timestamp()), UTC)
