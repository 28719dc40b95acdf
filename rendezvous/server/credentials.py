"""The server's certificate and the installation's keys, read from its folder, and read again when the files change.

Open connections are left alone: a new certificate is used for new connections. If new files cannot be used, that is logged and the old
ones stay in use, because a rotation may be half done.
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
    """The contents of the installation's folder. `tls` stays the same object when its certificate changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._stamp()
        self.keys: Sequence[bytes] = load_keys(folder)
        self.tls = _context(folder)

    def look(self) -> bool:
        """Load changed files; returns whether any changed. Raises OSError, which includes SSLError, or BadKey."""
        now = self._stamp()
        if now == self._seen:
            return False
        keys = load_keys(self._folder)
        _context(self._folder)  # test the pair first: a certificate that does not match its key must not reach the context in use
        _load(self.tls, self._folder)
        self.keys, self._seen = keys, now
        return True

    def _stamp(self) -> Stamp:
        """Return the identity of the files. A mounted Secret changes through a symlink, which then leads to other files."""
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
    """Poll the files until cancelled. The same error is logged once."""
    trouble = ""
    while True:
        await asyncio.sleep(every_s)
        try:
            has_changed = credentials.look()
        except (OSError, BadKey) as error:
            if str(error) != trouble:
                trouble = str(error)
                log.warning("changed files of the installation cannot be used; the old ones stay in use", extra={"error": trouble})
            continue
        trouble = ""
        if has_changed:
            log.info("the files of the installation changed; new connections use them")


def _context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Tickets cost a third of a handshake. A resumed one is no cheaper than one without them, and callers resume none.
    context.num_tickets = 0
    _load(context, folder)
    return context


def _load(context: ssl.SSLContext, folder: Path) -> None:
    certificate, key = CERTIFICATE_FILES
    context.load_cert_chain(folder / certificate, folder / key)
