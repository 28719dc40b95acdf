"""Check whether an interpreter can load our rendezvous handler. The wrapper runs this with the interpreter that torchrun will use.

It prints `own` if the image has elastic_worker installed with the backend that the job uses, and `ours` if the delivered copy is to be
used. If there is an obstacle, it prints the obstacle and ends with status 1.
Very old interpreters must be able to parse this file, and it never imports torch.
"""

import os
import sys

LEAST_PYTHON = (3, 9)
LEAST_TORCH = (2, 6)


def numbers(version):
    # type: (str) -> tuple[int, ...]
    """Return up to two leading numbers of a version."""
    found = []  # type: list[int]
    for part in version.split(".")[:2]:
        digits = ""
        for letter in part:
            if not letter.isdigit():
                break
            digits += letter
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def verdict():
    # type: () -> tuple[bool, str]
    """Return either (True, "own" or "ours") or (False, the obstacle)."""
    if sys.version_info[:2] < LEAST_PYTHON:
        return False, "Python %d.%d runs torchrun here, and the backend elastic needs at least %d.%d" % (
            sys.version_info[:2] + LEAST_PYTHON
        )
    from importlib import metadata

    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False, "torch is not installed for %s" % sys.executable
    if numbers(torch) < LEAST_TORCH:
        return False, "torch %s is installed, and the backend elastic needs at least %d.%d" % (torch, LEAST_TORCH[0], LEAST_TORCH[1])
    try:
        installed = metadata.distribution("elastic-training")
    except metadata.PackageNotFoundError:
        return True, "ours"
    backends = [entry.name for entry in installed.entry_points if entry.group == "torchrun.handlers"]
    return True, "own" if os.environ.get("PET_RDZV_BACKEND", "elastic") in backends else "ours"


if __name__ == "__main__":
    is_able, text = verdict()
    print(text)
    sys.exit(0 if is_able else 1)
