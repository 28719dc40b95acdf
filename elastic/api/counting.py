"""Numbers of things in sentences, and sentences that Events and `elastic explain` share."""

from datetime import datetime


def counted(number: int, noun: str, *verb: str) -> str:
    """Return `1 worker` or `3 workers`; with the two forms of a verb, `1 worker is` or `3 workers are`."""
    singular, plural = (f" {form}" for form in verb) if verb else ("", "")
    return f"{number} {noun}{singular}" if number == 1 else f"{number} {noun}s{plural}"


def asked_to_save(*, at: datetime, by: datetime | None) -> str:
    """Say that the last workers with the state must save it themselves, and how long before the loss they were told."""
    when = f"{max(0.0, (by - at).total_seconds()):.0f} s before the loss " if by is not None else ""
    return f"{when}no replacement could have the state of training in time, so the workers were asked to save"
