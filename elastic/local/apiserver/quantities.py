"""Quantities such as 500m, 16Gi or 1e3: parsed, brought into their usual form, compared."""

from __future__ import annotations

import re
from decimal import ROUND_UP, Decimal

RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d+)?")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SUFFIX = {v: k for k, v in _DECIMAL.items()}


def parse(text: str) -> Decimal | None:
    m = _FORM.fullmatch(text)
    if not m:
        return None
    number, suffix = Decimal(m[1]), m[2] or ""
    if suffix in _BINARY:
        return number * Decimal(1024) ** _BINARY[suffix]
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    return number.scaleb(int(suffix[1:]))


def canonical(text: str) -> str | None:
    """The form in which a server answers a quantity, or None for what is none: 1000m is 1, 0.5 is 500m, 1024Mi is 1Gi."""
    value = parse(text)
    if value is None:
        return None
    suffix = (_FORM.fullmatch(text) or [""])[2] or ""
    if suffix in _BINARY and value == value.to_integral_value() and abs(value) >= 1024:
        return _binary(int(value))
    if suffix[:1] in ("e", "E") and len(suffix) > 1:
        return _exponent(value)
    return _decimal(value)


def _binary(value: int) -> str:
    power = 0
    while value and value % 1024 == 0 and power < 6:
        value, power = value // 1024, power + 1
    return f"{value}{next((k for k, p in _BINARY.items() if p == power), '')}"


def _decimal(value: Decimal) -> str:
    if value == 0:
        return "0"
    value = value.quantize(Decimal("1e-9"), rounding=ROUND_UP) if value.as_tuple().exponent < -9 else value  # type: ignore[operator]
    for exponent in (18, 15, 12, 9, 6, 3, 0, -3, -6, -9):
        scaled = value.scaleb(-exponent)
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}{_SUFFIX[exponent]}"
    return str(value)


def _exponent(value: Decimal) -> str:
    for exponent in (18, 15, 12, 9, 6, 3, 0, -3, -6, -9):
        scaled = value.scaleb(-exponent)
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}e{exponent}" if exponent else f"{int(scaled)}"
    return str(value)
