"""Compare an account's actions in the audit log of the laptop's API server with the rights that elastic.api.rights grants it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from elastic.api.rights import CONTROLLER, SYSTEM, Role

Use = tuple[str, str, str]
"""A verb, a group, and a resource with its subresource."""
ACCOUNT = f"system:serviceaccount:{SYSTEM}:{CONTROLLER}"


def granted(found: Iterable[Role]) -> set[Use]:
    return {
        (verb, group, resource)
        for role in found
        for right in role.rights
        for verb in right.verbs
        for group in right.groups
        for resource in right.resources
    }


def used(audit: Path, *, account: str = ACCOUNT, allowed: bool = True) -> set[Use]:
    lines = map(json.loads, audit.read_text().splitlines())
    return {
        (line["verb"], line["group"], "/".join(filter(None, (line["resource"], line["subresource"]))))
        for line in lines
        if line["user"] == account and line["allowed"] == allowed
    }
