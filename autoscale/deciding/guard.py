"""Apply the rules of every policy to the wish of one policy.

The rules are limits, allowed sizes, free room, a number that somebody else has set, pauses and votes. No signal may move the number of
workers up and down again and again.
"""

from dataclasses import replace

from elastic_training.autoscale.deciding import trials, troubles
from elastic_training.autoscale.deciding.signals import Memory, Signals, SizeDecision, Step, Wish
from elastic_training.autoscale.deciding.trials import COST_SHARE, LONGEST_PAUSE_S

VOTES = 3
"""Times in a row that a policy must want fewer workers, or a turn, before it gets them."""
VOTE_GAP_S = 10.0
STANDS_S = 600.0
"""Time for which a decided change that the job has not made yet needs no other decision."""
MOST_REVERSALS = 16


def held(signals: Signals, replicas: int, now: float) -> SizeDecision | None:
    """Hold the number that someone else has set, for as long as the policy says; it ends a trial.

    It is remembered for as long as it is the last one.
    """
    memory, hand = signals.memory, signals.memory.hand
    if hand is None or not is_held(memory, now):
        return None
    memory = trials.ended(memory, Step.BROKEN_OFF, now) if memory.trial is not None else memory
    left_s = round(hand.until - now)
    by = f" by {hand.who}" if hand.who else ""
    if troubles.is_carrier(hand):
        by = f" by {troubles.OTHER_WRITER}: {troubles.ONE_WRITER}"
    return SizeDecision(
        count=replicas,
        wanted=hand.count,
        reason=f"{hand.count} was set{by}; it stays for holdSeconds, {max(1, left_s // 60)} min more",
        memory=replace(memory, votes=0, vote_for=0, asked=None),
    )


def is_held(memory: Memory, now: float) -> bool:
    """Return whether a number that somebody else set is still in force."""
    return memory.hand is not None and now < memory.hand.until


def guarded(wish: Wish, signals: Signals, replicas: int, now: float) -> SizeDecision:
    """Bring the wish within the limits, and hold it until its time."""
    memory, bounds = _noted(signals, replicas, now), signals.bounds
    wish = _in_room(wish, replace(signals, memory=memory), replicas, now)
    count = bounds.largest(wish.count) if wish.count >= bounds.least else bounds.least
    is_back = wish.trial in (Step.FAILED, Step.BROKEN_OFF)
    if count == replicas:
        memory = _after_trial(replace(memory, votes=0, vote_for=0), wish.trial, now)
        return SizeDecision(count=replicas, wanted=count, reason=wish.reason, memory=memory)
    if not bounds.allows(replicas) and not is_back:
        count = bounds.largest(replicas)
        return _changed(count, f"{replicas} is not a number that the job may have", memory, replicas, now, is_own=False)
    if is_back and (wish.urgent or not bounds.allows(replicas)):
        return _taken_back(count, wish, memory, now)
    if wish.urgent:
        return _changed(count, wish.reason, memory, replicas, now, is_own=wish.is_own_doing)
    since_s = now - memory.changed_at if memory.changed_at is not None else float("inf")
    if memory.asked == count and since_s < STANDS_S:
        return SizeDecision(count=count, wanted=count, reason=wish.reason, memory=memory, is_whole=wish.is_whole)
    direction = 1 if count > replicas else -1
    memory = _voted(memory, direction, now)
    # A trial has pauses of its own, and leaves those of other changes as they were.
    pause_s = _pause_s(signals, memory, replicas, count) if wish.trial is None else float(signals.policy.cooldown_seconds)
    if since_s < pause_s:
        reason = f"wants {count}: {wish.reason}; the last change is too recent"
        return SizeDecision(count=replicas, wanted=replicas, reason=reason, memory=memory, is_whole=wish.is_whole, is_held=direction > 0)
    if memory.votes < VOTES and wish.trial is not Step.BEGINS and (direction < 0 or _turns(memory, direction)):
        reason = f"wants {count}: {wish.reason}; it is looked at again"
        return SizeDecision(count=replicas, wanted=replicas, reason=reason, memory=memory, is_held=direction > 0)
    if wish.trial is Step.BEGINS:
        memory = trials.started(memory, origin=replicas, target=count, now=now)
        return SizeDecision(count=count, wanted=count, reason=wish.reason, memory=memory, is_whole=wish.is_whole)
    if is_back:
        return _taken_back(count, wish, memory, now)
    return replace(_changed(count, wish.reason, memory, replicas, now), is_whole=wish.is_whole)


def _noted(signals: Signals, replicas: int, now: float) -> Memory:
    """Update the memory with the job's present state, before any decision."""
    memory = signals.memory
    refused_at = None if signals.unmade == 0 else now if memory.refused_at is None else memory.refused_at
    asked = None if memory.asked == replicas else memory.asked
    is_whole = asked is None and max(signals.lacks, signals.stuck, signals.unmade) == 0
    return replace(memory, asked=asked, refused_at=refused_at, was_whole=memory.was_whole or is_whole)


def _taken_back(count: int, wish: Wish, memory: Memory, now: float) -> SizeDecision:
    step = wish.trial or Step.FAILED
    return SizeDecision(count=count, wanted=count, reason=wish.reason, memory=trials.taken_back(memory, step, now))


def _in_room(wish: Wish, signals: Signals, replicas: int, now: float) -> Wish:
    """Give room back at once if others need it first, and do not ask for room that the cluster does not have.

    A trial that lacks room goes back to its beginning, because it has skipped the numbers between.
    """
    bounds, memory = signals.bounds, signals.memory
    trial, is_growth = memory.trial, memory.changed_at is not None and not memory.was_whole
    most = replicas if trial is None else trial.origin
    ends = None if trial is None else Step.BROKEN_OFF
    if signals.give_back > 0:
        count = bounds.largest(max(bounds.least, min(most, replicas - signals.give_back)))
        if count < replicas:
            return Wish(count, f"gives room to {signals.give_back_to or 'pods of higher priority'}", urgent=True, trial=ends)
    if signals.stuck > 0 and replicas > bounds.least:
        count = bounds.largest(max(bounds.least, min(most, replicas - signals.stuck)))
        if count < replicas:
            return Wish(count, f"{signals.stuck} of its workers find no room", urgent=True, is_own_doing=is_growth, trial=ends)
    if _lacks_for_long(signals, now):
        count = bounds.largest(max(bounds.least, replicas - signals.unmade))
        if count < replicas:
            return Wish(count, f"{signals.unmade} of its workers are not made: {signals.refused}", urgent=True, is_own_doing=is_growth)
    if signals.refused and wish.count > replicas:
        return Wish(replicas, f"wants {wish.count}: {wish.reason}; no pods are made: {signals.refused}")
    if signals.unmade > 0:
        wish = replace(wish, reason=f"{wish.reason}; {signals.unmade} of its workers are not made: {signals.refused}")
    if wish.count <= replicas:
        return wish
    if signals.room is not None and wish.count > replicas + signals.room:
        if wish.is_whole:
            found = "there is no room for all of them" if signals.sees_nodes else "no nodes are seen that could have room for all of them"
            return Wish(replicas, f"wants {wish.count}: {wish.reason}; {found}")
        count = bounds.largest(replicas + max(0, signals.room))
        if count <= replicas:
            return Wish(replicas, f"wants {wish.count}: {wish.reason}; there is no room")
        return Wish(count, f"{wish.reason}; there is room for {signals.room} more", urgent=wish.urgent)
    return wish


def _lacks_for_long(signals: Signals, now: float) -> bool:
    """Tell whether pods are refused for long. A trial looks at refusals itself."""
    since = signals.memory.refused_at
    return since is not None and now - since >= trials.REFUSED_S and signals.memory.trial is None


def _after_trial(memory: Memory, step: Step | None, now: float) -> Memory:
    match step:
        case Step.KEPT:
            return trials.kept(memory, now)
        case Step.FAILED | Step.BROKEN_OFF:
            return trials.ended(memory, step, now)
        case _:
            return memory


def _voted(memory: Memory, direction: int, now: float) -> Memory:
    if memory.vote_for != direction:
        return replace(memory, votes=1, vote_for=direction, voted_at=now)
    if now - memory.voted_at >= VOTE_GAP_S or now < memory.voted_at:
        return replace(memory, votes=min(memory.votes + 1, VOTES), voted_at=now)
    return memory


def _turns(memory: Memory, direction: int) -> bool:
    return memory.changed_at is not None and memory.grew != (direction > 0)


def _pause_s(signals: Signals, memory: Memory, replicas: int, count: int) -> float:
    """Return the pause that must lie between the last change and the next one.

    A job that continues to grow waits only until the wanted workers would have added as much as a change costs. Each turn doubles the pause
    before the next one.
    """
    cost_s, cooldown_s = signals.rescale_s or 0.0, float(signals.policy.cooldown_seconds)
    if _turns(memory, 1 if count > replicas else -1):
        pause_s = max(1.0, cooldown_s, COST_SHARE * cost_s) * 2.0**memory.reversals
    elif count > replicas:
        pause_s = max(cooldown_s, cost_s / max(signals.curve.growth(replicas, count), 1 / COST_SHARE))
    else:
        pause_s = max(cooldown_s, COST_SHARE * cost_s)
    return min(pause_s, LONGEST_PAUSE_S)


def _changed(count: int, reason: str, memory: Memory, replicas: int, now: float, *, is_own: bool = True) -> SizeDecision:
    """Decide on a change. A change that others caused is no turn, and neither is the way back from it."""
    direction = 1 if count > replicas else -1
    memory = trials.ended(memory, Step.BROKEN_OFF, now)
    reversals = 0 if memory.changed_at is None or now - memory.changed_at > LONGEST_PAUSE_S else memory.reversals
    if is_own and _turns(memory, direction):
        reversals = min(reversals + 1, MOST_REVERSALS)
    grew = direction > 0 if is_own else memory.grew or memory.changed_at is None
    was_whole = memory.was_whole and direction < 0
    memory = replace(memory, changed_at=now, grew=grew, was_whole=was_whole, reversals=reversals, asked=count, votes=0, vote_for=0)
    return SizeDecision(count=count, wanted=count, reason=reason, memory=memory)
