"""Custom resource definitions become resource types: names, conditions, storage versions, and what is served for them."""

from __future__ import annotations

from elastic.local.apiserver.custom import Custom
from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.resources import STATUS, Registry, ResourceType, Subresource


def default_definition(obj: Json) -> None:
    """What the server fills into spec."""
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    if names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
    spec.setdefault("conversion", {"strategy": "None"})


def accepted_status(obj: Json, now: str) -> Json:
    """The status of a definition whose names are accepted."""
    spec = obj["spec"]
    stored = list((obj.get("status") or {}).get("storedVersions") or ())
    for v in spec.get("versions") or ():
        if v.get("storage") and v["name"] not in stored:
            stored.append(v["name"])
    conditions = [
        {"type": "NamesAccepted", "status": "True", "lastTransitionTime": now, "reason": "NoConflicts", "message": "no conflicts found"},
        {
            "type": "Established",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]
    return {"conditions": conditions, "acceptedNames": dict(spec["names"]), "storedVersions": stored}


def established(obj: Json) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def types_of(obj: Json) -> list[ResourceType]:
    """The resource types that an established definition serves, newest storage first as the definition lists them."""
    spec = obj["spec"]
    names, group, storage = spec["names"], spec["group"], f"{spec['names']['plural']}.{spec['group']}"
    out = []
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        kind, subs = names["kind"], []
        declared = version.get("subresources") or {}
        if "scale" in declared:
            subs.append(Subresource("scale", "Scale", STATUS, "autoscaling", "v1"))
        if "status" in declared:
            subs.append(Subresource("status", kind, STATUS))
        out.append(
            ResourceType(
                group,
                version["name"],
                names["plural"],
                kind,
                spec["scope"] == "Namespaced",
                Custom(version, plural=names["plural"]),
                names.get("singular", ""),
                tuple(names.get("shortNames") or ()),
                tuple(names.get("categories") or ()),
                subresources=tuple(subs),
                storage=storage,
                custom=True,
                list_kind=names.get("listKind", ""),
            )
        )
    return out


def serve(registry: Registry, obj: Json) -> None:
    spec = obj["spec"]
    registry.replace_custom(spec["group"], spec["names"]["plural"], types_of(obj) if established(obj) else [])


def withdraw(registry: Registry, obj: Json) -> None:
    registry.replace_custom(obj["spec"]["group"], obj["spec"]["names"]["plural"], [])
