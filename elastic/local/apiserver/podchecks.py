"""Check a pod's specification, and check that a change of it is one of the few allowed changes."""

from __future__ import annotations

import copy
import re
from typing import Any

from elastic.kube import quantity
from elastic.local.apiserver import names, volumechecks
from elastic.local.apiserver.errors import Cause, Json, bad, duplicate, forbidden_field, required, unsupported

RESTART_POLICIES = ("Always", "OnFailure", "Never")
UPDATE_RULE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
    "previously negative)"
)


def spec_causes(spec: Json, path: str) -> list[Cause]:
    out: list[Cause] = []
    volumes = _volume_causes(spec, path, out)
    if not spec.get("containers"):
        out.append(required(f"{path}.containers"))
    seen: set[str] = set()
    for key in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(key) or ()):
            out += _container_causes(container, f"{path}.{key}[{i}]", seen, volumes)
    policy = spec.get("restartPolicy")
    if policy not in RESTART_POLICIES:
        out.append(unsupported(f"{path}.restartPolicy", policy, RESTART_POLICIES))
    if spec.get("dnsPolicy") not in ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"):
        out.append(unsupported(f"{path}.dnsPolicy", spec.get("dnsPolicy"), ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        out.append(bad(f"{path}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive"))
    for key in ("hostname", "subdomain"):
        if spec.get(key):
            out += names.label_causes(spec[key], f"{path}.{key}")
    for i, toleration in enumerate(spec.get("tolerations") or ()):
        out += _toleration_causes(toleration, f"{path}.tolerations[{i}]")
    out += names.label_map_causes(spec.get("nodeSelector") or {}, f"{path}.nodeSelector")
    if spec.get("schedulingGates") and spec.get("nodeName"):
        out.append(forbidden_field(f"{path}.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return out


def _volume_causes(spec: Json, path: str, out: list[Cause]) -> set[str]:
    found: set[str] = set()
    for i, volume in enumerate(spec.get("volumes") or ()):
        name = volume.get("name", "")
        where = f"{path}.volumes[{i}].name"
        if not name:
            out.append(required(where))
        else:
            out += names.label_causes(name, where)
        if name in found:
            out.append(duplicate(where, name))
        found.add(name)
        out += volumechecks.source_causes(volume, f"{path}.volumes[{i}]")
    return found


def _container_causes(c: Json, path: str, seen: set[str], volumes: set[str]) -> list[Cause]:
    out: list[Cause] = []
    name = c.get("name", "")
    if not name:
        out.append(required(f"{path}.name"))
    else:
        out += names.label_causes(name, f"{path}.name")
    if name in seen:
        out.append(duplicate(f"{path}.name", name))
    seen.add(name)
    if not c.get("image"):
        out.append(required(f"{path}.image"))
    for i, port in enumerate(c.get("ports") or ()):
        number = port.get("containerPort", 0)
        if not 1 <= number <= 65535:
            out.append(bad(f"{path}.ports[{i}].containerPort", number, "must be between 1 and 65535, inclusive"))
    for i, env in enumerate(c.get("env") or ()):
        out += _env_causes(env, f"{path}.env[{i}]")
    mounted: set[str] = set()
    for i, mount in enumerate(c.get("volumeMounts") or ()):
        where, target = f"{path}.volumeMounts[{i}]", mount.get("mountPath", "")
        if mount.get("name") not in volumes:
            out.append(Cause(f"{where}.name", "FieldValueNotFound", f'Not found: "{mount.get("name", "")}"'))
        if not target:
            out.append(required(f"{where}.mountPath"))
        elif target in mounted:
            out.append(bad(f"{where}.mountPath", target, "must be unique"))
        mounted.add(target)
        out += volumechecks.mount_causes(mount, where)
    if c.get("imagePullPolicy") not in ("Always", "IfNotPresent", "Never"):
        out.append(unsupported(f"{path}.imagePullPolicy", c.get("imagePullPolicy"), ("Always", "IfNotPresent", "Never")))
    return out + _resource_causes(c.get("resources") or {}, f"{path}.resources")


def _env_causes(env: Json, path: str) -> list[Cause]:
    name = env.get("name", "")
    if not name:
        return [required(f"{path}.name")]
    if "=" in name or not re.fullmatch(r"[ -~]+", name):
        return [
            bad(f"{path}.name", name, "a valid environment variable name must consist only of printable ASCII characters other than '='")
        ]
    if env.get("value") and env.get("valueFrom"):
        return [bad(f"{path}.valueFrom", "", "may not be specified when `value` is not empty")]
    return []


def _resource_causes(resources: Json, path: str) -> list[Cause]:
    out: list[Cause] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, amount in requests.items():
        asked, limit = quantity.parse(amount), quantity.parse(limits[name]) if name in limits else None
        extended = "/" in name and not name.startswith("kubernetes.io/")
        if limit is None:
            if extended:
                out.append(required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
        elif asked > limit:
            out.append(bad(f"{path}.requests", amount, f"must be less than or equal to {name} limit of {limits[name]}"))
        elif extended and asked != limit:
            out.append(bad(f"{path}.requests", amount, f"must be equal to {name} limit of {limits[name]}"))
    for key, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            value = quantity.parse(amount)
            if value < 0:
                out.append(bad(f"{path}.{key}[{name}]", amount, "must be greater than or equal to 0"))
            elif "/" in name and value.denominator != 1:
                out.append(bad(f"{path}.{key}[{name}]", amount, "must be an integer"))
    return out


def _toleration_causes(t: Json, path: str) -> list[Cause]:
    out: list[Cause] = []
    operator = t.get("operator", "")
    if not t.get("key") and operator != "Exists":
        out.append(
            bad(f"{path}.operator", operator, 'operator must be Exists when `key` is empty, which means "match all values and all keys"')
        )
    if operator not in ("", "Equal", "Exists"):
        out.append(unsupported(f"{path}.operator", operator, ("Equal", "Exists")))
    if operator == "Exists" and t.get("value"):
        out.append(bad(f"{path}.operator", t, "value must be empty when `operator` is 'Exists'"))
    if t.get("effect", "") not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        out.append(unsupported(f"{path}.effect", t["effect"], ("NoSchedule", "PreferNoSchedule", "NoExecute")))
    return out


def update_causes(new: Json, old: Json) -> list[Cause]:
    """Check a change: containers may only change their image, tolerations may be added, and gates may be removed."""
    out: list[Cause] = []
    given, wanted = new.get("tolerations") or [], old.get("tolerations") or []
    if any(t not in given for t in wanted):
        out.append(forbidden_field("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"))
    gates = [g for g in new.get("schedulingGates") or () if g not in (old.get("schedulingGates") or ())]
    if gates:
        added = ", ".join(g.get("name", "") for g in gates)
        out.append(forbidden_field("spec.schedulingGates", f"only deletion is allowed, but found new scheduling gate '{added}'"))
    if "activeDeadlineSeconds" in old and new.get("activeDeadlineSeconds") != old["activeDeadlineSeconds"]:
        later = new.get("activeDeadlineSeconds")
        if later is None:
            out.append(bad("spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value"))
        elif later > old["activeDeadlineSeconds"]:
            out.append(bad("spec.activeDeadlineSeconds", later, "must be less than or equal to previous value"))
    for key in ("containers", "initContainers"):
        if len(new.get(key) or ()) != len(old.get(key) or ()):
            out.append(forbidden_field(f"spec.{key}", "pod updates may not add or remove containers"))
    if out:
        return out
    changed = _frozen_changes(new, old)
    return [forbidden_field("spec", f"{UPDATE_RULE}\n{changed}")] if changed else []


def _frozen_changes(new: Json, old: Json) -> str:
    mine = copy.deepcopy(new)
    for key in ("containers", "initContainers"):
        theirs = old.get(key) or []
        for a, b in zip(mine.get(key) or [], theirs, strict=True):
            a["image"] = b["image"]
    if old.get("terminationGracePeriodSeconds", 0) < 0 and mine.get("terminationGracePeriodSeconds") == 1:
        mine["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"]
    if old.get("schedulingGates"):
        return _gated_changes(mine, old)
    return _changes(mine, old, ("activeDeadlineSeconds", "tolerations"))


def _gated_changes(new: Json, old: Json) -> str:
    """Return forbidden changes of a gated pod. Its node selector and affinity may become stricter."""
    for key, value in (old.get("nodeSelector") or {}).items():
        if (new.get("nodeSelector") or {}).get(key) != value:
            return f" nodeSelector.{key}: {value!r} before"
    return _changes(new, old, ("activeDeadlineSeconds", "tolerations", "schedulingGates", "nodeSelector", "affinity"))


def _changes(new: Json, old: Json, free: tuple[str, ...]) -> str:
    def lines(key: str) -> list[Any]:
        return [f"-{key}: {old.get(key)}", f"+{key}: {new.get(key)}"]

    keys = sorted(k for k in {*new, *old} - set(free) if new.get(k) != old.get(k))
    return "\n".join(line for k in keys for line in lines(k))
