"""Read the rows that an installation adds to the table: YAML or JSON, a list below `signals`.

An invalid row gives one message that names the row, the field and what to do, and the other rows count. Added rows come before the built-in
ones, so that they can change the meaning of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import yaml

from elastic.nesting import LOADER, TOO_DEEP, line_too_costly, line_too_deep
from elastic.signals.signal import Deadline, DisruptionSignal, Meaning, On
from elastic.signals.table import BUILT_IN

MOST_ROWS = 100
MOST_BYTES = 256 * 1024
LONGEST = 317
LONGEST_LEAD_S = 7 * 86400
EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
TEXTS = ("key", "value", "effect", "reason", "message", "source", "note")
FIELDS = ("name", "seenIn", "meaning", "leadSeconds", "deadline", "deadlineKey", "nodeLabel", "takenBack", *TEXTS)
Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Table:
    """The valid rows, and the problems of the others."""

    rows: tuple[DisruptionSignal, ...]
    problems: tuple[str, ...] = ()


class _Wrong(Exception):
    """The text names the field and says what to do."""


def read_table(text: str, *, name: str) -> Table:
    """Return the built-in table with the rows of this file."""
    if len(text.encode()) > MOST_BYTES:
        return Table(BUILT_IN, (f"{name}: it has more than {MOST_BYTES // 1024} KiB; leave out rows",))
    try:
        raw = _load(text)
    except (yaml.YAMLError, ValueError) as error:
        return Table(BUILT_IN, (f"{name} cannot be read: {' '.join(str(error).split())[:300]}",))
    rows = raw.get("signals") if isinstance(raw, dict) else None
    if not isinstance(rows, list):
        return Table(BUILT_IN, (f"{name}: it must hold a list `signals` of rows, as docs/spot.md shows",))
    added: dict[str, DisruptionSignal] = {}
    problems = [f"{name}: only the first {MOST_ROWS} rows count; leave out others"] if len(rows) > MOST_ROWS else []
    for number, row in enumerate(rows[:MOST_ROWS], start=1):
        try:
            signal = _row(row)
            if signal.name in added:
                raise _Wrong(f"name: {signal.name!r} is there twice; give each row a name of its own")
        except _Wrong as wrong:
            problems.append(f"{name}: row {number}{_called(row)}, {wrong}; this row has no effect")
        else:
            added[signal.name] = signal
    return Table((*added.values(), *(row for row in BUILT_IN if row.name not in added)), tuple(problems))


def _load(text: str) -> object:
    if (line := line_too_deep(text)) is not None:
        raise ValueError(f"line {line}: {TOO_DEEP}")
    if (costly := line_too_costly(text)) is not None:
        raise ValueError(f"line {costly[0]}: {costly[1]}")
    return yaml.load(text, Loader=LOADER)


def _called(row: object) -> str:
    name = row.get("name") if isinstance(row, dict) else None
    return f" ({name[:60]})" if isinstance(name, str) and name else ""


def _row(row: object) -> DisruptionSignal:
    if not isinstance(row, dict):
        raise _Wrong(f"which is {_shown(row)}: it must be a map of fields; begin it with `- name:`")
    for field in row:
        if field not in FIELDS:
            raise _Wrong(f"field {_shown(field)}: it is unknown; use {', '.join(FIELDS)}")
    on = _word(row, "seenIn", On)
    signal = DisruptionSignal(
        name=_text(row, "name", needed=True),
        source=_text(row, "source") or "this installation",
        on=on,
        key=_text(row, "key", needed=on is not On.POD_DELETION),
        value=_text(row, "value"),
        effect=_effect(row),
        reason=_text(row, "reason"),
        message=_text(row, "message"),
        node_label=_text(row, "nodeLabel"),
        meaning=_word(row, "meaning", Meaning),
        lead_s=_seconds(row),
        deadline=_word(row, "deadline", Deadline, otherwise=Deadline.LEAD),
        deadline_key=_text(row, "deadlineKey"),
        taken_back=_text(row, "takenBack") or "it is seen no more",
        note=_text(row, "note"),
    )
    for problem in _contradictions(signal):
        raise _Wrong(problem)
    return signal


def _contradictions(signal: DisruptionSignal) -> Iterator[str]:
    if signal.meaning is Meaning.LEAVE and not signal.lead_s and signal.deadline in (Deadline.LEAD, Deadline.VALUE, Deadline.LABEL):
        yield "leadSeconds: it is missing, and meaning is leave; say how many seconds there are from the signal to the loss"
    if signal.deadline is Deadline.LABEL and not signal.deadline_key:
        yield "deadlineKey: it is missing, and deadline is label; name the node's label that holds the time"
    if signal.effect and signal.on is not On.NODE_TAINT:
        yield f"effect: only a taint has one, and seenIn is {signal.on.value!r}; remove it"
    if signal.node_label and not signal.on.is_of_node:
        yield f"nodeLabel: it is {signal.node_label!r}, and seenIn is {signal.on.value!r}; remove it"
    if signal.node_label and "=" not in signal.node_label:
        yield f"nodeLabel: {signal.node_label!r} is not KEY=VALUE"
    if signal.deadline in (Deadline.TOLERATION, Deadline.DELETION):
        yield f"deadline: {signal.deadline.value!r} is for built-in rows; use lead, value, label, moment or message"


def _text(row: Mapping[str, Any], field: str, *, needed: bool = False) -> str:
    value = row.get(field, "")
    if not isinstance(value, str):
        raise _Wrong(f"{field}: it is {_shown(value)} but must be text; put it in quotes")
    if len(value) > LONGEST:
        raise _Wrong(f"{field}: it has {len(value)} characters; {LONGEST} are allowed")
    if needed and not value.strip():
        raise _Wrong(f"{field}: it is missing; add it")
    return value


def _word(row: Mapping[str, Any], field: str, words: type[Word], *, otherwise: Word | None = None) -> Word:
    value = row.get(field)
    if value is None and otherwise is not None:
        return otherwise
    found = next((word for word in words if word.value == value), None)
    if found is None:
        what = "is missing" if value is None else f"is {_shown(value)}"
        raise _Wrong(f"{field}: it {what}; use one of {', '.join(word.value for word in words)}")
    return found


def _effect(row: Mapping[str, Any]) -> str:
    value = _text(row, "effect")
    if value not in EFFECTS:
        raise _Wrong(f"effect: {value!r} is not an effect of a taint; use one of {', '.join(filter(None, EFFECTS))}, or leave it out")
    return value


def _seconds(row: Mapping[str, Any]) -> float:
    value = row.get("leadSeconds", 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_LEAD_S:
        raise _Wrong(f"leadSeconds: it is {_shown(value)} but must be a number of seconds from 0 to {LONGEST_LEAD_S}")
    return float(value)


def _shown(value: object) -> str:
    return repr(value)[:60]
