"""Moments far away. Numbers of seconds and dates are what users wrote, who mean `never` by the largest number there is."""

from datetime import UTC, datetime, timedelta

FIRST = datetime(1, 1, 2, tzinfo=UTC)
LAST = datetime(9999, 12, 31, tzinfo=UTC)
"""Stands for every later one, which no datetime holds; FIRST for every earlier one."""


def after(moment: datetime, seconds: float) -> datetime:
    return moment + timedelta(seconds=seconds) if seconds < (LAST - moment).total_seconds() else LAST


def of_timestamp(seconds: float) -> datetime:
    """In UTC, which cannot hold the first and the last hours of other time zones."""
    return datetime.fromtimestamp(min(max(seconds, FIRST.timestamp()), LAST.timestamp()), UTC)
