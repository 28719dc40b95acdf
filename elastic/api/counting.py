"""Write numbers of things in sentences, and sentences that Events and `elastic explain` share."""

from datetime import datetime

FIRST_STEP = 1
"""The highest number that a program gives its first step."""


def counted(number: int, noun: str, *verb: str) -> str:
    """Return `1 worker` or `3 workers`; with the two forms of a verb, `1 worker is` or `3 workers are`."""
    singular, plural = (f" {form}" for form in verb) if verb else ("", "")
    return f"{number} {noun}{singular}" if number == 1 else f"{number} {noun}s{plural}"


def made_again(before: int, after: int) -> int:
    """Return how many steps are made again if `after` is the first step after a change. The step that broke off does not count."""
    return before - after + 1 if after < before else 0


def continued(before: int | None, after: int | None, *, state_lost: bool) -> str:
    """Say at which step training continues after a change. Return nothing without a step before, or if no loss is known since."""
    if before is None or (after is None and not state_lost):
        return ""
    if after is None:
        return f"begins again after step {before:,}: no worker had the state"
    lost = made_again(before, after)
    if lost > 1 and after <= FIRST_STEP and not state_lost:
        return f"begins again at step {after:,} after step {before:,}: its script loaded no checkpoint"
    why = "" if not lost else ": no worker had the state" if state_lost else f": {counted(lost, 'step')} must be repeated"
    return f"continues at step {after:,} after step {before:,}{why}"


def ended_early(words: str) -> str:
    """Add the remedy to the words about workers that ended with status 0 while others failed."""
    return f"{words}; if the training was not complete, let all ranks end together"


def killed_late(workers: int) -> str:
    """Say that workers did not stop in time before a change."""
    were = "was" if workers == 1 else "were"
    return f"{counted(workers, 'worker')} did not stop within the grace and {were} killed: a save under way is cut off"


def asked_to_save(*, at: datetime, by: datetime | None) -> str:
    """Say that the last workers with the state must save it themselves, and how long before the loss they were told."""
    when = f"{max(0.0, (by - at).total_seconds()):.0f} s before the loss " if by is not None else ""
    return f"{when}no replacement could have the state of training in time, so the workers were asked to save"
