"""Define what a follower needs from an etcd, and how an etcd fails. `grpc_store` is a real one; the simulation has one in memory."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Away(Exception):
    """No endpoint gave a usable answer in time."""


class StoreRefused(Exception):
    """etcd answered with an error, and another attempt would not help soon."""


class Full(StoreRefused):
    """etcd takes no more writes, because its quota is used up."""

    def __init__(self) -> None:
        super().__init__("it takes no more writes: its quota is used up (alarm NOSPACE); compact, defragment, then disarm the alarm")


class Compacted(Exception):
    """A watch asked for history that etcd has forgotten."""


class Entry(NamedTuple):
    """A key without the prefix, and its value. `value` is None if the key was deleted."""

    key: str
    value: bytes | None
    written: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All or some of the entries under a prefix at one revision."""

    revision: int
    entries: tuple[Entry, ...]


class Store(Protocol):
    """An etcd, as one user sees it. Every method may raise Away or Refused, and ends within a few seconds."""

    def pages(self, prefix: str) -> AsyncIterator[Listing]:
        """Yield the entries under the prefix, some at a time, all at the revision of the first page."""

    async def newest(self, prefix: str) -> tuple[int, int]:
        """Return the newest revision at which a key under the prefix was written, and the number of keys."""

    def watch(self, prefix: str, since: int) -> AsyncIterator[tuple[Entry, ...]]:
        """Yield the changes since a revision until the store is closed; a group may be empty. May also raise Compacted."""

    async def put(self, key: str, value: bytes, *, lease: int, unchanged: int) -> int:
        """Write a key and return the new revision.

        Return 0, and write nothing, if the key's revision is not `unchanged`. The revision of a key that does not exist is 0.
        """

    async def remove(self, prefix: str) -> None:
        """Remove all keys under the prefix."""

    async def grant(self, ttl_s: int) -> int:
        """Create a lease, and return its number."""

    async def keep(self, lease: int) -> bool:
        """Renew a lease. Return False if it does not exist any more."""

    async def revoke(self, lease: int) -> None: ...

    async def is_full(self) -> bool:
        """Return whether etcd takes no more writes, because it has reached its quota."""

    async def close(self) -> None: ...
