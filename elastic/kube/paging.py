"""Read a list page by page, from a server that may never end it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from elastic.kube.answers import TOO_LARGE, items_of, text_of
from elastic.kube.errors import KubeError
from elastic.kube.resources import Object

PAGE = 500
SMALLER = 10
"""Factor by which the number of objects falls if a page is too large."""
MOST_PAGES, MOST_LISTED = 10_000, 512 * 1024 * 1024
"""Limits for one list, in pages and bytes: a server that always names a next page is no API server."""
Ask = Callable[[Mapping[str, str]], Awaitable[tuple[Object, int]]]
"""Asks for the page that these parameters name, and returns it with its length in bytes."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a list, and the version of the collection from which a watch continues."""

    items: list[Object]
    resource_version: str


async def listed(ask: Ask, path: str, *, most: int, server: str) -> Listing:
    """Read all pages of a list, of at most `most` bytes."""
    items: list[Object] = []
    limit, token, read = PAGE, "", 0
    for _ in range(MOST_PAGES):
        try:
            page, size = await ask({"limit": str(limit)} | ({"continue": token} if token else {}))
        except KubeError as error:
            if error.reason != TOO_LARGE or limit == 1:
                raise
            limit = max(1, limit // SMALLER)
            continue
        items += items_of(page, path)
        read += size
        version, more = (text_of(page.get("metadata"), key) for key in ("resourceVersion", "continue"))
        if not more:
            return Listing(items, version)
        if more == token:
            raise _endless(server + path, "a page names itself as the next one")
        if read > most:
            raise _endless(server + path, f"it is longer than {most} bytes")
        token = more
    raise _endless(server + path, f"it has more than {MOST_PAGES} pages")


def _endless(url: str, found: str) -> KubeError:
    return KubeError(code=0, reason=TOO_LARGE, message=f"{url}: the list does not end: {found}; is it an API server?")
