"""Open a page of the dashboard in Debian's Chromium."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import chromium
import pytest
from chromium import Page
from dashboard_scene import Scene

from elastic.runtime.one_time import OneTimeToken

NEEDS = [
    pytest.mark.integration,
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium; install Debian's package chromium"),
]


JOB = "#/jobs/default/train?kind=PyTorchJob"


@contextlib.asynccontextmanager
async def looked_at(shown: Scene, folder: Path, place: str, **options: Any) -> AsyncIterator[Page]:
    """Log in, open a page, and yield it."""
    async with shown.served(folder, is_logged_in=False, **options) as browser, chromium.opened(folder / "chromium") as page:
        await page.open(f"{str(browser._base_url).rstrip('/')}/login?token={OneTimeToken(folder / 'token').current()}")
        await page.wait("document.querySelector('h1')")
        await page.ask(f"location.hash = '{place}'")
        await page.wait("document.activeElement.tagName === 'H1' && document.getElementById('live').textContent === 'Live'")
        yield page
