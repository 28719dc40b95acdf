"""The maximum size of each message in bytes: that of the longest JSON text that the bounds of its type allow.

Every transport takes its limit from here. So every legal message passes, and nothing longer is read.
"""

from typing import Any, get_args

import msgspec
from msgspec import inspect

from elastic.api.book import PLAIN
from elastic.membership.codec import struct_of
from elastic.membership.hosts import HOST_NAME, UID
from elastic.membership.training import Report, TrainingProgress
from elastic.membership.wire import Expectation, FromMember, Keys, Refused, View, WorldReport
from elastic.membership.world_changes import WorldChange

BYTES_A_CHARACTER = 12
"""Bytes of a character of free text: JSON writes a character above U+FFFF as two escapes."""
LONGEST_FLOAT = 25
ONE_BYTE = (PLAIN, HOST_NAME, UID)
"""Patterns whose characters are never escaped."""


class Unbounded(TypeError):
    """A wire type lacks a bound, so no limit follows for its transport."""


def longest_json(type: Any) -> int:
    """Return the length of the longest compact JSON text of this type, in bytes."""
    return _longest(inspect.type_info(struct_of(type)), getattr(type, "__name__", str(type)))


def _longest(type: inspect.Type, path: str) -> int:
    match type:
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            sizes = [_quoted(field.encode_name) + 1 + _longest(field.type, f"{path}.{field.name}") for field in fields]
            if tag_field is not None:
                sizes.append(_quoted(tag_field) + 1 + _quoted(str(tag)))
            return 2 + sum(sizes) + len(sizes)
        case inspect.StrType(max_length=int(length), pattern=pattern):
            return 2 + length * (1 if pattern in ONE_BYTE else BYTES_A_CHARACTER)
        case inspect.VarTupleType(item_type=item, max_length=int(length)):
            return 2 + length * (_longest(item, f"{path}[]") + 1)
        case inspect.DictType(key_type=key, value_type=value, max_length=int(length)):
            return 2 + length * (_longest(key, f"{path} keys") + _longest(value, f"{path}[]") + 2)
        case inspect.UnionType(types=types):
            return max(_longest(one, path) for one in types)
        case inspect.IntType():
            return max(len(str(bound)) for bound in _ends(type, path))
        case inspect.FloatType():
            return LONGEST_FLOAT
        case inspect.EnumType(cls=choices):
            return max(_quoted(str(choice.value)) for choice in choices)
        case inspect.BoolType() | inspect.NoneType():
            return 5
        case _:
            raise Unbounded(f"{path} has no bound; give its type a max_length or a range (msgspec.Meta)")


def _ends(type: inspect.IntType, path: str) -> tuple[int, int]:
    least = type.ge if type.ge is not None else type.gt
    most = type.le if type.le is not None else type.lt
    if least is None or most is None:
        raise Unbounded(f"{path} has no bound; give its type a range (msgspec.Meta)")
    return least, most


def _quoted(text: str) -> int:
    return len(msgspec.json.encode(text))


MEMBER_MESSAGE = max(longest_json(type) for type in get_args(FromMember))
"""One WebSocket message of a member."""
MEMBER_VIEW = max(longest_json(View), longest_json(Refused), longest_json(Keys))
"""One WebSocket message to a member; elastic_worker.agent.websocket accepts as much."""
EXPECTATION_BODY = longest_json(Expectation)
REPORT_BODY = longest_json(Report)
WORLD_LINE = longest_json(WorldReport) + 1
CHANGE_LINE = longest_json(WorldChange) + 1
PROGRESS_LINE = longest_json(TrainingProgress) + 1
