"""How a process that only reads the stream of progress reaches the rendezvous server: the autoscaler and the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from elastic.membership.client import RendezvousClient


def reader(url: str, *, token: Path | None, ca: Path | None) -> RendezvousClient | None:
    """Return a client of the server, or None if the options name no server."""
    if token is None or ca is None:
        return None
    return RendezvousClient(url, token=partial(_read, token), ca=ca.read_text())


async def _read(token: Path) -> str:
    """Read for each connection: a projected token is renewed in its file."""
    return token.read_text().strip()


def reader_mistakes(url: str, *, token: Path | None, ca: Path | None) -> Iterator[str]:
    """Yield the mistakes in the flags, in words."""
    given = {"--rendezvous-url": bool(url), "--rendezvous-token": token is not None, "--rendezvous-ca": ca is not None}
    if any(given.values()) and not all(given.values()):
        missing = " and ".join(flag for flag, is_given in given.items() if not is_given)
        yield f"{', '.join(flag for flag in given if given[flag])} alone is not enough; give {missing} as well"
    if url and not url.startswith("https://"):
        yield f"--rendezvous-url is {url!r} but must begin with https://"
