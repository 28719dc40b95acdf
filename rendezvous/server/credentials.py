"""The server's own certificate and the installation's keys, read from its folder, and read again when the files change.

Connections that stand are left alone: a new certificate serves those that come after it. What cannot be read is reported and the old one
serves on, because a rotation may be seen halfway.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from pathlib import Path

from elastic.membership.tokens import KEY_FILES, BadKey, load_keys

log = logging.getLogger(__name__)

CERTIFICATE_FILES = ("tls.crt", "tls.key")
LOOK_S = 2.0

Stamp = tuple[tuple[int, int, int] | None, ...]


class Credentials:
    """What the installation's folder holds. `tls` stays the same object, whatever certificate it shows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._stamp()
        self.keys: Sequence[bytes] = load_keys(folder)
        self.tls = _context(folder)

    def look(self) -> bool:
        """Take over what has changed since the last look; whether anything did. Raises OSError (of which SSLError is one) or BadKey."""
        now = self._stamp()
        if now == self._seen:
            return False
        keys = load_keys(self._folder)
        _context(self._folder)  # a certificate and a key that do not belong together must not get into the context that serves
        _load(self.tls, self._folder)
        self.keys, self._seen = keys, now
        return True

    def _stamp(self) -> Stamp:
        """When the files were last replaced; a mounted Secret changes behind a link, which leads to another file then."""
        found: list[tuple[int, int, int] | None] = []
        for name in (*KEY_FILES, *CERTIFICATE_FILES):
            try:
                stat = (self._folder / name).stat()
            except FileNotFoundError:
                found.append(None)
            else:
                found.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
        return tuple(found)


async def follow(credentials: Credentials, *, every_s: float = LOOK_S) -> None:
    """Look again and again, until cancelled. A trouble is told once, and again when it is another one."""
    trouble = ""
    while True:
        await asyncio.sleep(every_s)
        try:
            has_changed = credentials.look()
        except (OSError, BadKey) as error:
            if str(error) != trouble:
                trouble = str(error)
                log.warning("changed files of the installation cannot be used, the old ones serve on", extra={"error": trouble})
            continue
        trouble = ""
        if has_changed:
            log.info("files of the installation have changed, new connections are served with them")


def _context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, folder)
    return context


def _load(context: ssl.SSLContext, folder: Path) -> None:
    certificate, key = CERTIFICATE_FILES
    context.load_cert_chain(folder / certificate, folder / key)
