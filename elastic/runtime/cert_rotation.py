"""Keep a server's certificate in a Secret that all its replicas share, renew it in time, and let its CA be trusted before its first use.

Every replica does all of this, because any may be the last one. The Secret's version decides if two act at once.
"""

import asyncio
import base64
import binascii
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

import aiohttp

from elastic.certificates import Pair
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import SECRETS, Object
from elastic.runtime.certificate import Credentials, Due, due, renewed

log = logging.getLogger(__name__)

LOOK_EVERY_S = 15.0
TRIES = 5
Trust = Callable[[bytes], Awaitable[None]]
TRUSTED, AUTHORITY_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateName:
    """Service and Secret have one name."""

    namespace: str
    name: str
    is_external: bool = False
    """Whether another program, such as cert-manager, makes the certificate. Then it is only read."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """By which the server is called: in a cluster, and on the machine it runs on."""
        return (f"{self.name}.{self.namespace}.svc", "localhost", "127.0.0.1")


class Keeping:
    """`trust` makes API servers trust a bundle of CAs."""

    def __init__(
        self, kube: Kube, place: CertificateName, trust: Trust, *, clock: Callable[[], datetime], every_s: float = LOOK_EVERY_S
    ) -> None:
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._kube = kube
        self._place = place
        self._trust = trust
        self._clock = clock
        self._every_s = every_s
        self._served: Pair | None = None
        self.shown: Callable[[Pair], None] = lambda pair: None
        """Called with each certificate that is served from then on."""
        self._trouble = ""

    async def begin(self) -> None:
        """Wait until there is a certificate to serve with."""
        while self._served is None:
            await self._try()
            if self._served is None:
                await asyncio.sleep(self._every_s)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._try()

    async def _try(self) -> None:
        """Renew the certificate. A failure may pass; until then the served certificate stays."""
        try:
            credentials = await self._credentials()
            # First they trust, then we show.
            await self._trust(credentials.trusted)
            if credentials.served != self._served:
                load(self.tls, credentials.served)
                self._served = credentials.served
                self.shown(credentials.served)
            self._trouble = ""
        except (KubeError, aiohttp.ClientError, TimeoutError, ssl.SSLError) as error:
            if str(error) != self._trouble:
                log.warning("the certificate could not be checked; trying again", extra={"secret": str(self._place), "error": str(error)})
            self._trouble = str(error)

    async def _credentials(self) -> Credentials:
        """Return the credentials of the Secret, renewed if it is time. If several renew at once, one succeeds and all take its pair."""
        for _ in range(TRIES):
            secret = await self._secret()
            there = _read(secret)
            if self._place.is_external:
                if there is None:
                    raise TimeoutError(f"the secret {self._place} has no certificate yet")
                return there
            what = due(there, self._place.names, now=self._clock())
            if what is Due.NOTHING and there is not None:
                return there
            made = renewed(there, self._place.names, name=self._place.name, what=what)
            try:
                await self._write(secret, made)
            except KubeError as error:
                if error.code != 409:
                    raise
                continue
            log.info("the certificate was renewed", extra={"what": what.value, "secret": str(self._place)})
            return made
        raise TimeoutError(f"the secret {self._place} changed at every attempt to write it")

    async def _secret(self) -> Object | None:
        return await self._kube.find(SECRETS, self._place.name, namespace=self._place.namespace)

    async def _write(self, secret: Object | None, made: Credentials) -> None:
        parts = {TRUSTED: made.trusted, AUTHORITY_KEY: made.authority_key, CERTIFICATE: made.served.certificate, KEY: made.served.key}
        data = {name: base64.b64encode(part).decode() for name, part in parts.items()}
        metadata: Object = {"name": self._place.name, "namespace": self._place.namespace}
        if secret is None:
            body: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
            await self._kube.create(SECRETS, body, namespace=self._place.namespace)
        else:
            body = {"metadata": {"resourceVersion": secret["metadata"]["resourceVersion"]}, "data": data}
            await self._kube.patch(SECRETS, self._place.name, body, namespace=self._place.namespace)


def load(tls: ssl.SSLContext, pair: Pair) -> None:
    """Let new connections see this pair. OpenSSL's binding reads files only; this file is in memory, and gone right after."""
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(pair.certificate + pair.key)
        file.flush()
        tls.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def _read(secret: Object | None) -> Credentials | None:
    """Read the credentials in a Secret, or return None if they cannot be served."""
    data = (secret or {}).get("data") or {}
    try:
        part = {name: base64.b64decode(data.get(name, ""), validate=True) for name in (TRUSTED, AUTHORITY_KEY, CERTIFICATE, KEY)}
    except binascii.Error:
        return None
    if not (part[TRUSTED] and part[CERTIFICATE] and part[KEY]):
        return None
    return Credentials(part[TRUSTED], part[AUTHORITY_KEY], Pair(part[CERTIFICATE], part[KEY]))
