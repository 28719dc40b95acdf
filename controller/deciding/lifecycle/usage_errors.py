"""Find the message of a container whose command is invalid, so that every further attempt would fail too.

The agent reports the message in a line of its own. With torch's own c10d, the message is the last line of the log, which argparse wrote.
An agent that cannot reach its store ends with another code. Each message is cut and escaped.
"""

import re

from elastic.membership.bounds import printable
from elastic_training.controller.facts.snapshot import Container
from elastic_training.rendezvous.delivery import REFUSED, USAGE, unmet

ARGPARSE_CODE = 2
_ARGPARSE = re.compile(r"[^\s:][^:]*: error: \S.*")


def by_agent(message: str, job_uid: str) -> str:
    why, words = unmet(message, job_uid)
    return printable(words) if why == USAGE else ""


def of_refused(message: str, job_uid: str) -> str:
    """Return why the rendezvous refused an agent; empty if the agent reports no refusal."""
    why, words = unmet(message, job_uid)
    return printable(words) if why == REFUSED else ""


def by_log(code: int | None, message: str) -> str:
    """Return the usage error in the last line of the log; empty if the log ends otherwise."""
    last = message.rstrip().rpartition("\n")[2].strip()
    return printable(last) if code == ARGPARSE_CODE and _ARGPARSE.fullmatch(last) else ""


def newest_by_log(container: Container) -> str:
    """Return the usage error in the log of the container's newest end; empty if there is no usage error."""
    if container.exit_code is not None:
        return by_log(container.exit_code, container.message)
    return by_log(container.last_exit_code, container.last_message)
