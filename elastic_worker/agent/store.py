"""The store that torchrun's agents of one generation share. A wait in it ends with the world.

torch waits minutes for keys of its peers, and the agent fails if they do not arrive. Here the wait ends once the rendezvous says that the
world has ended. The agent gets a harmless made-up answer and returns to the barrier when it next polls the rendezvous.
"""

import datetime
import json
import time
import typing

SLICE = datetime.timedelta(seconds=0.5)
ROLE_INFO = "torchelastic/role_info/"
ASSIGNED_RANKS = "torchelastic/assigned_ranks/"

Answer = typing.TypeVar("Answer")
Store = typing.Any
"""A torch.distributed.TCPStore; its type stubs are incomplete."""


USE_LIBUV = "USE_LIBUV"
"""torch's own switch: whether TCPStore uses libuv. That is the default, but some builds of torch lack libuv (Debian's)."""


def uses_libuv(environment: typing.Mapping[str, str]) -> bool:
    return environment.get(USE_LIBUV, "1") == "1"


def open_tcp_store(
    host: str, port: int, environment: typing.MutableMapping[str, str], *, is_master: bool, timeout: datetime.timedelta
) -> Store:
    """Open a TCPStore with libuv if this torch has it. If not, set USE_LIBUV=0 in `environment`, which workers inherit."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    def open_with(use_libuv: bool) -> Store:
        return TCPStore(host, port, is_master=is_master, wait_for_workers=False, timeout=timeout, use_libuv=use_libuv)

    if not uses_libuv(environment):
        return open_with(False)
    try:
        return open_with(True)
    except RuntimeError as error:
        if "libuv" not in str(error) or USE_LIBUV in environment:
            raise
    store = open_with(False)
    environment[USE_LIBUV] = "0"
    return store


class WorldOver(Exception):
    """The world ended while the agent waited for a peer."""


class AgentStore:
    """The part of torch.distributed.Store that torchrun's agent uses, on top of the generation's TCPStore."""

    def __init__(self, store: Store, *, rank: int, size: int, is_over: typing.Callable[[], bool]) -> None:
        self._store = store  # type: typing.Optional[Store]
        self._rank = rank
        self._size = size
        self._is_over = is_over
        self._role_info = b""
        self._timeout = datetime.timedelta(seconds=300)
        self.broke = False
        """Whether an answer was made up because the world had ended."""
        self._is_detached = False

    @property
    def timeout(self) -> datetime.timedelta:
        return self._timeout

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout

    def close(self) -> None:
        """Drop the TCPStore. If this agent hosts it, the waits of its peers end."""
        self._store = None

    @property
    def local_size(self) -> int:
        """Return the number of workers that torchrun starts here, 0 as long as it has not said it."""
        return int(json.loads(self._role_info or b"{}").get("local_world_size", 0))

    def detach(self) -> None:
        """Answer everything at once from now on, because the workers have entered another world in process.

        torchrun still has the number of agents with which it began, and would wait for it at its end. Rank 0 of then may be gone.
        """
        self._is_detached = True

    def set(self, key: str, value: typing.Union[str, bytes]) -> None:
        if key == "{}{}".format(ROLE_INFO, self._rank):
            self._role_info = value if isinstance(value, bytes) else value.encode()
        self._try(lambda store: store.set(key, value), None)

    def add(self, key: str, amount: int) -> int:
        return self._try(lambda store: int(store.add(key, amount)), 0)

    def multi_set(self, keys: typing.List[str], values: typing.List[str]) -> None:
        self._try(lambda store: store.multi_set(keys, values), None)

    def get(self, key: str) -> bytes:
        def ask(store: Store) -> bytes:
            self._wait(store, [key], self._timeout)
            return bytes(store.get(key))

        return self._try(ask, self._made_up_ranks() if key.startswith(ASSIGNED_RANKS) else b"")

    def multi_get(self, keys: typing.List[str]) -> typing.List[bytes]:
        def ask(store: Store) -> typing.List[bytes]:
            self._wait(store, keys, self._timeout)
            return [bytes(value) for value in store.multi_get(keys)]

        return self._try(ask, [self._role_info] * len(keys))

    def wait(self, keys: typing.List[str], timeout: typing.Optional[datetime.timedelta] = None) -> None:
        self._try(lambda store: self._wait(store, keys, timeout or self._timeout), None)

    def _wait(self, store: Store, keys: typing.List[str], timeout: datetime.timedelta) -> None:
        until = time.monotonic() + timeout.total_seconds()
        while True:
            try:
                store.wait(keys, SLICE)
                return
            except RuntimeError:
                if store.check(keys):
                    return
                if self._is_detached or self._is_over():
                    raise WorldOver() from None
                if time.monotonic() >= until:
                    raise

    def _try(self, ask: typing.Callable[[Store], Answer], made_up: Answer) -> Answer:
        """Ask the store. If the store is gone or the world has ended, return the made-up answer."""
        if self._is_detached:
            return made_up
        if self._store is None:
            self.broke = True
            return made_up
        try:
            return ask(self._store)
        except (RuntimeError, WorldOver):
            self.broke = not self._is_detached
            return made_up

    def _made_up_ranks(self) -> bytes:
        local = int(json.loads(self._role_info or b'{"local_world_size": 1}').get("local_world_size", 1))
        first, total = self._rank * local, self._size * local
        return json.dumps([first, total, first, total]).encode()
