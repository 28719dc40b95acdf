"""Answer questions about a raw pod template, and add the parts that a replica's pod needs. No function changes its arguments."""

from __future__ import annotations

from typing import Any

from elastic.api.job import Object
from elastic.api.kinds import Kind


def containers(template: Object) -> list[Object]:
    found: list[Object] = template["spec"]["containers"]
    return found


def default_container(template: Object, kind: Kind) -> Object:
    """Return the container that trains: the container with the kind's name, or the first if the kind leaves the name open."""
    return containers(template)[default_container_index(template, kind)]


def default_container_index(template: Object, kind: Kind) -> int:
    return next((i for i, c in enumerate(containers(template)) if c.get("name") == kind.container), 0)


def ports(template: Object, kind: Kind) -> dict[str, int]:
    """Return the ports that the service opens: the training container's named ports, and the kind's own port unless the user named it."""
    named = {port["name"]: int(port["containerPort"]) for port in default_container(template, kind).get("ports") or () if port.get("name")}
    return named if kind.port_name in named or not kind.has_services else named | {kind.port_name: kind.port}


def training_port(template: Object, kind: Kind) -> int:
    return ports(template, kind).get(kind.port_name, kind.port)


def with_default_port(template: Object, kind: Kind) -> Object:
    """Return the template whose training container lists the kind's port; the same object if it does already."""
    container = default_container(template, kind)
    listed: list[Any] = list(container.get("ports") or ())
    if not kind.has_services or any(port.get("name") == kind.port_name for port in listed):
        return template
    opened = container | {"ports": [*listed, {"name": kind.port_name, "containerPort": kind.port, "protocol": "TCP"}]}
    index = default_container_index(template, kind)
    changed = [opened if i == index else c for i, c in enumerate(containers(template))]
    return template | {"spec": template["spec"] | {"containers": changed}}


def has_command(template: Object, kind: Kind) -> bool:
    """Without one in the template, the image decides what runs and nothing can be put before it."""
    return bool(default_container(template, kind).get("command"))
