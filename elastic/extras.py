"""Say which extra of the package brings a Python package that is missing."""

from __future__ import annotations

import importlib
import sys
from typing import Any

DISTRIBUTION = "elastic-training"
KUBE, LOCAL = "kube", "local"
ALL_OF_KUBE = ("aiohttp", "orjson")
_BRINGS = {
    "prometheus_client": "rendezvous",
    "kopf": "controller",
    "cryptography": "controller",
    "kubernetes": "client",
    "etcd3": "etcd",
    "grpc": "etcd",
    "google": "etcd",
    "torch": "torch",
} | dict.fromkeys(ALL_OF_KUBE, KUBE)


def install(*extras: str) -> str:
    """Return the command that installs these extras."""
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"


def lacking(error: ModuleNotFoundError, *, user: str, extra: str = "") -> str | None:
    """Return the sentence about a package that `user` lacks; None if no extra brings it, so that the error is a bug of ours."""
    name = (error.name or "").partition(".")[0]
    found = extra or _BRINGS.get(name, "")
    if not found or name not in _BRINGS:
        return None
    return f"{user} needs the Python package {name}, which is not installed: {install(found)}"


def _run(module: str, *, program: str, extra: str) -> Any:
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if (words := lacking(error, user=program, extra=extra)) is None:
            raise
        sys.exit(words)
    return main()


def controller() -> Any:
    """Run elastic-controller."""
    return _run("elastic_training.controller.running.main", program="elastic-controller", extra="controller")


def rendezvous() -> Any:
    """Run elastic-rendezvous."""
    return _run("elastic_training.rendezvous.main", program="elastic-rendezvous", extra="rendezvous")


def autoscaler() -> Any:
    """Run elastic-autoscaler."""
    return _run("elastic_training.autoscale.running.main", program="elastic-autoscaler", extra="autoscale")


def dashboard() -> Any:
    """Run elastic-dashboard."""
    return _run("elastic_training.dashboard.running.main", program="elastic-dashboard", extra="dashboard")
