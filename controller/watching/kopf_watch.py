"""Watch the jobs with kopf. It lists, watches, resumes and reconnects, and feeds the view with events and objects.

Its handlers do nothing else, and write no patches, annotations or finalizers: for handlers that keep state, kopf writes as much into each
job as the job has itself.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Protocol

import aiohttp
import kopf

from elastic.kube.access import Access
from elastic.kube.answering import Answering
from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import Object
from elastic_training.controller.facts.keys import JOBS
from elastic_training.controller.watching.kopf_answers import ShallowAnswer

log = logging.getLogger(__name__)
IDENTITY: Any = "elastic-controller"
AGENT = "elastic-controller/kopf"
LOOK_AGAIN_S = 10.0
"""For a kind that is not served yet, or may not be listed."""
FIRST_BACK_OFF_S = 1.0
LONGEST_BACK_OFF_S = 30.0
WATCH_S = 290
SILENCE_S = 100.0
"""A server sends a bookmark about once a minute, so a longer silence means a dead connection."""
REQUEST_S = 30.0


class Feed(Protocol):
    """The receiver of the jobs of one kind."""

    def take(self, type: str | None, item: Object) -> None: ...

    def listed(self) -> None: ...


class KopfWatch:
    """Run kopf in its own thread and event loop. In ours it would take over signals, and cancel tasks that it did not start."""

    def __init__(self, kube: Kube, feeds: Mapping[str, Feed], *, namespace: str | None) -> None:
        self._kube = kube
        self._feeds = feeds
        self._namespace = namespace

    async def run(self) -> None:
        """Feed until cancelled. A kind that cannot be listed does not delay the others: it is added when it can be."""
        back_off_s = FIRST_BACK_OFF_S
        while True:
            kinds = [kind for kind in self._feeds if await self._can_be_listed(kind)]
            began = asyncio.get_running_loop().time()
            async with _Kopf(self._kube.access, {kind: self._feeds[kind] for kind in kinds}, namespace=self._namespace) as running:
                more = asyncio.create_task(self._one_more(set(self._feeds) - set(kinds)))
                try:
                    await asyncio.wait([running, more], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    more.cancel()
            if running.done() and kinds:
                log.warning("kopf stopped watching jobs; starting it again", extra={"error": str(running.exception())})
                if asyncio.get_running_loop().time() - began > LONGEST_BACK_OFF_S:
                    back_off_s = FIRST_BACK_OFF_S
                await asyncio.sleep(back_off_s)
                back_off_s = min(back_off_s * 2, LONGEST_BACK_OFF_S)

    async def _one_more(self, missing: Iterable[str]) -> None:
        """Wait until one of these kinds can be listed after all."""
        if not missing:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            for kind in missing:
                if await self._can_be_listed(kind):
                    return

    async def _can_be_listed(self, kind: str) -> bool:
        try:
            await self._kube.request("GET", JOBS[kind].path(namespace=self._namespace), params={"limit": "1"})
        except KubeError as error:
            log.debug("a kind cannot be watched", extra={"kind": kind, "error": str(error)})
            return False
        return True


class _Kopf:
    """One start of kopf, for the length of a block; its value ends when kopf does."""

    def __init__(self, access: Access, feeds: Mapping[str, Feed], *, namespace: str | None) -> None:
        self._access = access
        self._feeds = feeds
        self._namespace = namespace
        self._stop = threading.Event()
        self._answering = Answering()

    async def __aenter__(self) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        if not self._feeds:
            return ended

        def watch() -> None:
            error: Exception | None = None
            try:
                asyncio.run(self._watch(loop.call_soon_threadsafe))
            except Exception as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(_settle, ended, error)

        threading.Thread(target=watch, name="kopf", daemon=True).start()
        return ended

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()

    async def _watch(self, call: Callable[..., object]) -> None:
        registry = kopf.OperatorRegistry()
        for kind, feed in self._feeds.items():
            resource = JOBS[kind]
            kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=kind)(_passing(call, feed))
        kopf.on.login(registry=registry)(self._login(call))
        # In this thread kopf cannot take over signals. That is intended, so its warning at each start is not logged.
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
        try:
            await kopf.operator(
                registry=registry,
                settings=_settings(),
                standalone=True,
                # By default kopf looks up the user's name, and the image's user has none.
                identity=IDENTITY,
                clusterwide=self._namespace is None,
                namespaces=[self._namespace] if self._namespace is not None else [],
                stop_flag=self._stop,
            )
        finally:
            self._answering.abort()

    def _login(self, call: Callable[..., object]) -> Callable[..., Any]:
        """Return a handler that gives kopf a session. Kopf closes it at its end, so it gets one that nobody else uses.

        The session also shows when kopf has listed. Handlers do not learn that if the list is empty.
        """
        access = self._access
        paths = {JOBS[kind].path(namespace=self._namespace): feed for kind, feed in self._feeds.items()}

        async def was_answered(_: aiohttp.ClientSession, __: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
            feed = paths.get(params.url.path)
            if feed is not None and params.method == "GET" and "watch" not in params.url.query and params.response.status == 200:
                call(feed.listed)

        async def login(**_: Any) -> kopf.AiohttpSession:
            token = access.token()
            headers = {"User-Agent": AGENT} | ({"Authorization": f"Bearer {token}"} if token else {})
            connector = aiohttp.TCPConnector(ssl=access.tls if access.tls is not None else True, limit=0)
            trace = aiohttp.TraceConfig()
            trace.on_request_end.append(was_answered)
            traces = [trace, self._answering.trace()]
            session = aiohttp.ClientSession(connector=connector, headers=headers, trace_configs=traces, response_class=ShallowAnswer)
            return kopf.AiohttpSession(server=access.server, aiohttp_session=session, default_namespace=access.namespace)

        return login


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if not future.done():
        future.set_exception(error or RuntimeError("it ended by itself"))
        future.exception()  # retrieved here, so that asyncio does not warn


def _passing(call: Callable[..., object], feed: Feed) -> Callable[..., Any]:
    async def hand_on(event: Any, **_: Any) -> None:
        call(feed.take, event["type"], event["object"])

    return hand_on


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = 500
    settings.watching.server_timeout = WATCH_S
    settings.watching.inactivity_timeout = SILENCE_S
    settings.networking.connect_timeout = REQUEST_S
    settings.networking.request_timeout = REQUEST_S
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
