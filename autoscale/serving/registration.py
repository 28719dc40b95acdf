"""Register us as the server of the two metrics groups, and let API servers trust our CA.

If another server has any version of a group, we leave the whole group to it. Callers choose the version that they prefer, and would miss
the other server's metrics in ours.
"""

from __future__ import annotations

import base64
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

from elastic.api.rights import AUTOSCALER, MANAGED_BY
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import API_SERVICES, Object, Resource
from elastic.runtime.cert_rotation import CertificateName
from elastic_training.autoscale.serving.answers import VERSIONS

log = logging.getLogger(__name__)
GROUP_PRIORITY, VERSION_PRIORITY = 100, 100
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False, kind="ClusterRole")


class Registration:
    """Registers and withdraws our API services. They belong to `owner`, a cluster role of the installation, and are deleted with it."""

    def __init__(self, kube: Kube, place: CertificateName, *, owner: str, port: int = 443) -> None:
        self._kube, self._owner = kube, owner
        self._service: Object = {"name": place.name, "namespace": place.namespace, "port": port}
        self._others: dict[str, str] = {}
        """Servers of group versions other than us."""
        self._refused: dict[str, str] = {}
        """By API service, why it could not be given up."""

    @property
    def others(self) -> dict[str, str]:
        return dict(self._others)

    async def trust(self, trusted: bytes) -> None:
        bundle = base64.b64encode(trusted).decode()
        for group, versions in VERSIONS.items():
            there = {version: await self._kube.find(API_SERVICES, _name(group, version)) for version in versions}
            others = [one for one in there.values() if one is not None and not self._is_ours(one)]
            self._say(group, others)
            for rank, (version, one) in enumerate(there.items()):
                if one is None:
                    if not others:
                        await self._create(group, version, rank, bundle)
                elif one in others:
                    await self._tried(one, self._release(one))
                elif not others or not _is_made_by_us(one) or not await self._tried(one, self._withdraw(one)):
                    # Also what could not be given up: API servers still ask us.
                    await self._update(one, bundle)

    async def _tried(self, there: Object, act: Coroutine[Any, Any, None]) -> bool:
        """Return whether it was not refused.

        A refusal about another server's group must not keep us from serving ours: an older role may lack the right, or a policy may guard
        objects of others.
        """
        name = there["metadata"]["name"]
        try:
            await act
        except KubeError as error:
            if not 400 <= error.code < 500:
                raise
            if self._refused.get(name) != error.message:
                log.warning("an API service could not be given up; trying again", extra={"api_service": name, "error": error.message})
            self._refused[name] = error.message
            return False
        self._refused.pop(name, None)
        return True

    def _is_ours(self, there: Object) -> bool:
        service = there["spec"].get("service") or {}
        return (service.get("name"), service.get("namespace")) == (self._service["name"], self._service["namespace"])

    async def _release(self, there: Object) -> None:
        """Give up ownership of a registration that another server has taken over."""
        metadata, change = there["metadata"], dict[str, object]()
        owners = metadata.get("ownerReferences") or []
        left = [owner for owner in owners if (owner["kind"], owner["name"]) != ("ClusterRole", self._owner)]
        if _is_made_by_us(there):
            change["labels"] = {MANAGED_BY: None}
        if left != owners:
            change["ownerReferences"] = left
        if change:
            version_seen = {"resourceVersion": metadata["resourceVersion"]}
            with _somebody_may_be_first():
                await self._kube.patch(API_SERVICES, metadata["name"], {"metadata": version_seen | change})

    async def _withdraw(self, there: Object) -> None:
        metadata = there["metadata"]
        with _somebody_may_be_first():
            await self._kube.delete(API_SERVICES, metadata["name"], uid=metadata["uid"], resource_version=metadata["resourceVersion"])
            log.info("withdrew the metrics API", extra={"api_service": metadata["name"]})

    async def _update(self, there: Object, bundle: str) -> None:
        spec, metadata = there["spec"], there["metadata"]
        if (
            spec.get("caBundle") == bundle
            and not spec.get("insecureSkipTLSVerify")
            and spec["service"].get("port") == self._service["port"]
        ):
            return
        change = {"caBundle": bundle, "insecureSkipTLSVerify": None, "service": self._service}
        version_seen = {"metadata": {"resourceVersion": metadata["resourceVersion"]}}
        await self._kube.patch(API_SERVICES, metadata["name"], version_seen | {"spec": change})
        log.info("the API server now trusts the CA of the metrics API", extra={"api_service": metadata["name"]})

    async def _create(self, group: str, version: str, rank: int, bundle: str) -> None:
        name = _name(group, version)
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
        with _somebody_may_be_first():
            await self._kube.create(API_SERVICES, body)
            log.info("registered the metrics API", extra={"api_service": name})

    async def _role(self) -> Object | None:
        role = await self._kube.find(CLUSTER_ROLES, self._owner)
        if role is None:
            return None
        return {"apiVersion": CLUSTER_ROLES.api_version, "kind": "ClusterRole", "name": self._owner, "uid": role["metadata"]["uid"]}

    def _say(self, group: str, others: Iterable[Object]) -> None:
        message = "another server has this group: our values are not served there; see prometheus-adapter in docs/autoscaling.md"
        found = {one["metadata"]["name"]: _server(one) for one in others}
        for name, server in found.items():
            if self._others.get(name) != server:
                log.warning(message, extra={"api_service": name, "service": server})
        for version in VERSIONS[group]:
            self._others.pop(_name(group, version), None)
        self._others |= found


@contextlib.contextmanager
def _somebody_may_be_first() -> Iterator[None]:
    """Ignore that the other replica, or another server, was first. The next look sees the result."""
    try:
        yield
    except KubeError as error:
        if error.reason not in ("AlreadyExists", "Conflict", "NotFound"):
            raise


def _name(group: str, version: str) -> str:
    return f"{version}.{group}"


def _server(there: Object) -> str:
    service = there["spec"].get("service")
    return f"{service.get('namespace')}/{service.get('name')}" if service else "the API server itself"


def _is_made_by_us(there: Object) -> bool:
    return bool((there["metadata"].get("labels") or {}).get(MANAGED_BY) == AUTOSCALER)
