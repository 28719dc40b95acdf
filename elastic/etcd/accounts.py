"""Manage the users of the installation's etcd.

The administrator turns authentication on. Each job has a user whose role allows only the job's prefix. Passwords are derived from the
installation's key, so that no password is stored.
"""

from collections.abc import Sequence
from typing import Any

from elastic.etcd.grpc_store import GrpcStore
from elastic.etcd.place import JOB_USER, user_of
from elastic.etcd.store import Away, StoreRefused

ROOT = "root"
_THERE, _GONE = "already exists", "not found"
READWRITE = 2


class Accounts:
    """The users of one etcd, as its administrator changes them."""

    def __init__(self, store: GrpcStore, *, password: str) -> None:
        self._store = store
        self._password = password

    async def begin(self) -> None:
        """Turn authentication on if this etcd is new."""
        try:
            await self._store.log_in()
        except StoreRefused as error:
            raise StoreRefused(f"the installation's etcd does not take this installation's administrator: {error}") from None
        if not self._store.asks_nobody:
            return
        await self._do("Auth/UserAdd", "AuthUserAddRequest", name=ROOT, password=self._password)
        await self._do("Auth/RoleAdd", "AuthRoleAddRequest", name=ROOT)
        await self._do("Auth/UserGrantRole", "AuthUserGrantRoleRequest", user=ROOT, role=ROOT)
        await self._do("Auth/AuthEnable", "AuthEnableRequest")
        self._store.forget_login()
        await self._store.log_in()
        if self._store.asks_nobody:
            raise Away("authentication could not be turned on")

    async def add(self, job: str, *, prefix: str, password: str) -> None:
        """Add a user for a job's agents. The role comes before the user, so that a user who can log in can also write."""
        name, end = user_of(job), prefix[:-1] + chr(ord(prefix[-1]) + 1)
        permission = self._store.message("Permission", permType=READWRITE, key=prefix.encode(), range_end=end.encode())
        await self._do("Auth/RoleAdd", "AuthRoleAddRequest", name=name)
        await self._do("Auth/RoleGrantPermission", "AuthRoleGrantPermissionRequest", name=name, perm=permission)
        await self._do("Auth/UserAdd", "AuthUserAddRequest", name=name, password=password)
        await self._do("Auth/UserGrantRole", "AuthUserGrantRoleRequest", user=name, role=name)

    async def remove(self, job: str) -> None:
        await self._do("Auth/UserDelete", "AuthUserDeleteRequest", name=user_of(job))
        await self._do("Auth/RoleDelete", "AuthRoleDeleteRequest", role=user_of(job))

    async def jobs(self) -> Sequence[str]:
        """Return the uids of all jobs that have a user."""
        answer = await self._store.call("Auth/UserList", "AuthUserListRequest")
        return [str(name).removeprefix(JOB_USER) for name in answer.users if str(name).startswith(JOB_USER)]

    async def _do(self, method: str, kind: str, **fields: Any) -> None:
        """Make a change. Accept that a user or role to add exists already, or that one to remove is gone."""
        try:
            await self._store.call(method, kind, **fields)
        except StoreRefused as error:
            if _THERE not in str(error) and _GONE not in str(error):
                raise
