"""Say in words which rank the others wait for, and what slows it."""

from __future__ import annotations

from .doing_words import PlaceOf
from .messages.pace import Slowness, Straggler

ADVICE = {
    Slowness.COMPUTE: "compare its node with the others, and its share of the work",
    Slowness.DATA: "give the loader more workers, or look at the storage of its node",
    Slowness.OUTSIDE: "let each rank do the same between two steps, or save in the background",
    Slowness.THROTTLED: "raise resources.limits.cpu",
    Slowness.NETWORK: "compare the network of these nodes with that of the others",
}

DOES = {
    Slowness.COMPUTE: "computes",
    Slowness.DATA: "waits for samples",
    Slowness.OUTSIDE: "works between steps",
}


def sentence(straggler: Straggler, *, place_of: PlaceOf = str) -> str:
    """Return which rank the others wait for, why, and what to do, without a full stop."""
    usual, aim = _seconds(straggler.usual_s), " to send" if straggler.kind is Slowness.NETWORK else ""
    other = f"the {usual} of the other rank" if straggler.among == 2 else f"the median of {usual}"
    who = f"rank {straggler.rank} ({place_of(straggler.member)})"
    return f"{who} needs {straggler.percent / 100:.1f} times {other} a step{aim}: {_why(straggler)}; {ADVICE[straggler.kind]}"


def _why(straggler: Straggler) -> str:
    if straggler.kind is Slowness.THROTTLED:
        cpus = straggler.milli_cpus / 1000
        limit = f" of {cpus:g} CPU{'' if cpus == 1 else 's'}" if cpus else ""
        return f"its CPU is throttled, because it uses up its limit{limit} in {straggler.throttled} % of the periods"
    if straggler.kind is Slowness.NETWORK:
        return "the network of its node is slow, or that of the rank to which it sends"
    own, usual = _seconds(straggler.part_s), _seconds(straggler.usual_part_s)
    others = "the other rank for" if straggler.among == 2 else "the median is"
    return f"it {DOES[straggler.kind]} for {own} a step, and {others} {usual}"


def _seconds(seconds: float) -> str:
    if seconds >= 0.1:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.2g} ms"
