"""Make objects in a cluster, wait until they work, and remove them. Each step prints a line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import click

from elastic.api.crd import crd
from elastic.api.kinds import KINDS
from elastic.api.rights import AUTOSCALER, MANAGED_BY
from elastic.cli.installing import looking, manifests, readiness, shared_secret, trainer
from elastic.cli.installing.manifests import WORKLOADS
from elastic.cli.installing.obstacles import MANAGER
from elastic.cli.installing.progress import Progress
from elastic.cli.printing import plain
from elastic.kube import readable
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import (
    API_SERVICES,
    CLUSTER_TRAINING_RUNTIMES,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    PODS,
    SECRETS,
    Object,
    Resource,
)

LOOK_EVERY_S = 0.5
LONGEST_REFUSAL = 600


async def apply(kube: Kube, item: Object, *, force: bool, dry_run: bool = False) -> None:
    await _apply(kube, manifests.resource(item), item, title=manifests.name(item), force=force, dry_run=dry_run)


async def tried(kube: Kube, item: Object, *, force: bool) -> Object:
    """Return the object as it would be after it was applied."""
    return await _apply(kube, manifests.resource(item), item, title=manifests.name(item), force=force, dry_run=True)


async def define(kube: Kube) -> None:
    """Apply the kinds. Nobody else has a say in their fields, so conflicts are ours to win."""
    for kind in KINDS.values():
        await _apply(kube, CUSTOM_RESOURCE_DEFINITIONS, crd(kind), title=f"definition {kind.crd_name}", force=True)


async def _apply(kube: Kube, resource: Resource, item: Object, *, title: str, force: bool, dry_run: bool = False) -> Object:
    metadata = item["metadata"]
    try:
        return await kube.patch(
            resource,
            metadata["name"],
            item,
            namespace=metadata.get("namespace"),
            kind=Patch.APPLY,
            field_manager=MANAGER,
            force=force,
            dry_run=dry_run,
        )
    except KubeError as error:
        if error.code in (0, 401):
            raise
        advice = "; --force-conflicts takes these fields over" if error.code == 409 else ""
        raise click.ClickException(plain(f"{title}: {error.message[:LONGEST_REFUSAL]}{advice}")) from error


async def ensure_secret(kube: Kube, namespace: str) -> None:
    """Create the key that controller and rendezvous server share. An existing key stays, because running jobs depend on it."""
    if await looking.read(kube, SECRETS, shared_secret.NAME, namespace=namespace) is not None:
        return
    try:
        await kube.create(SECRETS, shared_secret.made(namespace), namespace=namespace)
    except KubeError as error:
        if error.code != 409:
            raise
    else:
        click.echo(f"Secret {namespace}/{shared_secret.NAME} is made, with a new key")


async def until_defined(kube: Kube, timeout_s: float, names: Sequence[str] = looking.OUR_KINDS) -> None:
    async def look() -> str:
        found = await looking.definitions(kube, names)
        return readiness.of_definitions(found) if len(found) == len(names) else f"definitions: {len(found)} of {len(names)} are there"

    await until(look, timeout_s)


async def bring_train_jobs(kube: Kube, items: Sequence[Object], *, force: bool, timeout_s: float) -> None:
    """Apply what TrainJobs need outside of the control plane: definitions first, because runtimes need them."""
    is_defined = False
    for item in items:
        if item["kind"] == CLUSTER_TRAINING_RUNTIMES.kind and not is_defined:
            await until_defined(kube, timeout_s, trainer.DEFINITIONS)
            await until(partial(_runtimes_to_come, kube), timeout_s)
            is_defined = True
        await apply(kube, item, force=force)


async def _runtimes_to_come(kube: Kube) -> str:
    """Wait for an API server that has established the definition and does not serve it yet."""
    try:
        await kube.request("GET", CLUSTER_TRAINING_RUNTIMES.path(), params={"limit": "1"})
    except KubeError as error:
        if error.code != 404:
            raise
        return "the API server to serve runtimes"
    return ""


async def until_ready(kube: Kube, objects: Sequence[Object], timeout_s: float) -> None:
    """Wait until all workloads are ready, and say of each one when it is."""
    workloads = [item for item in objects if item["kind"] in WORKLOADS]
    progress, told = Progress(), set()

    async def look() -> str:
        found = [(item, await looking.there(kube, item)) for item in workloads]
        for item, there in found:
            if there is not None and not readiness.unready(there) and (name := manifests.name(item)) not in told:
                told.add(name)
                progress.end()
                click.echo(plain(f"{name} is ready"))
        absent = "; ".join(f"{manifests.name(item)} to be there" for item, there in found if there is None)
        return absent or readiness.of_workloads([(there, await _pods(kube, there)) for _, there in found if there is not None])

    await until(look, timeout_s, progress)


async def _pods(kube: Kube, workload: Object) -> list[Object]:
    """Return the pods that an unready workload selects."""
    if not readiness.unready(workload):
        return []
    labels = ",".join(f"{key}={value}" for key, value in workload["spec"]["selector"].get("matchLabels", {}).items())
    return await readable.listed(kube, PODS, namespace=workload["metadata"]["namespace"], labels=labels)


async def until(look: Callable[[], Awaitable[str]], timeout_s: float, progress: Progress | None = None) -> None:
    """Wait until `look` has nothing to wait for, and show its words."""
    loop = asyncio.get_running_loop()
    shown = progress or Progress()
    began, words = loop.time(), ""
    try:
        async with asyncio.timeout(timeout_s):
            while words := await look():
                shown.show(plain(words), after_s=loop.time() - began)
                await asyncio.sleep(LOOK_EVERY_S)
    except readiness.Refused as error:
        raise click.ClickException(plain(str(error))) from error
    except TimeoutError:
        waits = plain(words or "an answer of the API server")
        raise click.ClickException(f"after {timeout_s:g} s it still waits for {waits}; the same command goes on from here") from None
    finally:
        shown.end()


async def remove(kube: Kube, items: Sequence[Object], timeout_s: float) -> None:
    """Remove the objects in the reverse order, and before them the APIs that the autoscaler registered.

    An API without its server holds up the deletion of every namespace. Processes keep their rights until they have ended, so that they can
    give up their Leases.
    """
    await _remove_apis(kube)
    workloads = [item for item in items if item["kind"] in WORKLOADS]
    used_by_them = items.index(workloads[0]) if workloads else len(items)
    await _delete_all(kube, items[used_by_them:])
    if workloads:
        await until_gone(kube, workloads, timeout_s)
    await _remove_apis(kube)  # the autoscaler may have registered again, before it ended
    await _delete_all(kube, items[:used_by_them])


async def _delete_all(kube: Kube, items: Sequence[Object]) -> None:
    for item in reversed(items):
        await delete(kube, manifests.resource(item), item, title=manifests.name(item))


async def _remove_apis(kube: Kube) -> None:
    for one in await readable.listed(kube, API_SERVICES, labels=f"{MANAGED_BY}={AUTOSCALER}"):
        await delete(kube, API_SERVICES, one, title=f"APIService {one['metadata']['name']}")


async def delete(kube: Kube, resource: Resource, item: Object, *, title: str) -> None:
    metadata = item["metadata"]
    try:
        await kube.delete(resource, metadata["name"], namespace=metadata.get("namespace"), propagation="Background")
    except KubeError as error:
        if error.code != 404:
            raise
    else:
        click.echo(plain(f"deleted {title}"))


async def until_gone(kube: Kube, items: Sequence[Object], timeout_s: float) -> None:
    """Wait until the objects are gone, and the pods of workloads."""

    async def look() -> str:
        left = [manifests.name(item) for item in items if await looking.there(kube, item) is not None]
        for namespace in sorted({item["metadata"].get("namespace") for item in items if item["kind"] in WORKLOADS}):
            pods = await readable.listed(kube, PODS, namespace=namespace)
            names = {item["metadata"]["name"] for item in items}
            left += [f"pod {pod['metadata']['name']}" for pod in pods if (pod["metadata"].get("labels") or {}).get("app") in names]
        return f"{', '.join(left)} to go" if left else ""

    await until(look, timeout_s)


async def until_removed(kube: Kube, definitions: Sequence[str], namespace: str | None, timeout_s: float) -> None:
    """Wait for the end of both, which comes later than the deletion is accepted. Until then nothing can be installed again."""

    async def look() -> str:
        there = {one["metadata"]["name"] for one in await looking.definitions(kube, definitions)}
        left = [f"definition {name}" for name in definitions if name in there]
        if namespace is not None and await looking.read(kube, NAMESPACES, namespace) is not None:
            left.append(f"namespace {namespace}")
        return f"{', '.join(left)} to go" if left else ""

    await until(look, timeout_s)
