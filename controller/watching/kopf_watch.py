"""The edge where kopf watches the jobs. Its handlers enqueue keys and do nothing else: no patches, no annotations, no finalizers,
because what kopf writes for handlers that keep state doubles every job in etcd. Decisions read our own caches.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp
import kopf

from controller.watching.keys import JOBS, Key
from elastic.kube.access import Access

IDENTITY: Any = "elastic-controller"


class KopfWatch:
    """kopf in a thread and loop of its own: it takes over signals, cancels tasks it did not start and is slow to stop."""

    def __init__(self, access: Access, *, kinds: Iterable[str], namespace: str | None) -> None:
        self._access = access
        self._kinds = tuple(kinds)
        self._namespace = namespace
        self._stop = threading.Event()

    async def run(self, changed: Callable[[Key], None]) -> None:
        """Calls `changed` in the caller's loop for every event of every job; ends when kopf does, or when cancelled."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def watch() -> None:
            error: Exception | None = None
            try:
                asyncio.run(self._watch(lambda key: loop.call_soon_threadsafe(changed, key)))
            except Exception as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, ended, error)

        threading.Thread(target=watch, name="kopf", daemon=True).start()
        try:
            await ended
        finally:
            self._stop.set()

    async def _watch(self, changed: Callable[[Key], object]) -> None:
        registry = kopf.OperatorRegistry()
        for kind in self._kinds:
            resource = JOBS[kind]
            kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, param=kind)(_enqueuing(changed))
        kopf.on.login(registry=registry)(_login(self._access))
        await kopf.operator(
            registry=registry,
            settings=_settings(),
            standalone=True,
            # Left to itself it asks who runs it, and nobody has a name for the user that an image runs as.
            identity=IDENTITY,
            clusterwide=self._namespace is None,
            namespace=self._namespace,
            stop_flag=self._stop,
        )


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if not future.done():
        future.set_exception(error or RuntimeError("kopf stopped watching the jobs"))


def _enqueuing(changed: Callable[[Key], object]) -> Callable[..., Any]:
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
