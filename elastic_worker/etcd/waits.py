"""Measure for how long a member itself has watched facts hold; clocks of two hosts are never compared."""

import typing

Fact = typing.Tuple[typing.Any, ...]
Since = typing.Mapping[Fact, float]


class Waits:
    """The times for which facts have held, as one member has watched them. A fact that a decision does not ask about is forgotten."""

    def __init__(self, since: Since, now: float) -> None:
        self._before = since
        self._now = now
        self.since = {}  # type: typing.Dict[Fact, float]
        self.look_again_at = None  # type: typing.Optional[float]

    def began(self, fact: Fact) -> float:
        """Return since when this fact, which holds now, has held."""
        self.since[fact] = self._before.get(fact, self._now)
        return self.since[fact]

    def held(self, fact: Fact, seconds: float) -> bool:
        """Return whether this fact, which holds now, has held for so long."""
        began = self.began(fact)
        if self._now >= began + seconds:
            return True
        at = began + seconds
        self.look_again_at = at if self.look_again_at is None else min(at, self.look_again_at)
        return False
