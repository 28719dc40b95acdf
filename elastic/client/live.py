"""Ask a dashboard how far training is right now.

The dashboard hears it from the rendezvous server; the API objects do not hold it. A request to the laptop's dashboard is made in the name
of its user, and one to another dashboard has a token.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from elastic.client.sample import Sample, samples
from elastic.local import dashboard
from elastic.local.files import Layout
from elastic.runtime import signed_cookie

WITHIN_S = 3.0
COOKIE_S = 60
NOT_YET = 503
"""A dashboard that has just started has not seen the cluster."""
MOST_BYTES = 16 << 20
"""Limit for an answer. That for 5,000 jobs has about 4 MB."""
MOST_WORDS = 300
OWN_HOSTS = ("localhost", "127.0.0.1", "::1")
SAFE = "must begin with https://, or name a port of this machine: http://localhost:8080"
"""The rule of `is_safe` in words."""


class NoAnswer(Exception):
    """The dashboard does not say how jobs train; the text says why."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    url: str
    headers: dict[str, str] = field(repr=False)


def of_laptop(layout: Layout) -> Dashboard | None:
    """Return the dashboard of a laptop cluster; None if it does not run, or has not made its key yet."""
    at = dashboard.address(layout)
    cookie = dashboard.cookie(layout, int(time.time()) + COOKIE_S)
    return None if at is None or cookie is None else Dashboard(at, {"Cookie": f"{signed_cookie.name(urlsplit(at).netloc)}={cookie}"})


def is_safe(url: str) -> bool:
    """Return whether a token may go to this URL. In plain text it goes to this machine only."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in OWN_HOSTS)


async def ask(of: Dashboard) -> dict[str, Sample]:
    """Return the samples by the uids of their jobs."""
    import aiohttp

    from elastic.local.dialled import bounded

    timeout = aiohttp.ClientTimeout(total=WITHIN_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=of.headers) as session,
            session.get(f"{of.url.rstrip('/')}/api/jobs", allow_redirects=False) as answer,
        ):
            if answer.status == NOT_YET:
                return {}
            if answer.status != 200:
                raise NoAnswer(f"it answers {answer.status}: {(await answer.content.read(MOST_WORDS)).decode(errors='replace')}")
            return samples(await bounded(answer, most=MOST_BYTES))
    except TimeoutError as error:
        raise NoAnswer("no answer in time") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from error
