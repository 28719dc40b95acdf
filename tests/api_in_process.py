"""Run the laptop's API server in the process of a test."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from elastic.local.apiserver.audit import Audit
from elastic.local.apiserver.datadir import DataDir
from elastic.local.apiserver.server import ApiServer


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Path]:
    """Run the server, and yield an administrator's kubeconfig. `audit.jsonl` in this folder has an entry for each request."""
    data = DataDir.open(folder / "data", ())
    server = ApiServer(data, None, Audit(folder / "audit.jsonl"))
    with socket.create_server(("127.0.0.1", 0)) as opened:
        port = opened.getsockname()[1]
        server.load()
        server.publish(port)
        await server.start([opened])
        data.write_kubeconfig(port)
        try:
            yield folder / "data" / "kubeconfig"
        finally:
            await server.stop()
