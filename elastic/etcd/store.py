"""What a follower needs of an etcd, and how an etcd fails. `grpc_store` is a real one; the simulation has one in memory."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Away(Exception):
    """No endpoint gave a usable answer in time."""


class StoreRefused(Exception):
    """etcd answered with an error that another attempt does not mend soon."""


class Full(StoreRefused):
    """etcd takes no more writes, because its quota is used up."""

    def __init__(self) -> None:
        super().__init__("it takes no more writes: its quota is used up (alarm NOSPACE); compact, defragment, then disarm the alarm")


class Compacted(Exception):
    """A watch asked for history that etcd has forgotten."""


class Entry(NamedTuple):
    """A key, without the prefix, and what lies there. `value` is None where the key was deleted."""

    key: str
    value: bytes | None
    written: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Of what lies under a prefix at one revision, all or a part."""

    revision: int
    entries: tuple[Entry, ...]


class Store(Protocol):
    """One etcd, by one user. Every method may raise Away or Refused, and ends within a few seconds."""

    def pages(self, prefix: str) -> AsyncIterator[Listing]:
        """What lies under the prefix, some keys at a time, all as of the first one's revision."""

    async def newest(self, prefix: str) -> tuple[int, int]:
        """The newest revision at which a key under the prefix was written, and how many keys there are."""

    def watch(self, prefix: str, since: int) -> AsyncIterator[tuple[Entry, ...]]:
        """Changes from a revision on, until the store is closed; sometimes none. Raises Compacted, too."""

    async def put(self, key: str, value: bytes, *, lease: int, unchanged: int) -> int:
        """The revision at which it was written; 0 where the key has another revision than `unchanged` (0: no such key)."""

    async def remove(self, prefix: str) -> None:
        """All keys under the prefix."""

    async def grant(self, ttl_s: int) -> int:
        """A new lease."""

    async def keep(self, lease: int) -> bool:
        """Renew a lease; False where there is no such lease any more."""

    async def revoke(self, lease: int) -> None: ...

    async def is_full(self) -> bool:
        """Whether etcd takes no more writes, because it has reached its quota."""

    async def close(self) -> None: ...
