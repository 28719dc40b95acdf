"""The cookie of the laptop's dashboard: its end of validity under an HMAC, so that it outlives the process that checks it.

Only the user may read the key, so a command of the user makes its own cookie. Pure: keys and times are the caller's.
"""

import hashlib
import hmac

NAME = "elastic-dashboard"
KEY = "key"
"""File of the key, in the dashboard's folder."""


def name(host: str) -> str:
    """Return the name of the cookie for a host. Browsers send the cookies of all ports of a host to each port, so each has its own name."""
    port = host.rpartition(":")[2]
    return f"{NAME}-{port}" if port.isdigit() else NAME


def made(key: bytes, until: int) -> str:
    return f"{until}.{mark(key, str(until))}"


def is_good(key: bytes, cookie: str, now: float) -> bool:
    until, _, shown = cookie.partition(".")
    if not (until.isascii() and until.isdigit() and len(until) < 16):
        return False
    return hmac.compare_digest(shown.encode(errors="surrogateescape"), mark(key, until).encode()) and int(until) > now


def mark(key: bytes, until: str) -> str:
    return hmac.new(key, until.encode(), hashlib.sha256).hexdigest()
