"""Say in words what the workers of a job do while no step comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .messages.doing import STILL_LOOKS, Doing, Hang, HangState, Kind, RanksDoing

MOST_NAMED = 4
"""Groups of ranks of which a sentence speaks."""
IRREGULAR = {"is": "are", "has": "have", "does": "do"}

PlaceOf = Callable[[str], str]
"""Returns where a member is, in words: its pod, and its node if that is known."""


def sentence(hang: Hang, *, place_of: PlaceOf = str) -> str:
    """Return what is known about a job whose steps do not come, without a full stop."""
    doing = said(hang.groups, place_of=place_of)
    began = f"no step has come for {hang.since_s:.0f} s" if hang.has_stepped else f"nothing has moved for {hang.since_s:.0f} s"
    if not doing:
        return began
    if hang.state is HangState.SUSPECTED and all(group.doing.kind is Kind.COLLECTIVE for group in hang.groups):
        return f"{began}, and all ranks wait for each other: {doing}"
    return f"{began}: {doing}"


def said(groups: Sequence[RanksDoing], *, place_of: PlaceOf = str) -> str:
    """Return what each group of ranks does."""
    parts = [f"{_ranks(group, place_of)} {_predicate(group.doing, is_one=group.count == 1)}" for group in groups[:MOST_NAMED]]
    more = sum(group.count for group in groups[MOST_NAMED:])
    return "; ".join([*parts, f"{more} other ranks do other things"] if more else parts)


def spans(group: RanksDoing) -> str:
    """Return the ranks of a group as in `0-2,5`."""
    return ",".join(str(span.first) if span.first == span.last else f"{span.first}-{span.last}" for span in group.spans)


def _ranks(group: RanksDoing, place_of: PlaceOf) -> str:
    listed = [str(span.first) if span.first == span.last else f"{span.first} to {span.last}" for span in group.spans]
    if group.count == 1:
        return f"rank {listed[0]} ({place_of(group.first)})"
    more = group.count - sum(span.last - span.first + 1 for span in group.spans)
    listed += [f"{more} more"] if more else []
    return f"ranks {', '.join(listed[:-1])} and {listed[-1]}" if len(listed) > 1 else f"ranks {listed[0]}"


def _predicate(doing: Doing, *, is_one: bool) -> str:
    does = doing.does if is_one else _plural(doing.does)
    code = f", `{doing.code}`" if doing.code else ""
    has, it = ("has", "it") if is_one else ("have", "they")
    at = f" at {doing.place}" if doing.place else ""
    if doing.kind is Kind.COLLECTIVE:
        return f"{does}{at}"
    if doing.looks < STILL_LOOKS:
        return f"{does}{at}{code}"
    if not doing.place:
        lasting = f"{has} been {doing.does[3:]}" if doing.does.startswith("is ") else does
        return f"{lasting} for {doing.for_s:.0f} s"
    return f"{has} been at {doing.place}{code}{',' if code else ''} for {doing.for_s:.0f} s: {it} {does}"


def _plural(does: str) -> str:
    """Return the predicate for several ranks. Agents write it for one."""
    verb, _, rest = does.partition(" ")
    return f"{IRREGULAR.get(verb, verb.removesuffix('s'))}{' ' if rest else ''}{rest}"
