"""Registers us as the server of the two metrics groups, and has API servers trust our CA. A group that another server has is left to it."""

from __future__ import annotations

import base64
import logging

from autoscale.serving.answers import VERSIONS
from elastic.api.rights import AUTOSCALER, MANAGED_BY
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import API_SERVICES, Object, Resource
from elastic.runtime.cert_rotation import Place

log = logging.getLogger(__name__)
GROUP_PRIORITY, VERSION_PRIORITY = 100, 100
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False, kind="ClusterRole")


class Registration:
    """`owner` is a cluster role of the installation: what is registered goes with it."""

    def __init__(self, kube: Kube, place: Place, *, owner: str, port: int = 443) -> None:
        self._kube, self._owner = kube, owner
        self._service: Object = {"name": place.name, "namespace": place.namespace, "port": port}
        self._others: dict[str, str] = {}
        """Who serves a group version, where it is not us."""

    @property
    def others(self) -> dict[str, str]:
        return dict(self._others)

    async def trust(self, trusted: bytes) -> None:
        bundle = base64.b64encode(trusted).decode()
        for group, versions in VERSIONS.items():
            for rank, version in enumerate(versions):
                await self._register(group, version, rank, bundle)

    async def _register(self, group: str, version: str, rank: int, bundle: str) -> None:
        name = f"{version}.{group}"
        there = await self._kube.find(API_SERVICES, name)
        if there is None:
            await self._create(name, group, version, rank, bundle)
            return
        spec = there["spec"]
        service = spec.get("service") or {}
        if (service.get("name"), service.get("namespace")) != (self._service["name"], self._service["namespace"]):
            self._left(name, f"{service.get('namespace')}/{service.get('name')}" if service else "the API server itself")
            return
        self._others.pop(name, None)
        if spec.get("caBundle") != bundle or spec.get("insecureSkipTLSVerify") or service.get("port") != self._service["port"]:
            change = {"caBundle": bundle, "insecureSkipTLSVerify": None, "service": self._service}
            version_seen = {"metadata": {"resourceVersion": there["metadata"]["resourceVersion"]}}
            await self._kube.patch(API_SERVICES, name, version_seen | {"spec": change})
            log.info("the API server now trusts the CA of the metrics API", extra={"api_service": name})

    async def _create(self, name: str, group: str, version: str, rank: int, bundle: str) -> None:
        spec = {
            "group": group,
            "version": version,
            "groupPriorityMinimum": GROUP_PRIORITY,
            "versionPriority": VERSION_PRIORITY - rank,
            "service": self._service,
            "caBundle": bundle,
        }
        metadata: Object = {"name": name, "labels": {MANAGED_BY: AUTOSCALER}}
        owner = await self._role()
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        body = {"apiVersion": API_SERVICES.api_version, "kind": "APIService", "metadata": metadata, "spec": spec}
        try:
            await self._kube.create(API_SERVICES, body)
        except KubeError as error:
            # The other replica was first; the next look sees whose it is.
            if error.reason != "AlreadyExists":
                raise
            return
        log.info("registered the metrics API", extra={"api_service": name})

    async def _role(self) -> Object | None:
        role = await self._kube.find(CLUSTER_ROLES, self._owner)
        if role is None:
            return None
        return {"apiVersion": CLUSTER_ROLES.api_version, "kind": "ClusterRole", "name": self._owner, "uid": role["metadata"]["uid"]}

    def _left(self, name: str, owner: str) -> None:
        if self._others.get(name) != owner:
            message = "another server has this group: our values are not served there; see prometheus-adapter in docs/autoscaling.md"
            log.warning(message, extra={"api_service": name, "service": owner})
        self._others[name] = owner
