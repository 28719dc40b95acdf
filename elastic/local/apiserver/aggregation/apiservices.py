"""Define the kind APIService: its checks, and the columns that kubectl shows."""

from __future__ import annotations

from typing import Any

from elastic.local.apiserver import names, tables
from elastic.local.apiserver.errors import Cause, Json, bad, required
from elastic.local.apiserver.resources import Strategy

GROUP, VERSION = "apiregistration.k8s.io", "v1"
STORAGE = f"apiservices.{GROUP}"
MOST_GROUP_PRIORITY, MOST_VERSION_PRIORITY = 20_000, 1_000
CRD_GROUP_PRIORITY, CRD_VERSION_PRIORITY = 1_000, 100


class APIServices(Strategy):
    has_status = True

    def default(self, obj: Json, /) -> None:
        service = (obj.get("spec") or {}).get("service")
        if service is not None:
            service.setdefault("port", 443)

    def validate(self, obj: Json, /) -> list[Cause]:
        spec = obj.get("spec") or {}
        return [*_named(obj["metadata"]["name"], spec), *_priorities(spec), *(_served_elsewhere(spec) or _served_here(spec))]

    def name_causes(self, name: str, path: str) -> list[Cause]:
        return []  # the name follows from group and version

    def columns(self) -> list[Json]:
        return [
            tables.column("Name", format="name"),
            tables.column("Service", description="The reference to the service that hosts this API endpoint."),
            tables.column("Available", description="Whether this service is available."),
            tables.column("Age"),
        ]

    def cells(self, obj: Json, /) -> list[Any]:
        service = obj["spec"].get("service")
        where = f"{service['namespace']}/{service['name']}" if service else "Local"
        return [obj["metadata"]["name"], where, _shown(available(obj)), tables.age(obj["metadata"].get("creationTimestamp"))]


def available(obj: Json) -> Json:
    """Return the condition Available, or an empty one if the API service was not checked yet."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == "Available"), {})


def _shown(condition: Json) -> str:
    status = str(condition.get("status", "Unknown"))
    return status if status == "True" or not condition.get("reason") else f"{status} ({condition['reason']})"


def _named(name: str, spec: Json) -> list[Cause]:
    group, version = spec.get("group") or "", spec.get("version") or ""
    wanted, found = f"{version}.{group}", []
    if name != wanted:
        found.append(bad("metadata.name", name, f'must be `spec.version+"."+spec.group`: "{wanted}"'))
    if not group and version != "v1":
        found.append(required("spec.group", "only v1 may have an empty group and it better be legacy kube"))
    if group:
        found += names.subdomain_causes(group, "spec.group")
    return found + [bad("spec.version", version, why) for why in names.dns1035_errors(version)]


def _priorities(spec: Json) -> list[Cause]:
    most = {"groupPriorityMinimum": MOST_GROUP_PRIORITY, "versionPriority": MOST_VERSION_PRIORITY}
    given = {field: spec.get(field) or 0 for field in most}
    return [
        bad(f"spec.{field}", value, f"must be positive and less than {most[field]}")
        for field, value in given.items()
        if not 0 < value <= most[field]
    ]


def _served_here(spec: Json) -> list[Cause]:
    if spec.get("service") is not None:
        return []
    found = []
    if spec.get("caBundle"):
        found.append(bad("spec.caBundle", f"{len(spec['caBundle'])} bytes", "local APIServices may not have a caBundle"))
    if spec.get("insecureSkipTLSVerify"):
        found.append(bad("spec.insecureSkipTLSVerify", True, "local APIServices may not have insecureSkipTLSVerify"))
    return found


def _served_elsewhere(spec: Json) -> list[Cause]:
    service = spec.get("service")
    if service is None:
        return []
    found = [required(f"spec.service.{field}") for field in ("namespace", "name") if not service.get(field)]
    if not 0 < service.get("port", 443) < 65536:
        found.append(bad("spec.service.port", service["port"], "port is not valid: must be between 1 and 65535, inclusive"))
    if spec.get("insecureSkipTLSVerify") and spec.get("caBundle"):
        found.append(bad("spec.insecureSkipTLSVerify", True, "may not be true if caBundle is present"))
    return found
