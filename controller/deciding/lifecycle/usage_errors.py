"""What a container says of a command that is wrong each time again.

In the line of its agent, or, at torch's own c10d, in the end of its log, which argparse's words close. An agent whose store is away ends
with another code. What is said is cut and escaped.
"""

import re

from controller.watching.snapshot import Container
from elastic.membership.bounds import printable
from rendezvous.delivery import REFUSED, USAGE, unmet

ARGPARSE_CODE = 2
_ARGPARSE = re.compile(r"[^\s:][^:]*: error: \S.*")


def by_agent(message: str, job_uid: str) -> str:
    why, words = unmet(message, job_uid)
    return printable(words) if why == USAGE else ""


def of_refused(message: str, job_uid: str) -> str:
    """What the rendezvous told an agent that it refuses, as far as the agent says so."""
    why, words = unmet(message, job_uid)
    return printable(words) if why == REFUSED else ""


def by_log(code: int | None, message: str) -> str:
    """Where the message is the end of the log."""
    last = message.rstrip().rpartition("\n")[2].strip()
    return printable(last) if code == ARGPARSE_CODE and _ARGPARSE.fullmatch(last) else ""


def newest_by_log(container: Container) -> str:
    """Of its newest end."""
    if container.exit_code is not None:
        return by_log(container.exit_code, container.message)
    return by_log(container.last_exit_code, container.last_message)
