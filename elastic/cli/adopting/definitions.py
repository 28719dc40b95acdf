"""Delete a definition with its jobs, and create jobs under another one. Only the take-over from the MPI Operator does this."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import click

from elastic.cli.adopting.mpi_operator import MPI
from elastic.cli.adopting.plan import Create, DeleteDefinition, identity, stores
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, Object, Resource

WITHIN_S, LOOK_S = 60.0, 0.5


def jobs_of(api_version: str) -> Resource:
    group, _, version = api_version.partition("/")
    return Resource(group, version, MPI.plural, kind=MPI.name)


async def listed(kube: Kube, api_version: str) -> list[Object]:
    """Return the MPIJobs of that version, or an empty list if the API server does not serve it."""
    try:
        return (await kube.list(jobs_of(api_version))).items
    except KubeError as error:
        if error.code == 404:
            return []
        raise


async def delete(kube: Kube, change: DeleteDefinition) -> None:
    """Delete a definition and wait until the API server has deleted all of its objects too.

    A definition that stores another version stays. If an earlier attempt has begun the deletion, only wait for its end.
    """
    definition = await kube.find(CUSTOM_RESOURCE_DEFINITIONS, change.name)
    if definition is None:
        return
    if "deletionTimestamp" not in definition["metadata"]:
        if not stores(definition, change.api_version.partition("/")[2]):
            return
        await _delete(kube, change, str(definition["metadata"]["uid"]))

    async def is_gone() -> bool:
        return await kube.find(CUSTOM_RESOURCE_DEFINITIONS, change.name) is None

    await _until(is_gone, f"the definition {change.name} to go: finalizers of its jobs hold it")


async def _delete(kube: Kube, change: DeleteDefinition, uid: str) -> None:
    if others := [job for job in await listed(kube, change.api_version) if identity(job) not in change.seen]:
        names = ", ".join(f"{job['metadata']['namespace']}/{job['metadata']['name']}" for job in others[:10])
        raise click.ClickException(
            f"MPIJob {names} was created or changed meanwhile; no definition and no job was deleted. {change.otherwise}"
        )
    try:
        await kube.delete(CUSTOM_RESOURCE_DEFINITIONS, change.name, uid=uid)
    except KubeError as error:
        if error.code != 404:
            raise


async def create(kube: Kube, change: Create) -> None:
    """Create an object once the API server serves its kind. An object that exists already is from an earlier attempt."""
    metadata = change.object["metadata"]

    async def is_made() -> bool:
        try:
            await kube.create(jobs_of(change.object["apiVersion"]), change.object, namespace=metadata["namespace"])
        except KubeError as error:
            if error.code == 404:
                return False
            if error.reason != "AlreadyExists":
                raise
        return True

    await _until(is_made, f"the API server to serve {change.object['apiVersion']} {MPI.plural}")


async def _until(look: Callable[[], Awaitable[bool]], what: str) -> None:
    give_up_at = time.monotonic() + WITHIN_S
    while not await look():
        if time.monotonic() > give_up_at:
            raise click.ClickException(
                f"waited {WITHIN_S:.0f} s for {what}; the --save file keeps everything; type the command again to continue"
            )
        await asyncio.sleep(LOOK_S)
