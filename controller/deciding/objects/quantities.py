"""Add amounts of resources that are written as in Kubernetes, and write the sum in the same way."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from elastic.kube import quantity

_DECIMAL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_DECIMAL |= {letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)}
_BINARY = {f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)}


def written(amount: Fraction, *, binary: bool) -> str:
    """Return the amount with the largest suffix that leaves a whole number."""
    suffixes = ({"": Fraction(1)} | _BINARY) if binary and amount.denominator == 1 else _DECIMAL
    for suffix, factor in reversed(suffixes.items()):
        if (amount / factor).denominator == 1:
            return f"{amount / factor}{suffix}"
    return f"{-(-amount // Fraction(1, 10**9))}n"


def added(parts: Iterable[Mapping[str, int | str]]) -> dict[str, int | str]:
    """Return the sum by resource, each written in the form of its first part."""
    sums: dict[str, tuple[Fraction, bool]] = {}
    for part in parts:
        for name, text in part.items():
            before, form = sums.get(name, (Fraction(0), quantity.is_binary(text)))
            sums[name] = (before + quantity.parse(text), form)
    return {name: written(amount, binary=form) for name, (amount, form) in sums.items()}
