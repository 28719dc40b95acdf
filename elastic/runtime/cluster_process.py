"""The main of a process that works on a cluster until a signal ends it: the connection, and the exit code with its reason in the log."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic.kube.client import Kube

Errors = tuple[type[Exception], ...]


async def run_on_cluster(
    work: Callable[[Kube, asyncio.Event], Awaitable[None]],
    *,
    name: str,
    log: logging.Logger,
    kubeconfig: Path | None,
    identity: str,
    stopped_by: Errors = (),
    not_started_by: Errors = (),
) -> int:
    """0 after a signal, 1 if the process must end, 2 if it cannot start."""
    from elastic.kube import connect
    from elastic.kube.access import AccessError
    from elastic.runtime.election import LeaseLost
    from elastic.runtime.process import stop_on_signals
    from elastic.runtime.web import PortTaken

    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        kube = connect(kubeconfig, host=host, port=port, agent=f"elastic-{name}/{identity}")
    except AccessError as error:
        log.error("no access to the API server", extra={"error": str(error)})
        return 2
    ends: Errors = (LeaseLost, *stopped_by)
    never_starts: Errors = (PortTaken, *not_started_by)
    stop = stop_on_signals()
    async with kube:
        try:
            await work(kube, stop)
        except ends as error:
            log.error(f"the {name} stops", extra={"error": str(error)})
            return 1
        except never_starts as error:
            log.error(f"the {name} cannot start", extra={"error": str(error)})
            return 2
        log.info("stopped by a signal")
    return 0
