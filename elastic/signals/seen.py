"""Find the signals of a table that a node, a pod or a job shows. The first row that fits a taint, condition or annotation counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from elastic.signals.own_limits import exceeded
from elastic.signals.signal import Deadline, DisruptionSignal, Meaning, On

Raw = Mapping[str, Any]
LONGEST_WORDS = 120


@dataclass(frozen=True, slots=True)
class Sight:
    """A signal, as one object shows it."""

    signal: DisruptionSignal
    words: str
    """Description of the sight, for people."""
    by: datetime | None = None
    """Time of the worker's loss, if the object names it. Otherwise the lead time counts from the first sight."""
    since: str = ""
    """Difference to an earlier sight of the same signal: the time at which the condition says it came true."""
    taint_added: datetime | None = None
    taint: tuple[str, str] | None = None
    """Key and value of a taint with effect NoExecute for which the pod's tolerations decide."""


@dataclass(frozen=True, slots=True)
class Toleration:
    """Toleration of a pod for taints with effect NoExecute."""

    key: str = ""
    """Key of the taint. Empty means every taint, if the operator is Exists."""
    value: str | None = None
    """Value that the taint must have; None for any (operator Exists)."""
    seconds: float | None = None
    """Seconds for which the pod may stay; None means forever."""

    def tolerates(self, key: str, value: str) -> bool:
        return self.key in ("", key) and self.value in (None, value)


def on_node(table: Sequence[DisruptionSignal], raw: Raw) -> tuple[Sight, ...]:
    """Return the signals that this node shows, the worst first."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    labels = metadata.get("labels") or {}
    rows = [row for row in table if not row.node_label or _has(labels, row.node_label)]
    found = [*_taints(rows, spec.get("taints") or (), labels), *_conditions(rows, raw, labels, of=On.NODE_CONDITION)]
    for key, value in (metadata.get("annotations") or {}).items():
        row = next((row for row in rows if row.on is On.NODE_ANNOTATION and row.key == key and row.value in ("", value)), None)
        if row is not None:
            found.append(Sight(row, f"its node has the annotation {key}", _moment(row, value, labels)))
    return tuple(sorted(found, key=_weight))


def on_pod(table: Sequence[DisruptionSignal], raw: Raw) -> tuple[Sight, ...]:
    """Return the signals that this pod shows itself, the worst first."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    # The eviction is the job's own fault, in all of the kubelet's wordings, so it is no disruption.
    is_own = bool(exceeded(status.get("reason") or "", str(status.get("message") or "")))
    found = [] if is_own else list(_conditions(table, raw, {}, of=On.POD_CONDITION))
    if metadata.get("deletionTimestamp"):
        row = next((row for row in table if row.on is On.POD_DELETION), None)
        if row is not None:
            found.append(Sight(row, "it is being deleted", _time(metadata["deletionTimestamp"])))
    reason = status.get("reason") or ""
    row = next((row for row in table if row.on is On.POD_STATUS and row.key == reason and not is_own), None)
    if row is not None:
        found.append(Sight(row, reason))
    return tuple(sorted(found, key=_weight))


def on_job(table: Sequence[DisruptionSignal], raw: Raw) -> tuple[Sight, ...]:
    """Return the signal that this job shows if it is suspended."""
    labels, spec = raw["metadata"].get("labels") or {}, raw.get("spec")
    policy = spec.get("runPolicy") if isinstance(spec, Mapping) else None
    if not isinstance(policy, Mapping) or policy.get("suspend") is not True:
        return ()
    rows = (row for row in table if row.on is On.JOB_SUSPENSION and labels.get(row.key) and row.value in ("", labels[row.key]))
    return tuple(Sight(row, f"it is suspended and has the label {row.key}") for row in rows)


def tolerations_of(raw: Raw) -> tuple[Toleration, ...]:
    """Return the tolerations that let a pod stay on a node with a NoExecute taint."""
    found = (raw.get("spec") or {}).get("tolerations") or ()
    return tuple(
        Toleration(
            each.get("key") or "", None if each.get("operator") == "Exists" else each.get("value") or "", each.get("tolerationSeconds")
        )
        for each in found
        if each.get("effect") in (None, "", "NoExecute") and each.get("operator") in (None, "", "Equal", "Exists")
    )


def tolerated_for(sight: Sight, tolerations: Iterable[Toleration]) -> float | None:
    """Return the seconds for which the pod may stay after the taint; None means forever."""
    matching = [each.seconds for each in tolerations if sight.taint is not None and each.tolerates(*sight.taint)]
    if not matching:
        return 0.0
    limits = [seconds for seconds in matching if seconds is not None]
    return None if not limits else max(0.0, float(min(limits)))


def _weight(sight: Sight) -> int:
    return (Meaning.GONE, Meaning.LEAVE, Meaning.PREPARE, Meaning.INFORM).index(sight.signal.meaning)


def _has(labels: Raw, wanted: str) -> bool:
    key, _, value = wanted.partition("=")
    return key in labels and labels[key] == value


def _taints(rows: Sequence[DisruptionSignal], taints: Iterable[Raw], labels: Raw) -> Iterator[Sight]:
    for taint in taints:
        key, value, effect = taint.get("key") or "", taint.get("value") or "", taint.get("effect") or ""
        row = next((row for row in rows if row.on is On.NODE_TAINT and _is_taint(row, key, value, effect)), None)
        if row is not None:
            by, added = _moment(row, value, labels), _time(taint.get("timeAdded"))
            decided_by = (key, value) if row.deadline is Deadline.TOLERATION else None
            yield Sight(row, f"its node has the taint {key}", by, taint_added=added, taint=decided_by)


def _is_taint(row: DisruptionSignal, key: str, value: str, effect: str) -> bool:
    return row.key in ("", key) and row.value in ("", value) and row.effect in ("", effect)


def _conditions(rows: Sequence[DisruptionSignal], raw: Raw, labels: Raw, *, of: On) -> Iterator[Sight]:
    thing = "its node's" if of is On.NODE_CONDITION else "its"
    for condition in (raw.get("status") or {}).get("conditions") or ():
        row = next((row for row in rows if row.on is of and _is_condition(row, condition)), None)
        if row is not None:
            reason, message = condition.get("reason") or "", str(condition.get("message") or "")
            words = f"{thing} condition {row.key} is {condition.get('status')}" + (f" ({reason})" if reason else "")
            if of is On.POD_CONDITION:
                words = reason or words
            yield Sight(
                row,
                words[:LONGEST_WORDS],
                _moment(row, message, labels),
                since=str(condition.get("lastTransitionTime") or "")[:LONGEST_WORDS],
            )


def _is_condition(row: DisruptionSignal, condition: Raw) -> bool:
    return (
        condition.get("type") == row.key
        and condition.get("status") == (row.value or "True")
        and row.reason in ("", condition.get("reason"))
        and row.message.lower() in str(condition.get("message") or "").lower()
    )


def _moment(row: DisruptionSignal, text: str, labels: Raw) -> datetime | None:
    """Return the time of the worker's loss that the object names, or None if it names no valid time."""
    match row.deadline:
        case Deadline.VALUE:
            return _after_unix(text, row.lead_s)
        case Deadline.LABEL:
            return _after_unix(str(labels.get(row.deadline_key) or ""), row.lead_s)
        case Deadline.MOMENT:
            return _time(text)
        case Deadline.MESSAGE:
            return _http_time(text)
    return None


def _after_unix(text: str, lead_s: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(text), UTC) + timedelta(seconds=lead_s)
    except (ValueError, OverflowError, OSError):
        return None


def _time(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None
    return found if found is None or found.tzinfo is not None else found.replace(tzinfo=UTC)


def _http_time(text: str) -> datetime | None:
    """Return the time after the first colon: `Preempt Scheduled: Mon, 02 Mar 2026 19:01:45 GMT`."""
    try:
        found = parsedate_to_datetime(text.partition(":")[2].strip()[:40])
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
