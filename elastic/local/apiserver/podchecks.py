"""Whether a pod's specification makes sense, and whether a change of it is one of the few that are allowed."""

from __future__ import annotations

from elastic.local.apiserver.errors import Cause, Json, required


def spec_causes(spec: Json, path: str) -> list[Cause]:
    out: list[Cause] = []
    if not spec.get("containers"):
        out.append(required(f"{path}.containers"))
    return out


def update_causes(new: Json, old: Json) -> list[Cause]:
    return []
