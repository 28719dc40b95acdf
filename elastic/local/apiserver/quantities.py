"""Write quantities in a server's form: 1000m is 1, 0.5 is 500m, 1024Mi is 1Gi. quantity.py knows their values."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from elastic.kube import quantity

RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_FORM = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d{1,2})?")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {18: "E", 15: "P", 12: "T", 9: "G", 6: "M", 3: "k", 0: "", -3: "m", -6: "u", -9: "n"}


@lru_cache(maxsize=4096)
def canonical(text: str) -> str | None:
    """Return the canonical form, or None if the text is no quantity."""
    m = _FORM.fullmatch(text)
    if not m or len(text) > quantity.LONGEST:
        return None
    value, suffix = quantity.parse(text), m[1] or ""
    if suffix in _BINARY[1:] and value.denominator == 1 and abs(value) >= 1024:
        return _binary(int(value))
    return _decimal(value, exponents=suffix[:1] in ("e", "E") and len(suffix) > 1)


def _binary(value: int) -> str:
    power = 0
    while value % 1024 == 0 and power < len(_BINARY) - 1:
        value, power = value // 1024, power + 1
    return f"{value}{_BINARY[power]}"


def _decimal(value: Fraction, *, exponents: bool) -> str:
    """Write a value in the largest unit that needs no fraction. Fractions finer than a billionth are rounded up."""
    if value == 0:
        return "0"
    for exponent, suffix in _DECIMAL.items():
        scaled = value / Fraction(10) ** exponent
        if scaled.denominator == 1 or exponent == -9:
            unit = suffix if not exponents else f"e{exponent}" if exponent else ""
            return f"{-(-scaled.numerator // scaled.denominator)}{unit}"
    raise AssertionError("a billionth is always the last unit")
