"""Check rules that a pod's schema cannot express, although the API server refuses the pod once the controller makes it.

Examples are missing volumes and invalid labels. All are warnings: the job itself is well-formed, and admission may change its pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from elastic.api.errors import Path, shown
from elastic.api.names import is_reserved
from elastic.api.reader import Findings, shown_key

_NAME = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)\Z")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")


def check_pod(template: dict[str, Any], *, at: Path, findings: Findings) -> None:
    """Check a well-formed template."""
    _check_labels((template.get("metadata") or {}).get("labels") or {}, at=(*at, "metadata", "labels"), findings=findings)
    spec = template.get("spec") or {}
    volumes = {volume["name"] for volume in spec.get("volumes") or ()}
    for where, container in _containers(spec):
        _check_mounts(container, volumes, at=(*at, "spec", *where), findings=findings)
        for i, variable in enumerate(container.get("env") or ()):
            if variable.get("value") and variable.get("valueFrom"):
                message = f"{shown_key(variable['name'])} has value and valueFrom; keep one, no pod can be made with both"
                findings.warning((*at, "spec", *where, "env", i), message)


def _containers(spec: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for key in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(key) or ()):
            yield (key, i), container


def _check_mounts(container: dict[str, Any], volumes: set[str], *, at: Path, findings: Findings) -> None:
    for i, mount in enumerate(container.get("volumeMounts") or ()):
        if mount["name"] not in volumes:
            message = f"there is no volume {shown(mount['name'])}; name one of the template, or no pod can be made"
            findings.warning((*at, "volumeMounts", i, "name"), message)


def _check_labels(labels: dict[str, str | None], *, at: Path, findings: Findings) -> None:
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        if not _NAME.match(name) or (slash and not _PREFIX.match(prefix)):
            findings.warning(at, f"{shown(key)} cannot be the key of a label; use letters, digits, -, _ and . and at most 63 of them")
        elif is_reserved(key):
            findings.warning((*at, key), f"{shown_key(key)} is the controller's own label and is not taken from here; use another key")
        elif value and not _NAME.match(value):
            findings.warning(
                (*at, key), f"{shown_key(key)} is {shown(value)}; a label's value has letters, digits, -, _ and . and at most 63 of them"
            )
