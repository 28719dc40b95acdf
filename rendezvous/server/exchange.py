"""Values that the workers of one job give each other while they form a world in process, such as the addresses of their process group.

The server passes them on and decides nothing by them. The bytes of a job are limited for each round, and each round begins without values.
"""

from collections import Counter

from elastic.membership.wire import KEYS_A_MESSAGE, Keys, Values
from elastic_training.rendezvous.engine.messages.in_place import VALUE_LENGTH, Put, Stage
from elastic_training.rendezvous.engine.state.job import JobState

MOST_VALUES = 16
"""Values that a member may give for one round, for each of its workers. Its agent has the same limit."""
MOST_LENGTH = 2048 * VALUE_LENGTH
"""Characters that the values of a job may have together. The addresses of as many workers as a value has room for take less."""


class Exchange:
    """The values of one job's present world, in the order in which they came."""

    __slots__ = ("_given", "_known", "_length", "_values", "round")

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, round: int) -> None:
        self.round = round
        self._values: list[tuple[str, str]] = []
        self._known: dict[str, str] = {}
        self._given: Counter[str] = Counter()
        self._length = 0

    def put(self, job: JobState, name: str, message: Put) -> bool:
        """Keep a member's value. Return False if it is known, the member is not in the world of this round, or it has given too much.

        The exchange of a world goes on while its members train or hold, because a program may form groups of its own.
        """
        world, known, member = job.membership.world, job.in_place, job.membership.members.get(name)
        if message.round != known.world_round or not (known.stands or known.stage is Stage.FORM):
            return False
        if world is None or name not in world.ranks or member is None:
            return False
        if message.round != self.round:
            self._begin(message.round)
        if self._known.get(message.key) == message.value:
            return False  # an agent repeats its values on each new connection
        length = self._length + len(message.key) + len(message.value)
        if self._given[name] >= MOST_VALUES * max(1, member.workers) or length > MOST_LENGTH:
            return False
        self._given[name] += 1
        self._length = length
        self._known[message.key] = message.value
        self._values.append((message.key, message.value))
        return True

    def has(self, message: Put) -> bool:
        """Return whether this value is known already."""
        return message.round == self.round and self._known.get(message.key) == message.value

    def after(self, round: int, number: int) -> tuple[int, Keys | None]:
        """Return the number of values that the peer has after the next message, and that message; None if there is nothing to send.

        round, number: the round of which the peer got values last, and how many.
        """
        number = number if round == self.round else 0
        found = dict(self._values[number : number + KEYS_A_MESSAGE])
        if not found:
            return number, None
        return min(len(self._values), number + KEYS_A_MESSAGE), Keys(keys=Values(round=self.round, items=found))
