"""Say in words what the workers of a job do while no step comes.

A status keeps the words without times, because the times would soon be wrong. A reader adds the times of the moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .messages.doing import DoingKind, Hang, HangState, RanksDoing

MOST_NAMED = 4
"""Groups of ranks of which a sentence speaks."""
IRREGULAR = {"is": "are", "has": "have", "does": "do"}

PlaceOf = Callable[[str], str]
"""Returns where a member is, in words: its pod, and its node if that is known."""


def sentence(hang: Hang, *, place_of: PlaceOf = str, later_s: float | None = 0.0) -> str:
    """Return what is known about a job whose steps do not come, without a full stop.

    later_s: seconds since this was found, by which all its times are longer; None gives the words without times.
    """
    began = _began(hang, later_s)
    doing = said(hang.groups, place_of=place_of, later_s=later_s)
    if not doing:
        return began
    if hang.state is HangState.SUSPECTED and all(group.doing.kind is DoingKind.COLLECTIVE for group in hang.groups):
        return f"{began}, and all ranks wait for each other: {doing}"
    return f"{began}: {doing}"


def said(groups: Sequence[RanksDoing], *, place_of: PlaceOf = str, later_s: float | None = 0.0) -> str:
    """Return what each group of ranks does."""
    parts = [f"{_ranks(group, place_of)} {_predicate(group, later_s)}" for group in groups[:MOST_NAMED]]
    more = sum(group.count for group in groups[MOST_NAMED:])
    return "; ".join([*parts, f"{more} other ranks do other things"] if more else parts)


def spans(group: RanksDoing) -> str:
    """Return the ranks of a group as in `0-2,5`."""
    return ",".join(str(span.first) if span.first == span.last else f"{span.first}-{span.last}" for span in group.spans)


def _began(hang: Hang, later_s: float | None) -> str:
    since = "" if later_s is None else f"{hang.since_s + later_s:.0f} s"
    if hang.has_stepped:
        return f"no step has come for {since}" if since else "no step comes"
    if all(group.is_still for group in hang.groups):
        return f"it reports no steps, and nothing has moved for at least {since}" if since else "it reports no steps, and nothing moves"
    has_waited = f"has waited for at least {since}" if since else "waits"
    return f"it reports no steps, and every rank except one {has_waited}"


def _ranks(group: RanksDoing, place_of: PlaceOf) -> str:
    listed: list[str] = []
    for span in group.spans:
        numbers = range(span.first, span.last + 1)
        listed += map(str, numbers) if len(numbers) < 3 else [f"{span.first} to {span.last}"]
    if group.count == 1:
        return f"rank {listed[0]}" + (f" ({place_of(group.members[0])})" if group.members else "")
    more = group.count - sum(span.last - span.first + 1 for span in group.spans)
    listed += [f"{more} more"] if more else []
    return f"ranks {', '.join(listed[:-1])} and {listed[-1]}" if len(listed) > 1 else f"ranks {listed[0]}"


def _predicate(group: RanksDoing, later_s: float | None) -> str:
    """Return what these ranks do. Agents write it for one."""
    doing, is_one = group.doing, group.count == 1
    does = doing.does if is_one else _plural(doing.does)
    code = f", `{doing.code}`" if doing.code else ""
    at = f" at {doing.place}" if doing.place else ""
    if doing.kind is DoingKind.COLLECTIVE or not group.is_still:
        first, more, rest = does.partition("; ")  # the place is the rank's own, and the rest is about another process
        return f"{first}{at}{'' if doing.kind is DoingKind.COLLECTIVE else code}{more}{rest}"
    has, it = ("has", "it") if is_one else ("have", "they")
    if later_s is None:
        return f"{'stands' if is_one else 'stand'} still{at}{code}: {it} {does}" if at else does
    lasting = f"for at least {doing.for_s + later_s:.0f} s"
    if not at:
        return f"{f'{has} been {doing.does[3:]}' if doing.does.startswith('is ') else does} {lasting}"
    return f"{has} been{at}{code}{',' if code else ''} {lasting}: {it} {does}"


def _plural(does: str) -> str:
    verb, _, rest = does.partition(" ")
    return f"{IRREGULAR.get(verb, verb.removesuffix('s'))}{' ' if rest else ''}{rest}"
