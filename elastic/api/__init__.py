"""Define jobs: their kinds, the typed job, reading it from an object, and the names of its objects. Pure; nothing here touches a cluster.

The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic.api.errors import Problem, SpecError, Warning
    from elastic.api.job import ElasticPolicy, Job, JobStatus, ReplicaSpec, RunPolicy
    from elastic.api.kinds import API_VERSION, GROUP, KINDS, VERSION, Kind
    from elastic.api.parser import kind_of, parse, status_of

_HOMES = {
    "elastic.api.errors": ("Problem", "SpecError", "Warning"),
    "elastic.api.job": ("ElasticPolicy", "Job", "JobStatus", "ReplicaSpec", "RunPolicy"),
    "elastic.api.kinds": ("API_VERSION", "GROUP", "KINDS", "VERSION", "Kind"),
    "elastic.api.parser": ("kind_of", "parse", "status_of"),
}

__all__ = [
    "API_VERSION",
    "GROUP",
    "KINDS",
    "VERSION",
    "ElasticPolicy",
    "Job",
    "JobStatus",
    "Kind",
    "Problem",
    "ReplicaSpec",
    "RunPolicy",
    "SpecError",
    "Warning",
    "kind_of",
    "parse",
    "status_of",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
