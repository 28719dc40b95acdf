"""Elastic training on Kubernetes and on a laptop. `from elastic import Client` is what programs and notebooks use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic.client.client import Client as Client
    from elastic.client.errors import ElasticError as ElasticError
    from elastic.client.errors import JobFailed as JobFailed
    from elastic.client.errors import TimedOut as TimedOut

_HOMES = dict.fromkeys(("ElasticError", "JobFailed", "TimedOut"), "elastic.client.errors") | {"Client": "elastic.client.client"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that importing elastic stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module 'elastic' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from elastic import extras

        words = extras.lacking(error, user=f"elastic.{name}")
        if words is None:
            raise
        raise ImportError(words) from None
