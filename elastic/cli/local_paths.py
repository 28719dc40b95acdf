"""Choose the working directory of a job file's programs on the laptop, and the files that they mean.

The working directory is the caller's. A file that does not exist there, but next to the job file, is taken from there. This module is pure,
except that it looks whether files exist.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elastic.api.kinds import Kind
from elastic.client.script_job import is_script

Object = dict[str, Any]


def placed(job: Object, kind: Kind, *, file: Path | None, working_dir: Path) -> tuple[Object, list[str]]:
    """Return the job with a working directory in each container that names none, and the messages for the user."""
    job = copy.deepcopy(job)
    said: list[str] = []
    started = False
    for container in _containers(job, kind):
        if container.get("workingDir"):
            continue
        container["workingDir"] = str(working_dir)
        started = True
        for field in ("command", "args"):
            words = container.get(field)
            if isinstance(words, list) and file is not None:
                container[field] = [_found(word, file.parent.resolve(), working_dir, said) for word in words]
        if missing := _missing_script(container, working_dir):
            said.append(f"{missing} does not exist there{', nor next to the job file' if file is not None else ''}")
    return job, [*([f"working directory {working_dir}"] if started else []), *dict.fromkeys(said)]


def without_command(job: Object, kind: Kind) -> list[str]:
    """Return the replica types whose training containers name no program; on the laptop there is no image that could name one."""
    return [
        type
        for type, container in _typed_containers(job, kind)
        if kind.replica_type(type) not in kind.idle
        and container.get("name") == kind.container
        and not container.get("command")
        and not container.get("args")
    ]


def _found(word: Any, beside: Path, working_dir: Path, said: list[str]) -> Any:
    if not isinstance(word, str) or not word or word.startswith("-") or len(word) > 4096 or "\0" in word or "\n" in word:
        return word
    path = Path(word)
    if path.is_absolute() or not path.suffix or (working_dir / path).exists() or not (beside / path).is_file():
        return word
    said.append(f"{word} taken from {beside}")
    return str(beside / path)


def _missing_script(container: Object, working_dir: Path) -> str:
    """Return the program's relative path if it is a script that does not exist, otherwise an empty text."""
    words = [word for field in ("command", "args") for word in container.get(field) or () if isinstance(word, str)]
    script = next((word for word in words if is_script([word]) and not word.startswith("-") and not re.search(r"\s", word)), "")
    return "" if not script or Path(script).is_absolute() or (working_dir / script).exists() else script


def _containers(job: Object, kind: Kind) -> Iterator[Object]:
    for _, container in _typed_containers(job, kind):
        yield container


def _typed_containers(job: Object, kind: Kind) -> Iterator[tuple[str, Object]]:
    for type, replica in job["spec"][kind.replica_key].items():
        for container in replica["template"]["spec"]["containers"]:
            yield type, container
