"""How the processes of the control plane log: one JSON object a line, with a constant message and the fields of what happened."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TextIO


class Line(logging.Formatter):
    """Formats time, level, logger, message, and the fields of `extra`."""

    _own = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "taskName", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        line = {"at": self.formatTime(record), "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        line |= {name: value for name, value in record.__dict__.items() if name not in self._own}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"


SERVERS, LOOPS = logging.getLogger("aiohttp.server"), logging.getLogger("asyncio")
PLAIN = "%(asctime)s %(name)s %(levelname)s %(message)s"


def quotes_no_request(record: logging.LogRecord) -> bool:
    """Return False for records in which aiohttp quotes a request that it cannot read.

    Anybody may send any number of them, and the quote may hold a token or a cookie. The sender hears what is wrong.
    """
    error = record.exc_info[1] if record.exc_info else None
    return all(kind.__module__ != "aiohttp.http_exceptions" for kind in type(error).__mro__)


def tells_no_peer_that_left(record: logging.LogRecord) -> bool:
    """Return False for uvloop's errors about a peer that has gone during a handshake or a message over TLS."""
    error = record.exc_info[1] if record.exc_info else None
    left = isinstance(error, ConnectionError) and record.getMessage().startswith("Future exception was never retrieved")
    return not left and not (isinstance(error, RuntimeError) and str(error).endswith("the handler is closed"))


def log_to(stream: TextIO, *, level: str) -> None:
    _leave_out_peers()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Line())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def log_plainly() -> None:
    """Log like the laptop cluster's own processes, whose files people read."""
    _leave_out_peers()
    logging.basicConfig(level=logging.INFO, format=PLAIN)


def _leave_out_peers() -> None:
    SERVERS.addFilter(quotes_no_request)
    LOOPS.addFilter(tells_no_peer_that_left)
