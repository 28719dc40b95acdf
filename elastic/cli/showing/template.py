"""Check whether a pod runs exactly what its Deployment's template describes.

Users who may create pods in a namespace may give them any label, owner and account there, and mount its Secrets. None of these proves that
a pod is genuine. A pod with the template's containers runs the template's program. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic.kube.resources import Object

PLACEMENT = frozenset(
    {
        "affinity",
        "enableServiceLinks",
        "imagePullSecrets",
        "nodeName",
        "nodeSelector",
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "resources",
        "schedulerName",
        "schedulingGates",
        "securityContext",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
    }
)
"""Fields of a pod that the scheduler and admission fill in. They say where and with which limits it runs, but not which program it runs."""
LIMITS = frozenset({"imagePullPolicy", "resources", "securityContext", "terminationMessagePath", "terminationMessagePolicy"})
"""Fields of a container that do not change its program."""
MOUNTS = "volumeMounts"
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
API_ACCESS = "/var/run/secrets/kubernetes.io/serviceaccount"
API_ACCESS_SOURCES = frozenset({"serviceAccountToken", "configMap", "downwardAPI"})
API_CA: Mapping[str, Any] = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
"""The config map that the controller manager keeps in each namespace."""
OPENSHIFT_CA = "service-ca.crt"
"""OpenShift adds this file, which the API server's clients do not read."""


def difference(pod: Object, deployment: Object) -> str:
    """Return the first difference between the pod and the template, or an empty text if the pod runs the template."""
    ours, wanted = pod.get("spec") or {}, ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    if not wanted.get("containers"):
        return f"Deployment {deployment['metadata']['name']} has no containers"
    compared = (set(ours) | set(wanted)) - PLACEMENT - {*CONTAINERS, "volumes"}
    for name in sorted(compared):
        if (ours.get(name) or None) != (wanted.get(name) or None):
            return f"spec.{name} is not the Deployment's"
    return _of_containers(ours, wanted) or _of_mounts(ours, wanted)


def _of_containers(ours: Object, wanted: Object) -> str:
    for kind in CONTAINERS:
        there = {one["name"]: one for one in ours.get(kind) or ()}
        expected = {one["name"]: one for one in wanted.get(kind) or ()}
        if alone := sorted(set(there) ^ set(expected)):
            return f"only one of pod and Deployment has {alone[0]!r} in spec.{kind}"
        for name, container in there.items():
            if field := _unlike(container, expected[name]):
                return f"{field} of container {name!r} is not the Deployment's"
    return ""


def _unlike(container: Object, expected: Object) -> str:
    """Return the first field that differs."""
    for field in sorted((set(container) | set(expected)) - LIMITS - {MOUNTS}):
        if (container.get(field) or None) != (expected.get(field) or None):
            return field
    return ""


def _of_mounts(ours: Object, wanted: Object) -> str:
    """Compare volumes and mounts. Admission adds one mount to each container: the account's token."""
    there, expected = ({one["name"]: one for one in spec.get("volumes") or ()} for spec in (ours, wanted))
    for name, volume in expected.items():
        if there.get(name) != volume:
            return f"volume {name!r} is not the Deployment's"
    for kind in CONTAINERS:
        templates = {one["name"]: one.get(MOUNTS) or [] for one in wanted.get(kind) or ()}
        for container in ours.get(kind) or ():
            mounts, known = container.get(MOUNTS) or [], templates[container["name"]]
            added = [mount for mount in mounts if mount not in known]
            if len(mounts) - len(added) != len(known) or not all(_is_api_access(mount, there) for mount in added):
                return f"{MOUNTS} of container {container['name']!r} are not the Deployment's"
    return ""


def _is_api_access(mount: Object, volumes: Mapping[str, Object]) -> bool:
    """Return whether admission made the mount: it holds a token of the pod's account, and the cluster's CA."""
    sources = ((volumes.get(mount["name"]) or {}).get("projected") or {}).get("sources") or ()
    maps = [source["configMap"] for source in sources if "configMap" in source]
    files = [item.get("path") for found in maps if found != API_CA for item in found.get("items") or [dict[str, Any]()]]
    return (
        mount.get("mountPath") == API_ACCESS
        and {kind for source in sources for kind in source} == API_ACCESS_SOURCES
        and API_CA in maps
        and set(files) <= {OPENSHIFT_CA}
    )
