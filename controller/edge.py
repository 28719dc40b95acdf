"""The edge where kopf watches the jobs. Its handlers enqueue keys and do nothing else: no patches, no annotations, no finalizers,
because what kopf writes for handlers that keep state doubles every job in etcd. Decisions read our own caches.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp
import kopf

from controller.keys import JOBS, Key
from elastic.kube.access import Access


async def watch_jobs(
    access: Access, *, kinds: Iterable[str], namespace: str | None, changed: Callable[[Key], None], stop: asyncio.Event
) -> None:
    """Calls `changed` for every event of every job until `stop` is set."""
    registry = kopf.OperatorRegistry()
    for kind in kinds:
        resource = JOBS[kind]
        kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, param=kind)(_enqueuing(changed))
    kopf.on.login(registry=registry)(_login(access))
    await kopf.operator(
        registry=registry,
        settings=_settings(),
        standalone=True,
        clusterwide=namespace is None,
        namespace=namespace,
        stop_flag=stop,
    )


def _enqueuing(changed: Callable[[Key], None]) -> Callable[..., Any]:
    async def enqueue(param: str, namespace: str | None, name: str | None, **_: Any) -> None:
        changed(Key(param, namespace or "", name or ""))

    return enqueue


def _login(access: Access) -> Callable[..., Any]:
    async def login(**_: Any) -> kopf.AiohttpSession:
        # kopf closes the session that it is given when it stops, so it gets one of its own.
        token = access.token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connector = aiohttp.TCPConnector(ssl=access.tls if access.tls is not None else True, limit=0)
        session = aiohttp.ClientSession(connector=connector, headers=headers)
        return kopf.AiohttpSession(server=access.server, aiohttp_session=session, default_namespace=access.namespace)

    return login


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = 0.1
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = kopf.StatusProgressStorage()
    return settings


class _NoDiffs(kopf.DiffBaseStorage):
    """Nothing here compares a job with its past; without this, kopf copies every object five times per event."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        pass
