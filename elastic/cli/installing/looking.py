"""Read the facts that decide whether a cluster can take the control plane. An object that the caller may not read counts as absent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elastic.api.kinds import KINDS
from elastic.api.rights import CONTROLLER
from elastic.cli.adopting.plan import OPERATOR_LABEL, WEBHOOK_SUFFIX
from elastic.cli.installing import manifests
from elastic.cli.installing.components import NAMESPACED, STANDALONE
from elastic.cli.installing.obstacles import OUR_LABEL, Seen
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.following import resource_of
from elastic.kube.readable import listed
from elastic.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, DEPLOYMENTS, VALIDATING_WEBHOOK_CONFIGURATIONS, Object, Resource

OUR_KINDS = tuple(kind.crd_name for kind in KINDS.values())


async def seen(kube: Kube, overlay: str, namespace: str, *, groups: Sequence[tuple[str, str, str]], has_mpi: bool) -> Seen:
    """Read the facts. `groups` are the API groups that the values need."""
    everywhere = None if overlay == STANDALONE else namespace
    webhooks = await listed(kube, VALIDATING_WEBHOOK_CONFIGURATIONS)
    return Seen(
        kubernetes=str((await kube.request("GET", "/version")).get("gitVersion", "")),
        controllers=await _controllers(kube, namespace),
        operators=await listed(kube, DEPLOYMENTS, namespace=everywhere, labels=OPERATOR_LABEL),
        webhooks=[one for one in webhooks if one["metadata"]["name"].endswith(WEBHOOK_SUFFIX)],
        definitions=await definitions(kube),
        missing_groups=frozenset([group for group, *_ in groups if not await _is_served(kube, group)]),
        missing_kinds=await _missing_kinds(kube, namespace, has_mpi=has_mpi) if overlay == NAMESPACED else (),
    )


async def _controllers(kube: Kube, namespace: str) -> list[Object]:
    """Return the controllers of all namespaces, because one for the whole cluster acts on all jobs. Without that right, return our own."""
    return await listed(kube, DEPLOYMENTS, labels=OUR_LABEL) or await listed(kube, DEPLOYMENTS, namespace=namespace, labels=OUR_LABEL)


async def definitions(kube: Kube, names: Iterable[str] = OUR_KINDS) -> list[Object]:
    """Return the definitions of these names that exist. They are read one by one, because a cluster may have many and large ones."""
    found = [await read(kube, CUSTOM_RESOURCE_DEFINITIONS, name) for name in names]
    return [one for one in found if one is not None]


async def read(kube: Kube, resource: Resource, name: str, *, namespace: str | None = None) -> Object | None:
    try:
        return await kube.get(resource, name, namespace=namespace)
    except KubeError as error:
        if error.code in (403, 404):
            return None
        raise


async def there(kube: Kube, item: Object) -> Object | None:
    """Return the object as the cluster has it."""
    return await read(kube, manifests.resource(item), item["metadata"]["name"], namespace=item["metadata"].get("namespace"))


async def controller(kube: Kube, namespace: str) -> Object | None:
    return await read(kube, DEPLOYMENTS, CONTROLLER, namespace=namespace)


async def _is_served(kube: Kube, group: str) -> bool:
    try:
        await kube.request("GET", f"/apis/{group}/v1")
    except KubeError as error:
        if error.code == 404:
            return False
        raise
    return True


async def unserved_kinds(kube: Kube, namespace: str) -> list[str]:
    """Return the kinds of ours that the API server does not know."""
    missing = []
    for kind in KINDS.values():
        try:
            await kube.list(resource_of(kind), namespace=namespace)
        except KubeError as error:
            if error.code == 404:
                missing.append(kind.name)
            elif error.code != 403:
                raise
    return missing


async def _missing_kinds(kube: Kube, namespace: str, *, has_mpi: bool) -> tuple[str, ...]:
    left_out = () if has_mpi else ("MPIJob",)
    return tuple(name for name in await unserved_kinds(kube, namespace) if name not in left_out)
