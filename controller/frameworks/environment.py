"""Append variables to containers in upstream's order. If the user set a variable too, it is there twice, and the later one wins."""

from collections.abc import Iterable
from typing import Any

from elastic.api.job import Object

Variable = dict[str, Any]


def variable(name: str, value: object) -> Variable:
    return {"name": name, "value": str(value)}


def with_environment(pod: Object, variables: Iterable[Variable], *, only: str | None = None) -> Object:
    """Add the variables to every container, or to the container `only`. Init containers get none."""
    added = list(variables)
    for container in pod["spec"]["containers"]:
        if only is None or container.get("name") == only:
            container["env"] = [*(container.get("env") or ()), *(dict(v) for v in added)]
    return pod


def with_missing(pod: Object, variables: Iterable[Variable], *, only: str) -> Object:
    """Add to the container `only` the variables that it lacks: the user's values stand."""
    for container in pod["spec"]["containers"]:
        if container.get("name") == only:
            own = {entry.get("name") for entry in container.get("env") or ()}
            container["env"] = [*(container.get("env") or ()), *(v for v in variables if v["name"] not in own)]
    return pod
