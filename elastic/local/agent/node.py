"""One node: its object and lease in the API, and a runner for each pod that is bound to it. Decides nothing about a single pod."""

import asyncio
import contextlib
import logging
import math
import os
import platform
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp

from elastic.api.words import GPU
from elastic.kube.cache import Cache, ViewChange
from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import LEASES, NODES
from elastic.local.agent.environment import Object
from elastic.local.agent.names import Directory, hostname_of, hosts_file
from elastic.local.agent.pod import PodRunner, Surroundings
from elastic.local.agent.records import PodFolder
from elastic.local.agent.roster import NODE_GRACE_S
from elastic.local.agent.status import timestamp

log = logging.getLogger(__name__)

LEASE_NAMESPACE = "kube-node-lease"
HEARTBEAT_S = 10.0
BEATS_IN_GRACE = 4
DOUBT_S = 60.0
"""After a silence of ours, such as of a machine that slept, the node may be called unreachable until it has reported its state again."""
NODE_STATUS_S = 240.0
CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "the node agent is posting ready status"),
)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts that a node reports about itself."""

    name: str
    capacity: Mapping[str, str]
    host_ip: str
    port: int
    labels: Mapping[str, str]
    sandbox: str
    gpus: tuple[int, ...] = ()
    """The numbers that the node's GPUs have on this machine."""
    grace_s: float = NODE_GRACE_S
    """How long the cluster tolerates the node's silence."""

    @property
    def heartbeat_s(self) -> float:
        return min(HEARTBEAT_S, self.grace_s / BEATS_IN_GRACE)


class NodeAgent:
    """Runs one node until cancelled; its pods' processes do not end with it."""

    def __init__(self, facts: NodeFacts, *, around: Surroundings, pods: Cache[Object], folder: Path) -> None:
        self._facts = facts
        self._around = around
        self._kube: Kube = around.kube
        self._pods = pods
        self._folder = folder
        self._runners: dict[str, PodRunner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gone = False
        self.registered = False

    @property
    def name(self) -> str:
        return self._facts.name

    @property
    def runners(self) -> tuple[PodRunner, ...]:
        return tuple(self._runners.values())

    def runner(self, namespace: str, pod: str) -> PodRunner | None:
        for runner in self._runners.values():
            metadata = runner.pod["metadata"]
            if (metadata["namespace"], metadata["name"]) == (namespace, pod):
                return runner
        return None

    async def run(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._pods.wait_synced()
        running = set((await self._around.channel.describe())["running"])
        self._around.channel.subscribe(self._ended)
        self._pods.subscribe(self._changed)
        try:
            await self._adopt(running)
            await self._register()
            await self._write_status()
            self.registered = True
            self._around.registered()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_lease())
                group.create_task(self._keep_status())
        finally:
            self._gone = True
            for task in self._tasks.values():
                task.cancel()

    async def _adopt(self, running: set[str]) -> None:
        """Take up the pods that are bound here, and end the remains of other pods that an earlier agent left."""
        for pod in self._pods.by("node", self.name):
            self._take(pod)
        for runner in self._runners.values():
            if runner.folder.path.exists():
                runner.find_lost(running)
        for path in self._folder.iterdir():
            if path.name not in self._runners:
                await self._clear_leftover(PodFolder(path), running)

    async def _clear_leftover(self, folder: PodFolder, running: set[str]) -> None:
        uid = folder.path.name
        for run in running:
            if run.startswith(f"{uid}/"):
                await self._around.channel.signal(run, signal.SIGKILL)
        await self._around.channel.destroy(uid)
        folder.remove(self._around.kept)

    def _changed(self, change: ViewChange[Object]) -> None:
        for pod in (change.old, change.new):
            if pod is not None and pod["spec"].get("nodeName") == self.name:
                break
        else:
            return
        if change.new is None:
            runner = self._runners.get(pod["metadata"]["uid"])
            if runner:
                runner.delete()
            return
        self._take(change.new)

    def _take(self, pod: Object) -> None:
        if self._gone:
            return
        uid = pod["metadata"]["uid"]
        runner = self._runners.get(uid)
        if runner is not None:
            runner.update(pod)
            return
        runner = PodRunner(pod, PodFolder(self._folder / uid), self._around)
        self._runners[uid] = runner
        task = asyncio.create_task(runner.run(), name=f"pod {pod['metadata']['name']}")
        task.add_done_callback(lambda task: self._forget(uid, task))
        self._tasks[uid] = task

    def _forget(self, uid: str, task: "asyncio.Task[None]") -> None:
        self._runners.pop(uid, None)
        self._tasks.pop(uid, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the runner of pod %s failed", uid, exc_info=error)

    def _ended(self, run_id: str) -> None:
        runner = self._runners.get(run_id.split("/")[0])
        if runner:
            runner.wake()

    def refresh(self, namespace: str) -> None:
        """Look again at pods that a changed ConfigMap or Secret of this namespace may concern."""
        for runner in self._runners.values():
            if runner.pod["metadata"]["namespace"] == namespace:
                runner.refresh()

    def rewrite_hosts(self) -> None:
        for runner in self._runners.values():
            runner.write_hosts()

    async def _register(self) -> None:
        facts = self._facts
        labels = {
            "kubernetes.io/hostname": facts.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": _architecture(),
            **facts.labels,
        }
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": facts.name, "labels": labels}}
        try:
            await self._kube.create(NODES, node)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise
            await self._kube.patch(NODES, facts.name, {"metadata": {"labels": labels}})

    async def _keep_status(self) -> None:
        while True:
            await asyncio.sleep(NODE_STATUS_S)
            with _telling(f"status of node {self.name}"):
                await self._write_status()

    async def _write_status(self) -> None:
        there = await self._kube.find(NODES, self.name) or {}
        status = self._status((there.get("status") or {}).get("conditions") or ())
        await self._kube.patch(NODES, self.name, {"status": status}, kind=Patch.STRATEGIC, subresource="status")

    def _status(self, known: Sequence[Object]) -> Object:
        """Return the status of the node. `known`: the conditions that the API server has, which keep their times if nothing changed."""
        facts = self._facts
        return {
            "capacity": dict(facts.capacity),
            "allocatable": dict(facts.capacity),
            # An API server would try a host name first, and names of nodes that share one machine do not resolve.
            "addresses": [{"type": "InternalIP", "address": facts.host_ip}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": facts.port}},
            "conditions": conditions(known, now=timestamp(time.time())),
            "nodeInfo": {
                "architecture": _architecture(),
                "operatingSystem": "linux",
                "kernelVersion": platform.release(),
                "osImage": "this machine",
                "containerRuntimeVersion": f"elastic://{facts.sandbox}",
                "kubeletVersion": "v1.36.0-elastic",
                "kubeProxyVersion": "",
                "bootID": _line("/proc/sys/kernel/random/boot_id"),
                "machineID": "",
                "systemUUID": "",
            },
        }

    async def _keep_lease(self) -> None:
        heard_at = time.time()
        doubted_until = 0.0
        while True:
            with _telling(f"lease of node {self.name}"):
                await self._renew()
                if time.time() - heard_at > self._lease_s:
                    doubted_until = time.time() + DOUBT_S
                heard_at = time.time()
                if heard_at < doubted_until:
                    await self._write_status()
            await asyncio.sleep(self._facts.heartbeat_s)

    @property
    def _lease_s(self) -> int:
        return math.ceil(BEATS_IN_GRACE * self._facts.heartbeat_s)

    async def _renew(self) -> None:
        spec = {
            "holderIdentity": self.name,
            "leaseDurationSeconds": self._lease_s,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            await self._kube.patch(LEASES, self.name, {"spec": spec}, namespace=LEASE_NAMESPACE)
        except KubeError as error:
            if error.code != 404:
                raise
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}, "spec": spec}
            await self._kube.create(LEASES, lease, namespace=LEASE_NAMESPACE)


@contextlib.contextmanager
def _telling(what: str) -> Iterator[None]:
    """Log an error of the API server and go on, because another heartbeat follows."""
    try:
        yield
    except (KubeError, aiohttp.ClientError, TimeoutError) as error:
        log.warning("%s was not written: %s", what, error)


def conditions(known: Sequence[Object], *, now: str) -> list[Object]:
    """Return the conditions of a sound node. A condition that the API server knows already keeps its time."""
    since = {(one.get("type"), one.get("status")): one.get("lastTransitionTime") for one in known}
    return [
        {
            "type": kind,
            "status": state,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since.get((kind, state)) or now,
        }
        for kind, state, reason, message in CONDITIONS
    ]


def hosts_text(pod: Object, ip: str, directory: Directory) -> str:
    return hosts_file(pod, ip=ip, hostname=hostname_of(pod), directory=directory)


def machine_capacity(gpus: int) -> dict[str, str]:
    """Return the resources of this machine; each local node offers all of them, because the nodes share it."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": f"{pages // 1024}Ki", "pods": "250", "ephemeral-storage": "100Gi"}
    return capacity | ({GPU: str(gpus)} if gpus else {})


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
