"""Values that the workers of one job give each other while they form a world in process, such as the addresses of their process group.

The server passes them on and decides nothing by them. Each member may give so much for one round; the next round begins with nothing.
"""

from collections import Counter

from elastic.membership.in_place import KEYS_A_MESSAGE, VALUE_LENGTH, Keys, Put, Stage, Values
from rendezvous.machine import Job

MOST_VALUES = 256
"""Values that one member may give for one round."""
MOST_LENGTH = 4 * VALUE_LENGTH
"""Characters that the values of one member may have together."""


class Exchange:
    """The values of one job's present round, in the order in which they came."""

    __slots__ = ("_given", "_lengths", "_values", "round")

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, round: int) -> None:
        self.round = round
        self._values: list[tuple[str, str]] = []
        self._given: Counter[str] = Counter()
        self._lengths: Counter[str] = Counter()

    def put(self, job: Job, name: str, message: Put) -> bool:
        """Keep a member's value. Return False if the member is not in the world of this round, or has given too much."""
        world, known = job.membership.world, job.in_place
        if message.round != known.round or known.stage not in (Stage.FORM, Stage.RUN) or world is None or name not in world.ranks:
            return False
        if message.round != self.round:
            self._begin(message.round)
        self._given[name] += 1
        self._lengths[name] += len(message.key) + len(message.value)
        if self._given[name] > MOST_VALUES or self._lengths[name] > MOST_LENGTH:
            return False
        self._values.append((message.key, message.value))
        return True

    def after(self, round: int, number: int) -> tuple[int, Keys | None]:
        """Return the number of values that the peer has after the next message, and that message; None if there is nothing to send.

        round, number: the round of which the peer got values last, and how many.
        """
        number = number if round == self.round else 0
        found = dict(self._values[number : number + KEYS_A_MESSAGE])
        if not found:
            return number, None
        return min(len(self._values), number + KEYS_A_MESSAGE), Keys(keys=Values(round=self.round, items=found))
