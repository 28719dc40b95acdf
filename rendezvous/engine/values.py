"""Frozen values with slots, for every Python since 3.9.

`dataclass` and `replace` have the meaning of the standard library's, which type checkers see. Two things differ. A value has slots, which
the standard library offers since Python 3.10 only. And the type checker alone enforces that a value is frozen: to enforce it at run time,
the standard library sets each field through a function, which makes a value four times as expensive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import field as field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:

    def dataclass(*, frozen: bool) -> Callable[[type], type]:
        """Return the decorator that makes a class a class of values."""
        if not frozen:
            raise TypeError("a value is frozen")
        return _with_slots

    def replace(value: Any, **changes: Any) -> Any:
        """Return the value with these fields changed."""
        return type(value)._replaced(value, changes)


def _with_slots(cls: type) -> type:
    # The standard library's __init__ is fast if it need not be frozen, and __hash__ makes the values usable as defaults.
    made: Any = dataclasses.dataclass(unsafe_hash=True)(cls)
    names = tuple(one.name for one in dataclasses.fields(made))
    parts = {name: part for name, part in vars(made).items() if name not in (*names, "__dict__", "__weakref__")}
    slotted = type(cls)(cls.__name__, cls.__bases__, {**parts, "__slots__": names})
    slotted.__qualname__ = cls.__qualname__
    setattr(slotted, "_replaced", staticmethod(_copier(slotted, names)))  # noqa: B010
    return slotted


def _copier(cls: type, names: tuple[str, ...]) -> Callable[[Any, dict[str, Any]], Any]:
    """Return a function that copies a value with changes. It is compiled for the class, as the standard library does with __init__."""
    lines = ["def copied(value, changes):", "    new = make(cls)"]
    lines += [f"    new.{name} = value.{name}" for name in names]
    lines += ["    for name, changed in changes.items():", "        setattr(new, name, changed)", "    return new"]
    scope: dict[str, Any] = {"make": object.__new__, "cls": cls}
    exec("\n".join(lines), scope)
    copied: Callable[[Any, dict[str, Any]], Any] = scope["copied"]
    return copied
