"""Read amounts of resources as Kubernetes writes them ("500m", "2Gi") into exact numbers. This module knows no resource by name."""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

_SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_SUFFIXES |= {letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)}
_SUFFIXES |= {f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)}
_FORM = re.compile(r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?")
LONGEST = 256
"""A job's template may hold a text of any length, which no API server has read as a quantity yet."""
MOST, LEAST = Fraction(2**63 - 1), Fraction(1, 10**9)
"""As at the API server: a larger amount counts as this, and a smaller one is rounded up."""
MOST_EXPONENT = LONGEST + 30
"""With at most LONGEST digits before it, every larger one means MOST, and every smaller one LEAST."""

Amounts = dict[str, Fraction]


def parse(text: str | int | float) -> Fraction:
    """Return the quantity, or raise ValueError. A template may say 1e999999999: the cost must not grow with the exponent."""
    text = str(text).strip()
    found = _FORM.fullmatch(text) if len(text) <= LONGEST else None
    if found is None:
        raise ValueError(f"{text[:LONGEST]!r} is not a quantity")
    exponent = max(-MOST_EXPONENT, min(MOST_EXPONENT, int(found["exponent"] or 0)))
    return _limited(Fraction(found["number"]) * _SUFFIXES[found["suffix"] or ""] * Fraction(10) ** exponent)


def _limited(amount: Fraction) -> Fraction:
    if not amount:
        return amount
    size = min(max(abs(amount), LEAST), MOST)
    return size if amount > 0 else -size


def is_binary(text: str | int | float) -> bool:
    """Return whether the quantity was written with a binary suffix such as Gi."""
    return str(text).strip().endswith("i")


def amounts(written: Mapping[str, str | int | float] | None) -> Amounts:
    return {name: parse(value) for name, value in (written or {}).items()}


def total(parts: Iterable[Amounts]) -> Amounts:
    result: Amounts = {}
    for part in parts:
        for name, value in part.items():
            result[name] = result.get(name, Fraction(0)) + value
    return result


def most(parts: Iterable[Amounts]) -> Amounts:
    result: Amounts = {}
    for part in parts:
        for name, value in part.items():
            result[name] = max(result.get(name, Fraction(0)), value)
    return result
