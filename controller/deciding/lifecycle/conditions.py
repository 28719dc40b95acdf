"""Order a job's conditions. Their order is part of the API: the last one is the state that `kubectl get` shows."""

from datetime import datetime

from msgspec.structs import replace

from elastic.api.job import Condition, ElasticStatus, Job, JobStatus
from elastic.api.words import ConditionType

ENDS = (ConditionType.SUCCEEDED.value, ConditionType.FAILED.value)
IDLE = (*ENDS, ConditionType.SUSPENDED.value)
"""Conditions of a job that waits for nothing."""
WAITS = " It waits "
"""Beginning of the words that a message ends with for as long as the job waits. status.elastic.waiting has these words."""
_EXCLUDES = {ConditionType.RUNNING.value: ConditionType.RESTARTING.value, ConditionType.RESTARTING.value: ConditionType.RUNNING.value}


def holds(status: JobStatus, type: ConditionType) -> bool:
    condition = status.condition(type.value)
    return condition is not None and condition.status == "True"


def is_over(status: JobStatus) -> bool:
    return holds(status, ConditionType.SUCCEEDED) or holds(status, ConditionType.FAILED)


def has_begun(status: JobStatus) -> bool:
    """Return whether the job has run before."""
    return any(status.condition(type.value) is not None for type in (ConditionType.RUNNING, ConditionType.RESTARTING))


def reason_of(job: Job, word: str) -> str:
    return f"{job.kind.name}{word}"


def with_condition(status: JobStatus, type: ConditionType, *, reason: str, message: str, now: datetime, is_true: bool = True) -> JobStatus:
    """Append the condition, and drop its like; a condition that says the same stays in its place, and after Failed nothing changes."""
    if holds(status, ConditionType.FAILED):
        return status
    value = "True" if is_true else "False"
    old = status.condition(type.value)
    if old is not None and old.status == value and old.reason == reason:
        return status if old.message == message else _in_place(status, replace(old, message=message, last_update_time=now))
    transition = old.last_transition_time if old is not None and old.status == value else now
    new = Condition(type=type.value, status=value, reason=reason, message=message, last_update_time=now, last_transition_time=transition)
    dropped = {type.value}
    if is_true and type.value in _EXCLUDES:
        dropped.add(_EXCLUDES[type.value])
    if is_true and type.value in ENDS:
        # Nothing is started again any more.
        dropped.add(ConditionType.RESTARTING.value)
    kept = [c for c in status.conditions if c.type not in dropped]
    if is_true and type.value in ENDS:
        kept = [_no_longer_running(c, now) for c in kept]
    if is_true and type.value in IDLE:
        kept = [_without_words(c, status, now=now) for c in kept]
        status = _with_waiting(status, "")
    return replace(status, conditions=(*kept, new))


def with_words_at_end(status: JobStatus, words: str, *, now: datetime) -> JobStatus:
    """Return the status whose newest condition's message ends with these words, which begin with WAITS, instead of the former ones."""
    if not status.conditions:
        return status
    last = status.conditions[-1]
    message = _base(last, status) + words
    if message != last.message:
        status = _in_place(status, replace(last, message=message, last_update_time=now))
    return _with_waiting(status, words)


def without_former_words(status: JobStatus, *, now: datetime, kept: ConditionType | None = None) -> JobStatus:
    """Return the status in which only the newest condition's message, and that of type `kept`, may say what the job waits for."""
    word = kept.value if kept is not None else ""
    former = (c if c.type == word else _without_words(c, status, now=now) for c in status.conditions[:-1])
    return replace(status, conditions=(*former, *status.conditions[-1:]))


def _with_waiting(status: JobStatus, words: str) -> JobStatus:
    known = status.elastic or ElasticStatus()
    return status if known.waiting == words else replace(status, elastic=replace(known, waiting=words))


def _without_words(condition: Condition, status: JobStatus, *, now: datetime) -> Condition:
    message = _base(condition, status)
    return replace(condition, message=message, last_update_time=now) if message != condition.message else condition


def _base(condition: Condition, status: JobStatus) -> str:
    """Return the condition's message without the words that say what the job waits for."""
    words = status.elastic.waiting if status.elastic is not None else ""
    if words and condition.message.endswith(words):
        return condition.message.removesuffix(words)
    # Release 0.4.0 writes no such field; the next release leaves this out.
    return condition.message.partition(WAITS)[0]


def with_running_false(status: JobStatus, *, reason: str, message: str, now: datetime) -> JobStatus:
    """Put the condition Running, with status False, before the last true one: clients take the last condition for the state."""
    if holds(status, ConditionType.FAILED):
        return status
    type = ConditionType.RUNNING.value
    old = status.condition(type)
    if old is not None and old.status == "False" and old.reason == reason:
        return status if old.message == message else _in_place(status, replace(old, message=message, last_update_time=now))
    new = Condition(type=type, status="False", reason=reason, message=message, last_update_time=now, last_transition_time=now)
    kept = [c for c in status.conditions if c.type != type]
    last = max((at for at, c in enumerate(kept) if c.status == "True"), default=len(kept))
    return replace(status, conditions=(*kept[:last], new, *kept[last:]))


def _in_place(status: JobStatus, condition: Condition) -> JobStatus:
    return replace(status, conditions=tuple(condition if c.type == condition.type else c for c in status.conditions))


def without_condition(status: JobStatus, type: ConditionType) -> JobStatus:
    return replace(status, conditions=tuple(c for c in status.conditions if c.type != type.value))


def _no_longer_running(condition: Condition, now: datetime) -> Condition:
    if condition.type != ConditionType.RUNNING.value or condition.status == "False":
        return condition
    return replace(condition, status="False", last_transition_time=now)
