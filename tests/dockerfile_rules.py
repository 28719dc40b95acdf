"""Check our Dockerfile against the rules that matter. Each complaint gives the rule's reason.

No linter is available without a download.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    word: str
    rest: str
    stage: int


def steps(text: str) -> list[Step]:
    """Return the instructions, with joined lines and without comments. Stage 0 comes before the first FROM."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")).replace("\\\n", " ").splitlines()
    found: list[Step] = []
    for line in filter(str.strip, lines):
        word, _, rest = line.strip().partition(" ")
        stage = sum(step.word == "FROM" for step in found) + (word.upper() == "FROM")
        found.append(Step(word.upper(), rest.strip(), stage))
    return found


def complaints(text: str) -> Iterator[str]:
    found = steps(text)
    last = [step for step in found if step.stage == max(each.stage for each in found)]
    for step in found:
        yield from _of_step(step)
    args = {step.rest.partition("=")[0] for step in found if step.word == "ARG" and step.stage == 0}
    for step in found:
        if step.word == "FROM" and not any(step.rest.startswith(f"${{{name}}}") for name in args):
            yield f"FROM {step.rest}: take the base from an ARG, so that a build can name its digest"
    users = [step.rest for step in last if step.word == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        yield "the last USER must be a number above 0: runAsNonRoot cannot be checked for a name"
    installs = [step for step in found if step.word == "RUN" and "pip install" in step.rest]
    if len(installs) != 1:
        yield f"{len(installs)} layers install with pip; one is enough"
    for step in last:
        if step.word == "RUN":
            yield f"RUN {step.rest}: the last stage only copies, so that no tool of the build is in the image"


def _of_step(step: Step) -> Iterator[str]:
    if step.word == "ADD":
        yield f"ADD {step.rest}: use COPY; ADD fetches from the net and unpacks"
    if step.word == "COPY" and shlex.split(step.rest)[0] in (".", "./"):
        yield "COPY .: name what goes in; a data folder or a key beside the source would go along"
    if step.word == "FROM" and re.search(r":latest\b", step.rest):
        yield f"FROM {step.rest}: latest is another image tomorrow"
    if step.word in ("CMD", "ENTRYPOINT") and not step.rest.startswith("["):
        yield f"{step.word} {step.rest}: write a list; a shell in between swallows SIGTERM"
    if step.word in ("ENV", "ARG") and re.search(r"(?i)(token|password|secret|_key)=", step.rest):
        yield f"{step.word} {step.rest}: a secret in an image is nobody's secret"
    if step.word == "RUN" and "pip install" in step.rest:
        for flag in ("--no-cache-dir", "--constraint"):
            if flag not in shlex.split(step.rest):
                yield f"RUN {step.rest}: {flag} is missing"
    if step.word == "RUN" and re.search(r"\b(curl|wget)\b|\bsudo\b|apt-get (?!.*--no-install-recommends)", step.rest):
        yield f"RUN {step.rest}: nothing is fetched, and nothing installed that was not asked for"
