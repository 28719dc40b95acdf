"""Write the engine's messages as JSON and read them, with their bounds enforced.

The engine's messages are plain values (rendezvous.engine.messages). For each of their classes this module makes a msgspec struct with the
same fields and bounds, whose names and tags are those on the wire. It decodes into the struct, and then copies the fields.
"""

import builtins
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, reduce
from operator import attrgetter, or_
from types import UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from elastic.api.book import PLAIN
from elastic.membership.hosts import HostFacts, HostState
from elastic_training.rendezvous.engine.messages.bounds import Bound
from elastic_training.rendezvous.engine.messages.controller import Expectation, WorldReport
from elastic_training.rendezvous.engine.messages.in_place import Change, Progressed
from elastic_training.rendezvous.engine.messages.member import FromMember, Held, View

Message = TypeVar("Message")

_RENAMED: Mapping[type, Mapping[str, str]] = {
    Change: {"stage": "phase"},
    Expectation: {"unsettled": "open", "settled_to": "booked_to"},
    Held: {"unacknowledged_restarts": "uncounted"},
    View: {"unacknowledged_restarts": "uncounted"},
    WorldReport: {"unacknowledged_restarts": "uncounted"},
}
"""Names of fields on the wire, if they differ."""
_TAGS: Mapping[type, str] = {cls: cls.__name__.lower() for cls in get_args(FromMember)} | {Progressed: "stepped"}
_TAG_FIELD = "t"
_OPAQUE: Mapping[tuple[type, str], Any] = {(Expectation, "hosts"): HostFacts | None, (WorldReport, "hosts"): HostState | None}
"""Types of fields that the engine passes on unread."""


def meta_of(annotated: Any) -> Meta:
    """Return the bound of one of the engine's annotated types, for msgspec."""
    base, bound = get_args(annotated)[:2]
    return _meta(base, bound)


@cache
def struct_of(cls: type) -> Any:
    """Return the struct that has a message's form on the wire. Any other type stays as it is."""
    if not is_dataclass(cls):
        return cls
    hints = get_type_hints(cls, include_extras=True)
    return msgspec.defstruct(
        cls.__name__,
        [(one.name, translated(_OPAQUE.get((cls, one.name), hints[one.name])), *_default(one)) for one in fields(cls)],
        module=__name__,
        frozen=True,
        omit_defaults=True,
        rename=_RENAMED.get(cls),
        tag=_TAGS.get(cls),
        tag_field=_TAG_FIELD if cls in _TAGS else None,
        namespace={"_message": cls},
    )


def translated(type: Any) -> Any:
    """Return a type of the engine as msgspec needs it: with structs for messages, and its bounds."""
    origin, arguments = get_origin(type), get_args(type)
    if origin is Annotated:
        base, *notes = arguments
        return Annotated[translated(base), *(_meta(base, note) if isinstance(note, Bound) else note for note in notes)]
    if origin in (Union, UnionType):
        return reduce(or_, map(translated, arguments))
    if origin in (tuple, dict):
        return origin[tuple(argument if argument is ... else translated(argument) for argument in arguments)]
    return struct_of(type) if isinstance(type, builtins.type) else type


def _meta(base: Any, bound: Bound) -> Meta:
    if base is int or base is float:
        least, above = bound.least, bound.above
        return Meta(gt=above, le=bound.most) if above is not None else Meta(ge=least, le=bound.most)
    return Meta(min_length=bound.least, max_length=bound.most, pattern=PLAIN if bound.is_plain else None)


def _default(one: "Field[Any]") -> tuple[Any, ...]:
    if one.default_factory is not MISSING:
        return (msgspec.field(default_factory=one.default_factory),)
    return () if one.default is MISSING else (packed(one.default),)


class Decoder(Generic[Message]):
    """Reads the JSON of one type, or of a union of tagged types."""

    def __init__(self, type: Any) -> None:
        self._decoder = msgspec.json.Decoder(translated(type))

    def decode(self, data: bytes | str) -> Message:
        """Return the message. Raise msgspec.MsgspecError if it is invalid."""
        return cast(Message, unpacked(self._decoder.decode(data)))

    def check(self, data: bytes | str) -> None:
        """Raise msgspec.MsgspecError if this is no valid message."""
        self._decoder.decode(data)


def encode(message: object) -> bytes:
    """Return the message as JSON."""
    return msgspec.json.encode(packed(message))


def to_builtins(message: object) -> Any:
    """Return the message as JSON's types."""
    return msgspec.to_builtins(packed(message))


def convert(plain: Any, type: Any) -> Any:
    """Return the message that these values of JSON's types describe. Raise msgspec.ValidationError if they are invalid."""
    return unpacked(msgspec.convert(plain, translated(type)))


def packed(value: Any) -> Any:
    """Return the value with a struct in the place of each message. All entries of a tuple have one type."""
    one = value[0] if type(value) is tuple and value else value
    if not is_dataclass(one):
        return value
    pack = _packer(one.__class__)
    return pack(value) if one is value else tuple(map(pack, value))


def unpacked(value: Any) -> Any:
    """Return the value with a message in the place of each of its structs. All entries of a tuple have one type."""
    one = value[0] if type(value) is tuple and value else value
    if not hasattr(one, "_message"):
        return value
    unpack = _unpacker(one._message)
    return unpack(value) if one is value else tuple(map(unpack, value))


@cache
def _packer(cls: type) -> Callable[[Any], Any]:
    """Return the function that makes the struct of a message."""
    struct, names = struct_of(cls), [one.name for one in fields(cls)]
    if not names:
        return lambda message: struct()
    values_of = _values_of(names)
    known = {one.name: one.default for one in msgspec.structs.fields(struct)}
    defaults = [(place, one.default, known[one.name]) for place, one in enumerate(fields(cls)) if is_dataclass(one.default)]
    nested = _nested(cls)

    def pack(message: Any) -> Any:
        given = values_of(message)
        values = list(given)
        for place in nested:
            values[place] = packed(given[place])
        for place, default, left_out in defaults:
            if given[place] == default:
                values[place] = left_out  # msgspec leaves out this very object
        return struct(*values)

    return pack if nested else lambda message: struct(*values_of(message))


@cache
def _unpacker(cls: type) -> Callable[[Any], Any]:
    """Return the function that makes a message of its struct."""
    names = [one.name for one in fields(cls)]
    if not names:
        return lambda value: cls()
    values_of, nested = _values_of(names), _nested(cls)

    def unpack(value: Any) -> Any:
        values = list(values_of(value))
        for place in nested:
            values[place] = unpacked(values[place])
        return cls(*values)

    return unpack if nested else lambda value: cls(*values_of(value))


def _values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    one = attrgetter(names[0])
    return lambda value: (one(value),)


def _nested(cls: type) -> tuple[int, ...]:
    """Return the places of the fields that may hold messages."""
    hints = get_type_hints(cls)
    return tuple(place for place, one in enumerate(fields(cls)) if _mentions_message(hints[one.name]))


def _mentions_message(type: Any) -> bool:
    return is_dataclass(type) or any(map(_mentions_message, get_args(type)))
