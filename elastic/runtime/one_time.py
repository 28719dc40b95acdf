"""A token that lets its first holder in, and nobody after: kept in a file of its owner, which holds the next one as soon as one is used."""

import hmac
import secrets
from pathlib import Path

from elastic.runtime.files import write_private

BYTES = 32


class OneTimeToken:
    def __init__(self, file: Path) -> None:
        self._file = file

    def current(self) -> str:
        """Return the secret that is valid now."""
        try:
            known = self._file.read_text().strip()
        except FileNotFoundError:
            known = ""
        return known or self.renew()

    def renew(self) -> str:
        made = secrets.token_urlsafe(BYTES)
        write_private(self._file, made.encode())
        return made

    def take(self, shown: str) -> bool:
        """Return whether this is the token. If so, it is not valid any more."""
        if not hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), self.current().encode()):
            return False
        self.renew()
        return True
