"""Ask the API server which account a token belongs to, without letting unknown callers delay others.

The API server is asked about few tokens at once, so unknown callers wait. They wait in two lanes: tokens that claim an account of the
control plane wait apart from all others. Any caller can claim such an account, so each address has few places in either lane. A token that
a review has confirmed for such an account never waits.
"""

import asyncio
import base64
import binascii
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import msgspec

KEPT_S = 60.0
MOST_KEPT = 64
AT_ONCE = 8
"""Maximum number of concurrent reviews per lane."""


@dataclass(frozen=True, slots=True)
class ReviewPlaces:
    """Maximum numbers of tokens that wait for a review or are under review."""

    of_address: int
    """Maximum per address."""
    of_all: int
    """Maximum in total."""


STRANGERS = ReviewPlaces(of_address=8, of_all=64)
CLAIMANTS = ReviewPlaces(of_address=4, of_all=256)
"""The places of tokens that name an account of the control plane. It takes 64 addresses to fill them."""


class Busy(Exception):
    """Too many unknown tokens wait for their review."""


class Reviewer(Protocol):
    """Asks the Kubernetes API for the user of a token."""

    async def review(self, token: str) -> str | None:
        """Return the user name of a token that is valid for our audience, else None."""


@dataclass(frozen=True, slots=True)
class Review:
    """The API server's answer about a token, and its time."""

    user: str | None
    at: float


class Lane:
    """Places for tokens that wait for their review, few of them for each address."""

    def __init__(self, name: str, most: ReviewPlaces) -> None:
        self._name, self._most = name, most
        self._of_address: Counter[str] = Counter()
        self.places = asyncio.Semaphore(AT_ONCE)

    def take(self, address: str) -> None:
        """Take a place for this address. Raises Busy if all are taken."""
        if self._of_address.get(address, 0) >= self._most.of_address:
            raise Busy(f"{self._most.of_address} {self._name} from this address are already waiting for review; retry later")
        if self._of_address.total() >= self._most.of_all:
            raise Busy(f"{self._most.of_all} {self._name} are already waiting for review; retry later")
        self._of_address[address] += 1

    def give_back(self, address: str) -> None:
        """Free a place of this address."""
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]


class Reviews:
    """Finds the users of tokens. The API server's answers are kept for a minute."""

    def __init__(self, reviewer: Reviewer, *, ours: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._reviewer = reviewer
        self._ours = frozenset(ours)
        self._clock = clock
        self._known: dict[str, Review] = {}
        self._under_way: dict[str, asyncio.Task[Review]] = {}
        self._claimants, self._strangers = Lane("tokens that name an account of the control plane", CLAIMANTS), Lane("tokens", STRANGERS)

    async def user(self, token: str, *, address: str) -> str | None:
        """Return whose token this is; None if the API server does not know it. Raises Busy if too many wait."""
        known = self._known.get(token)
        if known is not None and self._clock() < known.at + KEPT_S:
            return known.user
        if token not in self._under_way:
            is_ours = known is not None and known.user in self._ours
            lane = None if is_ours else self._claimants if claimed(token) in self._ours else self._strangers
            if lane is not None:
                lane.take(address)
            self._under_way[token] = task = asyncio.create_task(self._review(token, lane))
            task.add_done_callback(lambda done: self._ended(token, done, lane, address))
        return (await asyncio.shield(self._under_way[token])).user  # a caller that goes away ends only its own wait

    def _ended(self, token: str, done: asyncio.Task[Review], lane: Lane | None, address: str) -> None:
        del self._under_way[token]
        if lane is not None:
            lane.give_back(address)
        if not done.cancelled():
            done.exception()  # callers that still wait get the error; reading it here avoids a warning if none is left

    async def _review(self, token: str, lane: Lane | None) -> Review:
        async with lane.places if lane is not None else contextlib.nullcontext():
            user = await self._reviewer.review(token)
        self._known.pop(token, None)
        self._known[token] = found = Review(user, self._clock())
        while len(self._known) > MOST_KEPT:
            del self._known[self._least_wanted()]
        return found

    def _least_wanted(self) -> str:
        """Return the token with the oldest review of an account outside the control plane, or the oldest of all reviews."""
        strangers = (token for token, review in self._known.items() if review.user not in self._ours)
        return next(strangers, None) or next(iter(self._known))


class Claims(msgspec.Struct):
    """The claim of a token that names its account."""

    sub: str = ""


_claims = msgspec.json.Decoder(Claims)


def claimed(token: str) -> str:
    """Return the account that a token names; empty if it names none. Nothing is verified."""
    payload = token.split(".")[1]
    try:
        return _claims.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))).sub
    except (binascii.Error, ValueError, RecursionError):
        return ""
