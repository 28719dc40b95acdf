"""How a job's conditions follow one another. Their order is part of the API: the last one is the state that `kubectl get` shows."""

from datetime import datetime

from msgspec.structs import replace

from elastic.api.job import Condition, Job, JobStatus
from elastic.api.words import ConditionType

ENDS = (ConditionType.SUCCEEDED.value, ConditionType.FAILED.value)
IDLE = (*ENDS, ConditionType.SUSPENDED.value)
"""Of a job that waits for nothing."""
WAITS = " It waits "
"""What comes after it in a message holds as long as the job waits for it."""
_EXCLUDES = {ConditionType.RUNNING.value: ConditionType.RESTARTING.value, ConditionType.RESTARTING.value: ConditionType.RUNNING.value}


def holds(status: JobStatus, type: ConditionType) -> bool:
    condition = status.condition(type.value)
    return condition is not None and condition.status == "True"


def is_over(status: JobStatus) -> bool:
    return holds(status, ConditionType.SUCCEEDED) or holds(status, ConditionType.FAILED)


def has_begun(status: JobStatus) -> bool:
    """Whether the job has run before."""
    return any(status.condition(type.value) is not None for type in (ConditionType.RUNNING, ConditionType.RESTARTING))


def reason_of(job: Job, word: str) -> str:
    return f"{job.kind.name}{word}"


def with_condition(status: JobStatus, type: ConditionType, *, reason: str, message: str, now: datetime, is_true: bool = True) -> JobStatus:
    """Appends the condition, replacing its like; what says the same stays in its place, and after Failed nothing changes."""
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
        kept = [_without_words(c, now) for c in kept]
    return replace(status, conditions=(*kept, new))


def with_words_at_end(status: JobStatus, words: str, *, now: datetime) -> JobStatus:
    """The status whose newest condition's message ends with these words, which begin with WAITS, and with no older ones of the sort."""
    if not status.conditions:
        return status
    last = status.conditions[-1]
    message = last.message.partition(WAITS)[0] + words
    return status if message == last.message else _in_place(status, replace(last, message=message, last_update_time=now))


def without_former_words(status: JobStatus, *, now: datetime) -> JobStatus:
    """The status in which only the newest condition's message may have words from WAITS on."""
    former = (_without_words(condition, now) for condition in status.conditions[:-1])
    return replace(status, conditions=(*former, *status.conditions[-1:]))


def _without_words(condition: Condition, now: datetime) -> Condition:
    message, found, _ = condition.message.partition(WAITS)
    return replace(condition, message=message, last_update_time=now) if found else condition


def with_running_false(status: JobStatus, *, reason: str, message: str, now: datetime) -> JobStatus:
    """Clients take the last condition for the state, whatever its status: one that does not hold stands before the last that does."""
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
