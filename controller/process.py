"""Puts the controller's parts together and runs them until told to stop."""

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from controller.apply import Applier
from controller.edge import Edge
from controller.keys import Key
from controller.link import RendezvousLink
from controller.observe import OTHER_RESOURCES, Observer
from controller.reconcile import Reconciler
from controller.settings import Rendezvous, Settings
from controller.tell import Teller
from controller.workqueue import WorkQueue
from elastic.kube.client import Kube
from elastic.kube.resources import PLUGIN_POD_GROUPS, VOLCANO_POD_GROUPS, Resource
from rendezvous.client import RendezvousClient, RendezvousError
from rendezvous.tokens import control_token, job_token, load_keys

if TYPE_CHECKING:
    from controller.main import Options

log = logging.getLogger(__name__)


class Process:
    def __init__(self, kube: Kube, options: "Options") -> None:
        self._kube = kube
        self._options = options
        self._queue: WorkQueue[Key] = WorkQueue(clock=time.monotonic)
        self._observer = Observer(kube, kinds=options.kinds, resources=_watched(options.gang_scheduler), namespace=options.namespace)
        self._key = load_keys(options.installation)[0] if options.installation else b""
        self._ca = (options.installation / "ca.crt").read_text() if options.installation else ""

    async def run(self, stop: asyncio.Event) -> None:
        client = self._client()
        link = RendezvousLink(client, errors=(RendezvousError,)) if client is not None else None
        reconciler = Reconciler(
            self._observer,
            Applier(self._kube, Teller(self._kube), link),
            self._queue,
            settings=self._settings(),
            worlds=link.worlds if link is not None else {},
            token_for=lambda uid: job_token(self._key, uid) if self._key else "",
        )
        tasks = [
            asyncio.create_task(self._observer.run(self._queue.add)),
            asyncio.create_task(reconciler.run(self._options.workers)),
            asyncio.create_task(self._say_ready()),
        ]
        if link is not None:
            tasks.append(asyncio.create_task(link.run(self._world_changed)))
        options = self._options
        edge = Edge(self._kube.access, kinds=options.kinds, namespace=options.namespace)
        tasks.append(asyncio.create_task(edge.run(self._queue.add)))
        stopped = asyncio.create_task(_set(stop))
        try:
            await _first_end([*tasks, stopped])
        finally:
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
            if client is not None:
                await client.close()

    def _client(self) -> RendezvousClient | None:
        if not self._options.rendezvous_url:
            return None

        async def token() -> str:
            return control_token(self._key)

        return RendezvousClient(self._options.rendezvous_url, token=token, ca=self._ca)

    def _settings(self) -> Settings:
        options = self._options
        rendezvous = Rendezvous(endpoint=options.rendezvous_endpoint, ca=self._ca) if options.rendezvous_url else None
        return Settings(
            rendezvous=rendezvous,
            worker_image=options.worker_image,
            strict=options.compat == "strict",
            gang_scheduler=options.gang_scheduler,
            cluster_domain=options.cluster_domain,
        )

    def _world_changed(self, uid: str) -> None:
        key = self._observer.key_of_uid(uid)
        if key is not None:
            self._queue.add(key)

    async def _say_ready(self) -> None:
        await self._observer.wait_synced()
        log.info("every view is whole; %d jobs", len(self._observer.keys()))
        if self._options.ready_file is not None:
            _write_whole(self._options.ready_file)
        await asyncio.Event().wait()


def _watched(gang_scheduler: str) -> list[Resource]:
    """Pod groups are watched only where a gang scheduler's kind exists."""
    groups = {VOLCANO_POD_GROUPS, PLUGIN_POD_GROUPS}
    chosen = {"": None, "volcano": VOLCANO_POD_GROUPS}.get(gang_scheduler, PLUGIN_POD_GROUPS)
    return [resource for resource in OTHER_RESOURCES if resource not in groups or resource == chosen]


async def _first_end(tasks: list[asyncio.Task[None]]) -> None:
    """Returns when one task ends; an error of it goes on up, because the process cannot work with a part missing."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def _write_whole(path: Path) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text("ready\n")
    new.replace(path)


async def _set(event: asyncio.Event) -> None:
    await event.wait()
