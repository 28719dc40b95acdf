"""The store that torchrun's agents of one generation share, so that nothing an agent waits for there outlives its world.

torch waits for its peers' keys for minutes and ends the agent when they do not come. Here a wait ends as soon as the rendezvous says
that the world is over: the agent gets a harmless answer, and its next look at the rendezvous brings it back to the barrier.
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
"""A torch.distributed.TCPStore, whose type stubs lack half of what it can do."""


USE_LIBUV = "USE_LIBUV"
"""torch's own switch: whether TCPStore works with libuv, which is its default and which some builds of torch lack (Debian's)."""


def uses_libuv(environment: typing.Mapping[str, str]) -> bool:
    return environment.get(USE_LIBUV, "1") == "1"


def open_tcp_store(
    host: str, port: int, environment: typing.MutableMapping[str, str], *, is_master: bool, timeout: datetime.timedelta
) -> Store:
    """A TCPStore as this build of torch can have it; where it lacks libuv, `environment` says so from then on, for workers need to know."""
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
    """The world broke while the agent waited for a peer."""


class AgentStore:
    """What torchrun's agent uses of torch.distributed.Store, over the generation's TCPStore."""

    def __init__(self, store: Store, *, rank: int, size: int, is_over: typing.Callable[[], bool]) -> None:
        self._store = store  # type: typing.Optional[Store]
        self._rank = rank
        self._size = size
        self._is_over = is_over
        self._role_info = b""
        self._timeout = datetime.timedelta(seconds=300)
        self.broke = False
        """Whether an answer was made up because the world was over."""

    @property
    def timeout(self) -> datetime.timedelta:
        return self._timeout

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout

    def close(self) -> None:
        """Let go of the TCPStore: where this agent hosts it, its peers' waits end with it."""
        self._store = None

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
                if self._is_over():
                    raise WorldOver() from None
                if time.monotonic() >= until:
                    raise

    def _try(self, ask: typing.Callable[[Store], Answer], made_up: Answer) -> Answer:
        """Ask the store; where it is gone, or the world over, give the harmless answer."""
        if self._store is None:
            self.broke = True
            return made_up
        try:
            return ask(self._store)
        except (RuntimeError, WorldOver):
            self.broke = True
            return made_up

    def _made_up_ranks(self) -> bytes:
        local = int(json.loads(self._role_info or b'{"local_world_size": 1}').get("local_world_size", 1))
        first, total = self._rank * local, self._size * local
        return json.dumps([first, total, first, total]).encode()
