"""Name the version of the messages on the rendezvous wire.

Every HTTP request and response names it in one header, and so do the two sides of a WebSocket when it opens. It holds for all messages of
that exchange. A minor version only adds fields with defaults and forms of messages; a side sends these only to a peer that named it. A side
refuses a major version that it does not know, in words. `elastic_worker.settings` holds the same facts for agents.

1.2: a controller gets the changes of worlds (world_changes). A member says whether its processes live, which step they hold, and whether
they can enter another world (Ready, Join).
1.3: members say what their workers do (doing).
1.4: members say how long their workers need for their steps (pace).
1.5: members say which workers fail to save (saves), and that a worker has left its training loop early (Unable). A controller hears of
failing saves, of silent members, and of workers that ended with status 0 while others failed.
"""

import re

HEADER = "Elastic-Protocol"
MAJOR = 1
VERSION = f"{MAJOR}.5"
BEFORE = "1.0"
"""The version of peers that name no version: releases before the header."""
GIVES_SIGNS = "Elastic-Gives-Signs"
"""Header of the stream of worlds of a controller that says itself that it leads (`PUT /v1/leader/TERM`). An older server ignores it."""
UPGRADE_REQUIRED = 426
"""The HTTP status of a refusal."""
CHANGES_SINCE = 2
"""The minor version from which controllers take changes of worlds (elastic.membership.world_changes)."""
_FORM = re.compile(r"([1-9][0-9]{0,3})\.([0-9]{1,4})", re.ASCII)


class UnknownVersion(Exception):
    """The other side's messages are of a version that this side does not know; its text says which."""


def takes_changes(named: str | None) -> bool:
    """Return whether a peer that names this version sends and reads changes of worlds instead of whole worlds."""
    read = _FORM.fullmatch(named if named is not None else BEFORE)
    return read is not None and int(read.group(1)) == MAJOR and int(read.group(2)) >= CHANGES_SINCE


def obstacle(named: str | None, *, peer: str, here: str) -> str:
    """Return why messages of this version cannot be read here; empty if they can. `peer` and `here` name the two sides."""
    read = _FORM.fullmatch(named if named is not None else BEFORE)
    if read is None:
        return f"{peer} names its messages' version in the header {HEADER}, but not as MAJOR.MINOR"
    if int(read.group(1)) == MAJOR:
        return ""
    return (
        f"{peer} speaks version {named} of the messages, and {here} knows versions {MAJOR}.x only (its own is {VERSION}); "
        "run releases of the control plane and of the worker library that are next to each other"
    )
