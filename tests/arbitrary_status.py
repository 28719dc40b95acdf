"""Values of any shape that a job's status may have by the model's own bounds: at the bounds, between them, and words of all sorts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from msgspec import inspect

WORDS = (
    "",
    "Worker",
    "worker",
    "user",
    "disruption",
    "plan",
    "train-worker-0",
    "uid-train-worker-0",
    "uid-train-worker-0/0",
    "1-gang",
    "0-s",
)
WORDS += (
    "True",
    "False",
    "elastic",
    "c10d",
    "Running",
    "Failed",
    "Succeeded",
    "-1",
    "9" * 30,
    "x" * 300,
    "y" * 2000,
    "\u00e9",
    'a"b',
    "a b",
    "\n",
)
DATES = ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "1969-12-31T00:00:00Z", "2026-01-01T11:59:50Z", "2026-01-01T12:00:00Z")
DATES += ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00")
COUNTS = (0, 1, 2, 8)


def arbitrary(node: inspect.Type, draw: random.Random) -> Any:
    """Return an arbitrary value of the type, as JSON has it."""
    match node:
        case inspect.Metadata():
            return arbitrary(node.type, draw)
        case inspect.UnionType():
            return arbitrary(draw.choice(node.types), draw)
        case inspect.NoneType():
            return None
        case inspect.BoolType():
            return draw.random() < 0.5
        case inspect.IntType():
            return _number(node, draw)
        case inspect.StrType():
            word = draw.choice(WORDS)[: node.max_length]
            return word.ljust(node.min_length or 0, "a")
        case inspect.DateTimeType():
            return draw.choice(DATES)
        case inspect.VarTupleType():
            return [arbitrary(node.item_type, draw) for _ in range(_count(draw, node.max_length))]
        case inspect.DictType():
            return {arbitrary(node.key_type, draw): arbitrary(node.value_type, draw) for _ in range(_count(draw, node.max_length))}
        case inspect.StructType():
            return {field.encode_name: arbitrary(field.type, draw) for field in node.fields if field.required or draw.random() < 0.7}
        case inspect.AnyType():
            return draw.choice(WORDS)
    raise TypeError(f"no value of {node} can be made up")


def _number(node: inspect.IntType, draw: random.Random) -> int:
    least, most = node.ge if node.ge is not None else -(2**63), node.le if node.le is not None else 2**63 - 1
    few: Sequence[int] = [number for number in (0, 1, 2, 3, 5) if least <= number <= most]
    return draw.choice([least, most, most - 1, draw.randint(least, most), *few])


def _count(draw: random.Random, most: int | None) -> int:
    return min(draw.choice(COUNTS), most if most is not None else max(COUNTS))
