"""Convert amounts between whole thousandths, in which the autoscaler counts, and the form of Kubernetes' quantities. Pure."""

from __future__ import annotations

import math

from elastic.kube import quantity

_DECIMAL = {-3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
MOST = 2**63 - 1


def thousandths(written: str | float) -> int:
    """Return an amount in thousandths, rounded up as Kubernetes does."""
    return math.ceil(quantity.parse(written) * 1000)


def text(milli: int, *, is_memory: bool = False) -> str:
    """Return an amount as text: memory in powers of 1024, everything else in powers of 1000."""
    whole = -(-milli // 1000)
    return _binary(whole) if is_memory and abs(whole) >= 1024 else _decimal(milli)


def _decimal(milli: int) -> str:
    if not milli:
        return "0"
    exponent = -3
    while milli % 1000 == 0 and exponent < 18:
        milli, exponent = milli // 1000, exponent + 3
    return f"{milli}{_DECIMAL[exponent]}"


def _binary(whole: int) -> str:
    power = 0
    while whole % 1024 == 0 and power < len(_BINARY) - 1:
        whole, power = whole // 1024, power + 1
    return f"{whole}{_BINARY[power]}"


def divided(dividend: int, divisor: int) -> int:
    """Divide, and round towards zero."""
    found = abs(dividend) // abs(divisor)
    return found if (dividend < 0) == (divisor < 0) else -found
