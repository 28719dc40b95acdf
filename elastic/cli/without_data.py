"""Say why some commands have no -o json|yaml, and where a program finds the same facts.

These commands do not show data, but lines of other programs, a question, or a link.
"""

from __future__ import annotations

OPTIONS = ("-o", "--output")
WHY = {
    "run": "it shows what happens as it happens; its exit code is the jobs' end, `--save FILE` writes the job of a SCRIPT as YAML, and "
    "`elastic describe JOB -o json` tells how a job ended",
    "logs": "it prints lines as programs wrote them; `elastic describe JOB -o json` has the pods and their ranks",
    "up": "it says how to go on; `elastic status -o json` says what runs, and where",
    "down": "its exit code is its result; `elastic get -A -o json` before it has the jobs that stop, `elastic status -o json` what runs",
    "dashboard": "what it prints is a link",
    "uninstall": "it shows what it will do, and asks; with --yes each line is something done, and its exit code the result",
    "adopt": "it shows what it will do, and asks; --save names the file, in JSON, that keeps what is replaced",
}


def why(command: str, option: str) -> str | None:
    """Return the message for a user who gives this option to this command, or None if the command is not in the list."""
    words = WHY.get(command) if option in OPTIONS else None
    return None if words is None else f"`{command}` has no {option}: {words}"
