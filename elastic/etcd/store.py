"""Define the calls that a follower makes to an etcd, and their errors.

`grpc_store` connects to a real etcd; the simulation has one in memory.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Away(Exception):
    """No endpoint gave a usable answer in time."""


class StoreRefused(Exception):
    """etcd answered with an error that will not pass soon."""


class Full(StoreRefused):
    """etcd takes no more writes, because its quota is used up."""

    def __init__(self) -> None:
        super().__init__("it takes no more writes: its quota is used up (alarm NOSPACE); compact, defragment, then disarm the alarm")


class Compacted(Exception):
    """A watch asked for history that etcd has forgotten."""


class Entry(NamedTuple):
    """A key without the prefix, its value, and the revision of the write. A deleted key has the value None."""

    key: str
    value: bytes | None
    written: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All entries under a prefix at one revision, or a part of them."""

    revision: int
    entries: tuple[Entry, ...]


class Store(Protocol):
    """One etcd, as one user calls it. Every method may raise Away or StoreRefused, and ends within a few seconds."""

    def pages(self, prefix: str) -> AsyncIterator[Listing]:
        """Yield the entries under the prefix in pages, all as of the first page's revision."""

    async def newest(self, prefix: str) -> tuple[int, int]:
        """Return the newest revision at which a key under the prefix was written, and the number of keys."""

    def watch(self, prefix: str, since: int) -> AsyncIterator[tuple[Entry, ...]]:
        """Yield changes from a revision on until the store is closed. A batch may be empty. Raise Compacted if history is missing."""

    async def put(self, key: str, value: bytes, *, lease: int, unchanged: int) -> int:
        """Write a key, and return the revision. Return 0 if the key's revision is not `unchanged`, which is 0 for a new key."""

    async def remove(self, prefix: str) -> None:
        """Remove all keys under the prefix."""

    async def grant(self, ttl_s: int) -> int:
        """Return a new lease."""

    async def keep(self, lease: int) -> bool:
        """Renew a lease. Return False if the lease does not exist any more."""

    async def revoke(self, lease: int) -> None: ...

    async def is_full(self) -> bool:
        """Return whether etcd takes no more writes, because it has reached its quota."""

    async def close(self) -> None: ...
