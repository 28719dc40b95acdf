"""Make the record of a decision for the job's annotation, decide whether to write it, and read a memory from a record. Pure."""

import math
import re
from dataclasses import replace
from datetime import UTC, datetime

from elastic.api.scaling import MOST_SECONDS, MOST_SPREAD, DecisionRecord, SizeRecord, TrialRecord
from elastic.api.scaling import Decision as Written
from elastic.api.words import Through
from elastic_training.autoscale.deciding.jobs import Outcome, ScaledJob
from elastic_training.autoscale.deciding.measures import LEAST_COUNT, Measured, Sizes
from elastic_training.autoscale.deciding.signals import CARRIERS, ExternalSize, Memory, Trial
from elastic_training.autoscale.deciding.troubles import NO_PROGRESS

NUMBERS = re.compile(r"-?[0-9]+")
REWRITTEN_AFTER_S = 60.0
"""Seconds after a write during which changes of figures alone cause no further write."""
HEARD_AFTER_S = 10.0
"""Seconds after a write during which no further write says that progress became known or unknown."""
DIFFERS = 0.2
"""A figure is worth a write if it changed by more than this part."""
LONGEST_REASON = 250
MINUTE_S, FURTHEST_S = 60, 10 * 365 * 86400
"""If the remaining time is longer than FURTHEST_S, the record has no target time."""


def record_of(outcome: Outcome, now: float, *, was_ours: bool = False) -> DecisionRecord:
    decision, figures, memory = outcome.decision, outcome.figures, outcome.decision.memory
    hand = memory.hand
    return DecisionRecord(
        decision=Written(
            workers=decision.wanted,
            reason=decision.reason[:LONGEST_REASON],
            at=datetime.fromtimestamp(int(now), UTC),
            throughput=_rounded(figures.throughput),
            efficiency_percent=_percent(figures.efficiency, least=0, most=1000),
            marginal_efficiency_percent=_percent(figures.marginal_efficiency, least=-1000, most=1000),
            goodput_percent=_percent(figures.goodput, least=0, most=100),
            target_at=_target_at(figures.left_s, now),
        ),
        sizes=tuple(
            SizeRecord(
                one.size,
                _short(one.rate),
                _short(min(one.variance**0.5 / one.rate, MOST_SPREAD)),
                min(one.count, 64),
                max(0, int(one.at)),
                one.changes,
            )
            for one in memory.sizes
            if one.count >= LEAST_COUNT
        ),
        changed_at=round(memory.changed_at or 0.0, 1),
        grew=memory.grew,
        reversals=memory.reversals,
        was_ours=was_ours,
        hand=hand.count if hand is not None else None,
        hand_until=round(hand.until, 1) if hand is not None else 0.0,
        trial=TrialRecord(trial.origin, trial.target, int(trial.at), trial.has_failed) if (trial := memory.trial) is not None else None,
        tried_at=round(memory.tried_at or 0.0, 1),
        trial_doublings=memory.trial_doublings,
        rescale_s=None if figures.rescale_s is None else round(min(figures.rescale_s, MOST_SECONDS), 1),
    )


def is_news(new: DecisionRecord, old: DecisionRecord | None) -> bool:
    """Return whether the new record is worth a write.

    Other numbers in the same reason, and small changes of figures, are not worth a write.
    """
    if old is None:
        return True
    if _facts(new) != _facts(old) or abs(new.hand_until - old.hand_until) > 1:
        return True
    age_s = _seconds(new) - _seconds(old)
    if _is_unheard(new) != _is_unheard(old) and age_s >= HEARD_AFTER_S:
        return True
    if 0 <= age_s < REWRITTEN_AFTER_S:
        return False
    if NUMBERS.sub("", new.decision.reason) != NUMBERS.sub("", old.decision.reason):
        return True
    return {one.size for one in new.sizes} != {one.size for one in old.sizes} or _moved(new.sizes, old.sizes) or _costs_otherwise(new, old)


def memory_of(record: DecisionRecord | None) -> Memory:
    """Return the memory from which a new process starts."""
    if record is None:
        return Memory()
    hand = ExternalSize(count=record.hand, until=record.hand_until) if record.hand is not None else None
    trial = record.trial
    return Memory(
        sizes=_sizes(record),
        changed_at=record.changed_at or None,
        grew=record.grew,
        reversals=record.reversals,
        asked=record.decision.workers,
        hand=hand,
        trial=Trial(trial.origin, trial.target, float(trial.at), trial.has_failed) if trial is not None else None,
        tried_at=record.tried_at or None,
        trial_doublings=record.trial_doublings,
        rescale_s=record.rescale_s,
    )


def _sizes(record: DecisionRecord) -> Sizes:
    """Return the measures of a record.

    Former releases wrote no time for a measure; such a measure gets the time of the record. If a person has written a size twice, the last
    measure counts.
    """
    return tuple(
        Measured(one.size, one.rate, (one.spread * one.rate) ** 2, one.count, at=one.at or _seconds(record), changes=one.changes)
        for one in sorted({one.size: one for one in record.sizes}.values(), key=lambda one: one.size)
    )


def with_hand(memory: Memory, seen: ScaledJob, *, is_other: bool, now: float) -> Memory:
    """Return the memory with the number of workers that somebody else has set, held from the time when we first see it."""
    hand = memory.hand
    if not is_other:
        # A HorizontalPodAutoscaler may have read `desired_workers` just before somebody set the number. It now writes what it read, so
        # keep the set number: the autoscaler reads it next. If an autoscaler in CARRIERS had set it, the number is carried out by now.
        is_late = hand is not None and seen.policy.through is Through.HPA and now < hand.until and hand.who not in CARRIERS
        return memory if hand is None or is_late else replace(memory, hand=None)
    owner = seen.owners[-1]
    if hand is not None and hand.count == seen.replicas and hand.at in ("", owner.at):
        return replace(memory, hand=replace(hand, who=owner.manager, at=owner.at))
    return replace(memory, hand=ExternalSize(count=seen.replicas, until=now + seen.policy.hold_seconds, who=owner.manager, at=owner.at))


def _facts(record: DecisionRecord) -> tuple[object, ...]:
    """Return the facts whose change is written at once.

    The only fact from measures is the size that was measured last. It changes when a job comes back to an earlier size.
    """
    last = max(record.sizes, key=lambda one: (one.at, -one.changes), default=None)
    measured_last = last.size if last is not None else None
    trials = record.trial, record.tried_at, record.trial_doublings
    return record.decision.workers, record.hand, record.changed_at, record.reversals, *trials, measured_last


def _is_unheard(record: DecisionRecord) -> bool:
    return NO_PROGRESS in record.decision.reason


def _moved(new: tuple[SizeRecord, ...], old: tuple[SizeRecord, ...]) -> bool:
    before = {one.size: one.rate for one in old}
    return any(abs(one.rate - before.get(one.size, one.rate)) > DIFFERS * one.rate for one in new)


def _costs_otherwise(new: DecisionRecord, old: DecisionRecord) -> bool:
    if new.rescale_s is None or old.rescale_s is None:
        return new.rescale_s is not None
    return abs(new.rescale_s - old.rescale_s) > DIFFERS * new.rescale_s


def _seconds(record: DecisionRecord) -> float:
    return record.decision.at.timestamp() if record.decision.at is not None else 0.0


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def _percent(part: float | None, *, least: int, most: int) -> int | None:
    return None if part is None else round(max(least, min(most, 100 * part)))


def _target_at(left_s: float | None, now: float) -> datetime | None:
    if left_s is None or left_s > FURTHEST_S:
        return None
    return datetime.fromtimestamp(math.ceil((now + left_s) / MINUTE_S) * MINUTE_S, UTC)


def _rounded(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"
