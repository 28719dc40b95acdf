"""Give scheduler, controllers and node agents their identities at the API server.

Each has a service account with the rights of its counterpart in a cluster, so that forbidden actions fail here as they would there. The
tokens are short-lived and renewed in time.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from elastic.kube.access import Access
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, SERVICE_ACCOUNTS, Resource

log = logging.getLogger(__name__)

NAMESPACE = "kube-system"
TOKEN_S = 3600
RETRY_S = 5.0
READ = ("get", "list", "watch")
Rule = dict[str, list[str]]


def rule(group: str, resources: str, *verbs: str) -> Rule:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": list(verbs)}


@dataclass(frozen=True, slots=True)
class Role:
    """The name of an account, its role and its binding, and its rights."""

    name: str
    rules: tuple[Rule, ...]


EVENTS = rule("", "events", "create", "patch")
SCHEDULER = Role(
    "elastic-scheduler",
    (
        rule("", "nodes", *READ),
        rule("", "pods", *READ, "delete"),
        rule("policy", "poddisruptionbudgets", *READ),
        rule("", "pods/binding", "create"),
        rule("", "pods/status", "patch"),
        EVENTS,
    ),
)
# Garbage collection and the deletion of namespaces reach every kind, including kinds that are defined later.
CONTROLLERS = Role("elastic-controllers", (rule("*", "*", "*"),))
NODE_AGENT = Role(
    "elastic-node-agent",
    (
        rule("", "nodes", *READ, "create", "patch", "delete"),
        rule("", "nodes/status pods/status", "patch"),
        rule("", "pods", *READ, "delete"),
        rule("", "services configmaps secrets", *READ),
        rule("", "serviceaccounts/token", "create"),
        rule("coordination.k8s.io", "leases", "get", "create", "patch"),
        EVENTS,
    ),
)


class _Token:
    """The token of an account. Its client reads it for each request."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self) -> str:
        return self.text


@contextlib.asynccontextmanager
async def acting_as(admin: Kube, role: Role) -> AsyncIterator[Kube]:
    """Yield a client with the rights of a role, for the length of the block."""
    await _ensure(admin, role)
    token = _Token()
    token.text = await _issue(admin, role)
    renewing = asyncio.create_task(_keep_fresh(admin, role, token))
    access = admin.access
    try:
        async with Kube(Access(access.server, access.tls, token, access.namespace)) as client:
            yield client
    finally:
        renewing.cancel()


async def _ensure(admin: Kube, role: Role) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": role.name}}
    await _create(admin, SERVICE_ACCOUNTS, account, namespace=NAMESPACE)
    rules: dict[str, Any] = {
        "apiVersion": CLUSTER_ROLES.api_version,
        "kind": "ClusterRole",
        "metadata": {"name": role.name},
        "rules": list(role.rules),
    }
    if not await _create(admin, CLUSTER_ROLES, rules):
        # An earlier release may have needed other rights.
        await admin.patch(CLUSTER_ROLES, role.name, {"rules": list(role.rules)}, kind=Patch.MERGE)
    binding = {
        "apiVersion": CLUSTER_ROLE_BINDINGS.api_version,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role.name},
        "roleRef": {"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": role.name},
        "subjects": [{"kind": "ServiceAccount", "name": role.name, "namespace": NAMESPACE}],
    }
    await _create(admin, CLUSTER_ROLE_BINDINGS, binding)


async def _create(admin: Kube, resource: Resource, body: dict[str, Any], *, namespace: str | None = None) -> bool:
    """Create an object. Return False if it existed before."""
    try:
        await admin.create(resource, body, namespace=namespace)
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise
        return False
    return True


async def _issue(admin: Kube, role: Role) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": TOKEN_S}}
    answer = await admin.create(SERVICE_ACCOUNTS, body, namespace=NAMESPACE, name=role.name, subresource="token")
    return str(answer["status"]["token"])


async def _keep_fresh(admin: Kube, role: Role, token: _Token) -> None:
    pause: float = TOKEN_S / 2
    while True:
        await asyncio.sleep(pause)
        try:
            token.text = await _issue(admin, role)
            pause = TOKEN_S / 2
        except (KubeError, aiohttp.ClientError, TimeoutError) as error:
            log.warning("the token of %s was not renewed: %s", role.name, error)
            pause = RETRY_S
