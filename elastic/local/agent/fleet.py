"""Run the agents of all nodes that one process simulates.

The agents share the API client, the caches of pods and services, the connection to the sandbox holder, and an endpoint for logs and exec.
`run_node` adds a node. After a restart, the agent of a node finds its pods in the node's folder.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from elastic.kube.cache import Cache, ViewChange
from elastic.kube.client import Kube
from elastic.kube.resources import CONFIG_MAPS, NODES, PODS, SECRETS, SERVICES
from elastic.local.agent.devices import Devices
from elastic.local.agent.environment import Object
from elastic.local.agent.events import Recorder
from elastic.local.agent.launch import Settings
from elastic.local.agent.logtimes import LogClock
from elastic.local.agent.names import Directory, NamedPod, NamedService, named_pod, named_service
from elastic.local.agent.node import NodeAgent, NodeFacts, hosts_text
from elastic.local.agent.pod import PodRunner, Surroundings
from elastic.local.agent.records import PodFolder
from elastic.local.kept_logs import KeptLogs
from elastic.local.sandbox import Mode
from elastic.local.sandbox.channel import Channel

log = logging.getLogger(__name__)

GATHER_S = 0.02
GONE_S, GONE_POLL_S = 10.0, 0.02


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of the pods of all nodes and of the logs of former pods, and the DNS names under which pods find the control plane."""

    folder: Path
    kept: KeptLogs
    fixed_names: Mapping[tuple[str, str], str]


def pods_cache(kube: Kube) -> "Cache[Object]":
    return Cache(kube, PODS, project=lambda pod: pod, indexes={"node": lambda pod: [pod["spec"].get("nodeName", "")]})


class Fleet:
    """The node agents of this process. Keeps the directory of names current for all of them."""

    def __init__(self, kube: Kube, channel: Channel, *, settings: Settings, place: Place, pods: "Cache[Object]") -> None:
        self._kube = kube
        self._channel = channel
        self._settings = settings
        self._place = place
        self._pods = pods
        self._services: Cache[NamedService] = Cache(kube, SERVICES, project=named_service)
        # These caches only show that an object changed. Agents read its contents when they need them.
        self._contents: list[Cache[bool]] = [Cache(kube, kind, project=lambda found: True) for kind in (CONFIG_MAPS, SECRETS)]
        self._named: dict[tuple[str, str], NamedPod] = {}
        self._agents: dict[str, NodeAgent] = {}
        self._directory = Directory((), (), fixed=place.fixed_names)
        self._stale = asyncio.Event()
        self._named_once = asyncio.Event()
        self._registered = asyncio.Event()
        self._clock = LogClock()

    async def run(self) -> None:
        self._pods.subscribe(self._pod_changed)
        self._services.subscribe(lambda change: self._stale.set())
        for contents in self._contents:
            contents.subscribe(self._content_changed)
        async with asyncio.TaskGroup() as group:
            for contents in self._contents:
                group.create_task(contents.run())
            group.create_task(self._services.run())
            group.create_task(self._keep_names())

    def _content_changed(self, change: ViewChange[bool]) -> None:
        for agent in self._agents.values():
            agent.refresh(change.key[0])

    def _pod_changed(self, change: ViewChange[Object]) -> None:
        named = named_pod(change.new) if change.new is not None else None
        if named == self._named.get(change.key):
            return
        if named is None:
            self._named.pop(change.key, None)
        else:
            self._named[change.key] = named
        self._stale.set()

    async def _keep_names(self) -> None:
        await self._services.wait_synced()
        await self._pods.wait_synced()
        self._stale.set()
        while True:
            await self._stale.wait()
            # Changes often arrive together. One directory serves all of them.
            await asyncio.sleep(GATHER_S)
            self._stale.clear()
            self._directory = Directory(self._services.list(), self._named.values(), fixed=self._place.fixed_names)
            self._named_once.set()
            for agent in self._agents.values():
                agent.rewrite_hosts()

    @property
    def mode(self) -> Mode:
        return self._settings.mode

    async def wait_for(self, names: Collection[str]) -> None:
        """Wait until these nodes are registered in the API."""
        while not all(name in self._agents and self._agents[name].registered for name in names):
            self._registered.clear()
            await self._registered.wait()

    async def retire_others(self, names: Collection[str], *, labels: str) -> None:
        """Delete the nodes with these labels from the API, except the nodes with these names."""
        for node in (await self._kube.list(NODES, labels=labels)).items:
            if node["metadata"]["name"] not in names:
                await self._kube.delete(NODES, node["metadata"]["name"])

    def agent(self, name: str) -> NodeAgent | None:
        return self._agents.get(name)

    async def vanish(self, name: str) -> None:
        """Kill every process of a stopped node without notice, also processes that the node's agent does not know of."""
        uids = {path.name for path in (self._place.folder / name).glob("*")}
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            left = [run for run in (await self._channel.describe())["running"] if run.split("/")[0] in uids]
            if not left:
                break
            for run in left:
                await self._channel.signal(run, signal.SIGKILL)
            await asyncio.sleep(GONE_POLL_S)
        for uid in uids:
            await self._channel.destroy(uid)

    def runners(self) -> list[PodRunner]:
        return [runner for agent in self._agents.values() for runner in agent.runners]

    def runner(self, namespace: str, pod: str) -> PodRunner | None:
        return next((runner for agent in self._agents.values() if (runner := agent.runner(namespace, pod)) is not None), None)

    async def run_node(self, facts: NodeFacts) -> None:
        """Run one node of this process until cancelled."""
        folder = self._place.folder / facts.name
        events = Recorder(self._kube, component="kubelet", host=facts.name)
        around = Surroundings(
            kube=self._kube,
            channel=self._channel,
            settings=replace(self._settings, capacity=facts.capacity),
            events=events,
            hosts_of=lambda pod, ip: hosts_text(pod, ip, self._directory),
            devices=_devices(facts, folder),
            registered=self._registered.set,
            clock=self._clock,
            kept=self._place.kept,
        )
        agent = NodeAgent(facts, around=around, pods=self._pods, folder=folder)
        self._agents[facts.name] = agent
        recording = asyncio.create_task(events.run())
        try:
            # After a restart, pods have a hosts file already. An agent that does not know the names yet would empty this file.
            await self._named_once.wait()
            await agent.run()
        finally:
            recording.cancel()
            self._agents.pop(facts.name, None)


def _devices(facts: NodeFacts, folder: Path) -> Devices:
    notes = [note for path in folder.glob("*") if (note := PodFolder(path).note()) is not None]
    return Devices(facts.gpus, {note.uid: note.gpus for note in notes})
