"""How many requests a server is passed at once, and of whom: it may be slow, and one user's requests keep nobody else's waiting."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from elastic.local.apiserver.calls import User
from elastic.local.apiserver.errors import StatusError

MOST_AT_ONCE, MOST_OF_ONE = 200, 50
OF_THE_CLUSTER = {"system:masters", "system:serviceaccounts:kube-system"}
"""Groups that have no share of their own: the controllers watch whatever is served."""
_ACCOUNT = "system:serviceaccount:"


@dataclass(slots=True)
class Places:
    server: str
    held: Counter[str] = field(default_factory=Counter)
    """Requests that it has not finished yet, by whose they are."""

    @contextlib.contextmanager
    def one_for(self, user: User) -> Iterator[None]:
        """Raises StatusError where there is none."""
        whose = _whose(user)
        if self.held.total() >= MOST_AT_ONCE:
            raise _too_many(f"{self.server} has {MOST_AT_ONCE} requests that it has not answered")
        if self.held[whose] >= MOST_OF_ONE and not OF_THE_CLUSTER & set(user.groups):
            raise _too_many(f'"{whose}" has {MOST_OF_ONE} requests that {self.server} has not answered')
        self.held[whose] += 1
        try:
            yield
        finally:
            self.held[whose] -= 1
            if not self.held[whose]:
                del self.held[whose]


def _whose(user: User) -> str:
    """Of service accounts, of which a namespace can have any number, the namespace."""
    return user.name.rpartition(":")[0] if user.name.startswith(_ACCOUNT) else user.name


def _too_many(what: str) -> StatusError:
    details = {"retryAfterSeconds": 1}
    return StatusError(429, "TooManyRequests", f"{what}; try again later", details=details, headers={"Retry-After": "1"})
