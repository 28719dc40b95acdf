"""Build pods, runs and nodes for the laptop cluster's unit tests from their differences."""

from __future__ import annotations

from typing import Any

from elastic.local.agent.runs import Run, Seen

Object = dict[str, Any]


def container(name: str = "main", **fields: Any) -> Object:
    return {"name": name, "image": "any", "command": ["true"], **fields}


def pod(
    *containers: Object, init: tuple[Object, ...] = (), status: Object | None = None, metadata: Object | None = None, **spec: Any
) -> Object:
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": "uid-p", **(metadata or {})},
        "spec": {"containers": list(containers) or [container()], "initContainers": list(init), "restartPolicy": "Never", **spec},
        "status": status or {"phase": "Pending"},
    }


def run(
    attempt: int = 0, *, started: float = 0.0, finished: float | None = None, code: int = 0, reason: str = "", message: str = ""
) -> Run:
    return Run(f"uid-p/main/{attempt}", attempt, started, finished, code, reason, message)


def seen(**fields: Any) -> Seen:
    runs = {name: tuple(of) if isinstance(of, list | tuple) else (of,) for name, of in fields.pop("runs", {}).items()}
    return Seen(**{"runs": runs, "ip": "10.64.0.2", "host_ip": "127.0.0.1", "started_at": 0.0, **fields})


def node(
    name: str = "n", *, cpu: str = "4", taints: tuple[Object, ...] = (), labels: dict[str, str] | None = None, **offers: str
) -> Object:
    allocatable = {"cpu": cpu, "memory": "8Gi", "pods": "10", **offers}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {"taints": list(taints)}, "status": {"allocatable": allocatable}}


def asking(name: str = "p", *, priority: int = 0, **requests: str) -> Object:
    """Return a pod with these requests. In a resource's name `_` stands for a dot, and `__` for a slash."""
    amounts = {key.replace("__", "/").replace("_", "."): value for key, value in requests.items()}
    return pod(container(resources={"requests": amounts}), metadata={"name": name, "uid": f"uid-{name}"}, priority=priority)
