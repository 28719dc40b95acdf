"""The cookie of the laptop's dashboard: until when it is good, under an HMAC, so that it outlives the process that checks it.

Who may read the key is the user themself, so a command of theirs makes its own cookie. Pure: keys and times are the caller's.
"""

import hashlib
import hmac

NAME = "elastic-dashboard"
KEY = "key"
"""File of the key, in the dashboard's folder."""


def name(host: str) -> str:
    """Of the cookie for a host. A browser sends the cookies of all ports of a host to each of them, so a port has a name of its own."""
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
