"""Moments in the future. Numbers of seconds and dates are what users wrote, who mean `never` by the largest number there is."""

from datetime import UTC, datetime, timedelta

LAST = datetime(9999, 12, 31, tzinfo=UTC)
"""Stands for every later one, which no datetime holds."""


def after(moment: datetime, seconds: float) -> datetime:
    return moment + timedelta(seconds=seconds) if seconds < (LAST - moment).total_seconds() else LAST
