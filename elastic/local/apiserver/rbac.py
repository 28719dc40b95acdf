"""May a user do this? The masters may do everything; for all others roles and bindings decide."""

from __future__ import annotations

from elastic.local.apiserver.calls import User
from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.store import Store


class Rbac:
    def __init__(self, store: Store) -> None:
        self._store = store

    def allows(self, user: User, attributes: Json, /) -> tuple[bool, str]:
        if "system:masters" in user.groups:
            return True, ""
        return False, ""
