"""The control plane's own accounts on a laptop.

Its processes act with the rights that deploy/ gives them in a cluster, and with PAGES if the API server is the laptop's own. Each has a
kubeconfig next to a file with its token, which is renewed in time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import aiohttp
import yaml

from elastic.api import rights
from elastic.kube import connect
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    TOKEN_REVIEWS,
    Object,
    Resource,
)
from elastic.local.identities import rule
from elastic.runtime.files import write_private

log = logging.getLogger(__name__)

CONTROLLER, AUTOSCALER, DASHBOARD, RENDEZVOUS = rights.CONTROLLER, rights.AUTOSCALER, rights.DASHBOARD, "elastic-rendezvous"
ALL = (CONTROLLER, AUTOSCALER, DASHBOARD, RENDEZVOUS)
TOKEN_S = 24 * 3600
RENEWED_EVERY_S = TOKEN_S / 4
RETRY_S = 5.0
MANAGER = "elastic-up"
PAGES = rights.Role(
    f"{AUTOSCALER}-pages",
    (
        rights.Right(
            groups=("",),
            resources=("pods/proxy",),
            verbs=("get",),
            why="elasticPolicy.progress.prometheus: only the API server finds the way to pods.",
        ),
    ),
    True,
    AUTOSCALER,
)


class Accounts:
    def __init__(self, admin_kubeconfig: Path, folder: Path, *, is_guest: bool) -> None:
        """`is_guest`: the API server is that of another cluster."""
        self._admin_kubeconfig = admin_kubeconfig
        self._folder = folder
        self._roles = [
            *rights.roles(),
            *rights.train_job_roles(),
            *rights.autoscaler_roles(),
            *rights.metrics_api_roles(),
            *rights.dashboard_roles(),
        ]
        self._roles += [] if is_guest else [PAGES]

    def kubeconfig(self, account: str) -> Path:
        return self._folder / f"{account}.kubeconfig"

    async def make(self, admin: Kube) -> None:
        """Accounts, roles, tokens and kubeconfigs, as they should be now."""
        await _apply(admin, NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": rights.SYSTEM}})
        await asyncio.gather(*(_apply(admin, resource, item) for resource, item in _objects(self._roles)))
        await self._renew(admin)
        for account in ALL:
            write_private(self.kubeconfig(account), self._config(account).encode())

    async def keep(self) -> None:
        """Renew tokens until cancelled. A token that cannot be renewed now has most of its time left."""
        pause = RENEWED_EVERY_S
        while True:
            await asyncio.sleep(pause)
            try:
                async with connect(self._admin_kubeconfig) as admin:
                    await self._renew(admin)
                pause = RENEWED_EVERY_S
            except (KubeError, aiohttp.ClientError, TimeoutError) as error:
                log.warning("the tokens of the control plane were not renewed: %s", error)
                pause = RETRY_S

    async def _renew(self, admin: Kube) -> None:
        for account in ALL:
            token = await admin.token_of(account, namespace=rights.SYSTEM, lasts_s=TOKEN_S)
            write_private(self._token(account), token.encode())

    def _token(self, account: str) -> Path:
        return self._folder / f"{account}.token"

    def _config(self, account: str) -> str:
        """Return the administrator's kubeconfig with another user."""
        config = yaml.safe_load(self._admin_kubeconfig.read_text())
        context = next(entry["context"] for entry in config["contexts"] if entry["name"] == config["current-context"])
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [self._reached(entry) for entry in config["clusters"] if entry["name"] == context["cluster"]],
                "users": [{"name": account, "user": {"tokenFile": self._token(account).name}}],
                "contexts": [{"name": account, "context": {"cluster": context["cluster"], "user": account, "namespace": rights.SYSTEM}}],
                "current-context": account,
            }
        )

    def _reached(self, entry: Object) -> Object:
        """Return the cluster with absolute file names. The administrator's kubeconfig may have names relative to its own folder."""
        cluster = dict(entry["cluster"])
        if cluster.get("certificate-authority"):
            cluster["certificate-authority"] = str(self._admin_kubeconfig.parent / cluster["certificate-authority"])
        return {"name": entry["name"], "cluster": cluster}


async def _apply(admin: Kube, resource: Resource, item: Object) -> None:
    name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
    await admin.patch(resource, name, item, namespace=namespace, kind=Patch.APPLY, field_manager=MANAGER, force=True)


def _objects(roles: Iterable[rights.Role]) -> Iterator[tuple[Resource, Object]]:
    for account in ALL:
        yield SERVICE_ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": rights.SYSTEM}}
    for role in roles:
        made, binding = rights.as_objects(role)
        yield CLUSTER_ROLES if role.is_everywhere else ROLES, made
        yield CLUSTER_ROLE_BINDINGS if role.is_everywhere else ROLE_BINDINGS, binding
    api: Object = {"apiVersion": f"{rights.RBAC}/v1", "metadata": {"name": RENDEZVOUS}}
    yield CLUSTER_ROLES, api | {"kind": "ClusterRole", "rules": [rule(TOKEN_REVIEWS.group, TOKEN_REVIEWS.plural, "create")]}
    subjects = [{"kind": "ServiceAccount", "name": RENDEZVOUS, "namespace": rights.SYSTEM}]
    reference = {"apiGroup": rights.RBAC, "kind": "ClusterRole", "name": RENDEZVOUS}
    yield CLUSTER_ROLE_BINDINGS, api | {"kind": "ClusterRoleBinding", "roleRef": reference, "subjects": subjects}
