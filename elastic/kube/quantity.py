"""Amounts of resources as Kubernetes writes them ("500m", "2Gi"), as exact numbers. It knows no resource by name."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

_SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_SUFFIXES |= {letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)}
_SUFFIXES |= {f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)}

Amounts = dict[str, Fraction]


def parse(text: str | int | float) -> Fraction:
    """Raises ValueError for what is no quantity; the API server has refused such long before."""
    text = str(text).strip()
    for length in (2, 1, 0):
        suffix = text[len(text) - length :]
        if length < len(text) and suffix in _SUFFIXES:
            return Fraction(text[: len(text) - length]) * _SUFFIXES[suffix]
    raise ValueError(f"{text!r} is not a quantity")


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
