"""Reads the fields of one JSON object, each within its bounds: what lies in etcd may be anything."""

import re
import typing

MOST_MEMBERS = 8192
LONGEST_WORDS = 1024
MOST_GENERATIONS = 2**52
MOST_RESTARTS = 10**9
MOST_STEPS = 2**53
MOST_SECONDS = 366 * 86400
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")
PLAIN = re.compile(r"[!#-\[\]-~]{0,300}\Z")


class Unusable(ValueError):
    """A value in etcd that is no record of ours."""


class Fields:
    """The fields of one JSON object, each read with its bounds. A field that is not there has its empty value."""

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise Unusable("it holds {} instead of an object".format(type(value).__name__))
        self._values = value

    def words(self, name: str) -> str:
        value = self._values.get(name, "")
        if not isinstance(value, str) or len(value) > LONGEST_WORDS:
            raise self._wrong(name, "text of at most {} characters".format(LONGEST_WORDS))
        return value

    def plain(self, name: str, *, default: typing.Optional[str] = None) -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str) or not PLAIN.match(value):
            raise self._wrong(name, "plain text of at most 300 characters")
        return value

    def name(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str) or not NAME.match(value):
            raise self._wrong(name, "the name of a member")
        return value

    def integer(self, name: str, least: int, most: int) -> typing.Optional[int]:
        value = self._values.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most):
            raise self._wrong(name, "a number from {} to {}".format(least, most))
        return value

    def flag(self, name: str) -> bool:
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def generation(self, name: str) -> int:
        return self.integer(name, 0, MOST_GENERATIONS) or 0

    def step(self, name: str) -> typing.Optional[int]:
        return self.integer(name, 0, MOST_STEPS)

    def seconds(self, name: str, default: float) -> float:
        value = self.limit_s(name)
        return default if value is None else value

    def limit_s(self, name: str) -> typing.Optional[float]:
        """Return a time, or None without one."""
        value = self._values.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_SECONDS):
            raise self._wrong(name, "seconds")
        return None if value is None else float(value)

    def names(self, name: str) -> typing.Tuple[str, ...]:
        return tuple(dict.fromkeys(Fields({"": value}).name("") for value in self._list(name)))

    def sizes(self, name: str) -> typing.Tuple[int, ...]:
        return tuple(Fields({"": value}).integer("", 1, MOST_MEMBERS) or 1 for value in self._list(name))

    def ranks(self, name: str) -> typing.Tuple[int, ...]:
        return tuple(Fields({"": value}).integer("", 0, MOST_MEMBERS) or 0 for value in self._list(name))

    def counts(self, name: str) -> typing.Dict[str, int]:
        value = self._values.get(name, {})
        if not isinstance(value, dict) or len(value) > 64:
            raise self._wrong(name, "an object of at most 64 counts")
        counts = {cause: Fields(value).integer(cause, 0, MOST_RESTARTS) or 0 for cause in value if PLAIN.match(cause)}
        if len(counts) < len(value):
            raise self._wrong(name, "plain text as keys")
        return counts

    def texts(self, name: str, most: int) -> typing.Dict[str, str]:
        value = self._values.get(name, {})
        if not isinstance(value, dict) or len(value) > most or not all(isinstance(one, str) for one in value.values()):
            raise self._wrong(name, "an object of at most {} texts".format(most))
        return dict(value)

    def inner(self, name: str) -> "typing.Optional[Fields]":
        value = self._values.get(name)
        return Fields(value) if value is not None else None

    def inners(self, name: str) -> "typing.List[Fields]":
        return [Fields(value) for value in self._list(name)]

    def _list(self, name: str) -> typing.List[typing.Any]:
        value = self._values.get(name, [])
        if not isinstance(value, list) or len(value) > MOST_MEMBERS:
            raise self._wrong(name, "a list of at most {} entries".format(MOST_MEMBERS))
        return value

    def _wrong(self, name: str, expected: str) -> Unusable:
        return Unusable("{} is {}; expected {}".format(name or "an entry", repr(self._values.get(name))[:60], expected))
