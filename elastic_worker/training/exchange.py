"""The store over which the members of a world exchange their addresses: through the agent's door, without a connection of its own."""

import datetime
import typing

from torch._C._distributed_c10d import Store

from elastic_worker.training.connections import Connections
from elastic_worker.training.control import Control

MOST_GROUPS = 14
"""Process groups of a world. The agent takes 16 values of a worker for each world, and one may say where it gives the state."""
LONGEST_WAIT_S = 1800.0
"""Seconds for which a rank waits for the others to form a further group; torch's default."""


class Exchange(Store):
    """The values of one round. A wait ends at once if the round does. Each worker writes its own keys only."""

    def __init__(self, control: Control, connections: Connections, *, round: int, timeout_s: float) -> None:
        super().__init__()
        self._control = control
        self._connections = connections
        self._round = round
        self._timeout_s = timeout_s
        self._own = set()  # type: typing.Set[str]

    def formed(self) -> None:
        """Note that the world stands. From now on the program may form groups of its own, to which ranks come when their step allows."""
        self._timeout_s = LONGEST_WAIT_S

    def set(self, key: str, value: typing.Union[str, bytes]) -> None:
        """Send a value to all members."""
        raw = value.encode() if isinstance(value, str) else bytes(value)
        self._own.add(key)
        if len(self._own) > MOST_GROUPS:
            raise RuntimeError(
                "This program has formed {} process groups in one world, and no more have room. Form a group once and keep it until "
                "the environment variable ELASTIC_GENERATION changes.".format(MOST_GROUPS)
            )
        self._connections.learn(raw)
        self._control.put(self._round, key, raw)

    def get(self, key: str) -> bytes:
        """Return the value of this key, once a member has sent it."""
        return self._take([key], self._timeout_s)[0]

    def multi_get(self, keys: typing.List[str]) -> typing.List[bytes]:
        """Return the values of these keys, once all are there."""
        return self._take(keys, self._timeout_s)

    def wait(self, keys: typing.List[str], timeout: typing.Optional[datetime.timedelta] = None) -> None:
        """Wait until all these keys have values."""
        # gloo gives the timeout of its collectives, which is much longer than forming may take.
        self._take(keys, min(self._timeout_s, timeout.total_seconds()) if timeout else self._timeout_s)

    def check(self, keys: typing.List[str]) -> bool:
        """Return whether all these keys have values by now."""
        known = self._control.known(self._round)
        return all(key in known for key in keys)

    def delete_key(self, key: str) -> bool:
        """Forget a value in this process; all values end with their round."""
        return self._control.forget(self._round, key)

    def num_keys(self) -> int:
        """Return the number of values that are known here."""
        return len(self._control.known(self._round))

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Set the bound of later waits."""
        self._timeout_s = timeout.total_seconds()

    def add(self, key: str, value: int) -> int:
        """Refuse to count."""
        raise self._refusal("add", key)

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        """Refuse to compare."""
        raise self._refusal("compare_set", key)

    def _refusal(self, name: str, key: str) -> RuntimeError:
        # A counter needs one place that counts; the door only hands values out.
        return RuntimeError(
            "Store.{}({!r}) does not work in a world that is formed in process, because its store has no counters. Use a collective, "
            "and unset TORCH_DIST_INIT_BARRIER.".format(name, key)
        )

    def _take(self, keys: typing.List[str], within_s: float) -> typing.List[bytes]:
        values = self._control.get(self._round, keys, within_s)
        for value in values:
            self._connections.learn(value)
        return values
