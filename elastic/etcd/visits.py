"""Open the etcd of a job.

A user's etcd is opened with the login from the user's Secret. In the installation's etcd the administrator first gives the job a user.
"""

import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from elastic.etcd.accounts import ROOT, Accounts
from elastic.etcd.channels import Channels
from elastic.etcd.grpc_store import GrpcStore
from elastic.etcd.place import Access, EtcdPlace
from elastic.etcd.store import Store, StoreRefused

USER, PASSWORD, CA, CERTIFICATE, KEY = "user", "password", "ca.crt", "tls.crt", "tls.key"
"""Keys of the user's Secret."""
LONGEST_SECRET = 256 * 1024
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):\d{1,5}\Z")

ReadSecret = Callable[[str, str], Awaitable[Mapping[str, str]]]
"""A function that returns the content of a Secret by namespace and name, or raises StoreRefused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The installation's etcd."""

    endpoints: tuple[str, ...]
    """The endpoints at which this process reaches it."""
    ca: str
    password_for: Callable[[str], str]
    """Returns the password of a job's user, or of the administrator for an empty job."""
    is_eager: bool = False
    """Connect at once, so that authentication is on before another client connects."""


class Visitor:
    """Opens etcds, and shares their connections in one event loop."""

    def __init__(self, *, read_secret: ReadSecret, own: Own | None, follows_others: bool = True) -> None:
        self._channels = Channels()
        self._read_secret = read_secret
        self._own = own
        self._follows_others = follows_others

    async def open(self, place: EtcdPlace) -> Store:
        """Open the etcd of a job. Raise Away, StoreRefused or NotInstalled."""
        if place.is_own:
            return await self._open_own(place)
        if not self._follows_others:
            raise StoreRefused("this controller connects to no etcd of users (--no-follow-user-etcd)")
        for endpoint in place.endpoints:
            if not _ENDPOINT.match(endpoint):  # gRPC would read other texts as a path, or as another scheme
                raise StoreRefused(f"rdzvHost holds {endpoint[:300]!r}, which is not HOST or HOST:PORT")
        access = await self._access(place)
        is_tls = place.is_tls or bool(access.ca or access.certificate)
        return GrpcStore(self._channels, place.endpoints, access, is_tls=is_tls, namespace=place.namespace)

    async def _open_own(self, place: EtcdPlace) -> Store:
        store, accounts = self.administrator()
        try:
            await accounts.begin()
            await accounts.add(place.job, prefix=place.prefix, password=self._known().password_for(place.job))
        except BaseException:
            await store.close()
            raise
        return store

    def administrator(self) -> tuple[GrpcStore, Accounts]:
        """Return the installation's etcd and its users. The caller closes the store."""
        own = self._known()
        access = Access(user=ROOT, password=own.password_for(""), ca=own.ca)
        store = GrpcStore(self._channels, own.endpoints, access, is_tls=True)
        return store, Accounts(store, password=own.password_for(""))

    def _known(self) -> Own:
        if self._own is None:
            raise StoreRefused("this controller knows no etcd of the installation (--etcd-endpoint)")
        return self._own

    async def _access(self, place: EtcdPlace) -> Access:
        if not place.secret:
            return Access()
        held = await self._read_secret(place.namespace, place.secret)
        if sum(map(len, held.values())) > LONGEST_SECRET:
            raise StoreRefused(f"Secret {place.secret} holds more than {LONGEST_SECRET} bytes")
        access = Access(
            user=held.get(USER, ""),
            password=held.get(PASSWORD, ""),
            ca=held.get(CA, ""),
            certificate=held.get(CERTIFICATE, ""),
            key=held.get(KEY, ""),
        )
        if bool(access.user) != bool(access.password):
            raise StoreRefused(f"Secret {place.secret} needs both {USER} and {PASSWORD}, or neither")
        _check(access, place.secret)
        return access


def _check(access: Access, secret: str) -> None:
    """Refuse bad certificates here, because gRPC would report only that it could not connect."""
    if access.ca:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=access.ca)
        except (ssl.SSLError, ValueError) as error:
            raise StoreRefused(f"{CA} in Secret {secret} is no certificate: {error}") from None
    if bool(access.certificate) != bool(access.key):
        raise StoreRefused(f"Secret {secret} needs both {CERTIFICATE} and {KEY}, or neither")
