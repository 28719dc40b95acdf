"""Write the objects that every cluster's API server has about its own groups.

These are an API service `Local` for each group version, so that all are listed in one place, and a config map by which other servers know
this one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from elastic.local.apiserver.aggregation.apiservices import CRD_GROUP_PRIORITY, CRD_VERSION_PRIORITY, STORAGE
from elastic.local.apiserver.aggregation.asking import ALLOWED_NAME, EXTRA, GROUP_HEADER, UID, USER
from elastic.local.apiserver.errors import Json
from elastic.local.apiserver.objects import now_text
from elastic.local.apiserver.store import Store

MANAGED = "kube-aggregator.kubernetes.io/automanaged"
ON_START, ALWAYS = "onstart", "true"
AUTHENTICATION = "extension-apiserver-authentication"
READER = f"{AUTHENTICATION}-reader"
_PRIORITIES = {
    "": 18000, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700, "authorization.k8s.io": 17600, "autoscaling": 17500,
    "batch": 17400, "networking.k8s.io": 17200, "policy": 17150, "rbac.authorization.k8s.io": 17100, "admissionregistration.k8s.io": 16700,
    "apiextensions.k8s.io": 16700, "scheduling.k8s.io": 16600, "coordination.k8s.io": 16500, "discovery.k8s.io": 16200,
}  # fmt: skip
Ensure = Callable[..., None]
"""Makes an object unless it exists. The arguments are resource, namespace, name, labels and the rest."""


class Registered:
    def __init__(self, store: Store, ensure: Ensure) -> None:
        self._store, self._ensure = store, ensure

    def own(self, served: Iterable[tuple[str, str]]) -> None:
        """Register the built-in group versions. apiregistration.k8s.io is not registered itself."""
        for group, version in served:
            if group in _PRIORITIES:
                version_priority = 30 if (group, version) == ("autoscaling", "v2") else 15 if group else 1
                self._local(group, version, (_PRIORITIES[group], version_priority), ON_START)

    def custom(self, group: str, versions: Iterable[str]) -> None:
        """Register the served versions of a custom resource's group, and remove versions that are not served any more."""
        wanted = set(versions)
        for version in wanted:
            self._local(group, version, (CRD_GROUP_PRIORITY, CRD_VERSION_PRIORITY), ALWAYS)
        for entry in self._store.entries(STORAGE):
            obj = entry.load()
            if entry.labels.get(MANAGED) == ALWAYS and obj["spec"].get("group") == group and obj["spec"]["version"] not in wanted:
                self._store.remove(STORAGE, "", entry.name, obj=obj, expected=entry)

    def _local(self, group: str, version: str, priorities: tuple[int, int], managed: str) -> None:
        spec: Json = {"group": group} if group else {}
        spec |= {"version": version, "groupPriorityMinimum": priorities[0], "versionPriority": priorities[1]}
        condition = {
            "type": "Available",
            "status": "True",
            "lastTransitionTime": now_text(),
            "reason": "Local",
            "message": "Local APIServices are always available",
        }
        status = {"conditions": [condition]}
        self._ensure(STORAGE, "", f"{version}.{group}", labels={MANAGED: managed}, spec=spec, status=status)

    def authentication(self, front_proxy_ca: str) -> None:
        """Write the config map that other servers need to trust our headers about the user, and the role for reading it."""
        data = {
            "requestheader-allowed-names": json.dumps([ALLOWED_NAME]),
            "requestheader-client-ca-file": front_proxy_ca,
            "requestheader-extra-headers-prefix": json.dumps([EXTRA]),
            "requestheader-group-headers": json.dumps([GROUP_HEADER]),
            "requestheader-uid-headers": json.dumps([UID]),
            "requestheader-username-headers": json.dumps([USER]),
        }
        self._ensure("configmaps", "kube-system", AUTHENTICATION, data=data)
        rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [AUTHENTICATION], "verbs": ["get", "list", "watch"]}
        self._ensure("roles.rbac.authorization.k8s.io", "kube-system", READER, rules=[rule])
