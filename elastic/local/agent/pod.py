"""Carry a pod of this node through its life: look, ask lifecycle.py for the next step, do it, report it to the API server, and wait.

Everything to remember is in the pod's folder or with the sandbox's holder, so that a restarted agent continues at the same place.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import aiohttp

from elastic.kube.client import Kube, Patch
from elastic.kube.errors import KubeError
from elastic.kube.resources import PODS
from elastic.local.agent import handlers, lifecycle
from elastic.local.agent.care import Care
from elastic.local.agent.devices import Devices
from elastic.local.agent.environment import ConfigError, Object
from elastic.local.agent.events import Recorder
from elastic.local.agent.handlers import Target
from elastic.local.agent.launch import Preparation, Settings
from elastic.local.agent.logtimes import LogClock
from elastic.local.agent.names import hostname_of
from elastic.local.agent.records import PodFolder, note_of
from elastic.local.agent.runs import Ending, Run, Seen
from elastic.local.agent.status import status
from elastic.local.kept_logs import KeptLogs
from elastic.local.sandbox import Launch, Record, SandboxError
from elastic.local.sandbox.channel import Channel, HolderGone

log = logging.getLogger(__name__)

RETRY_S = 5.0
VOLUME_REFRESH_S = 60.0
"""Seconds between updates of volumes for changes without an event: tokens that expire, and fields of the pod itself."""
NO_DEADLINE = float("inf")
ADDRESSES = ("podIPs", "hostIPs")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Objects that all pods of a node share."""

    kube: Kube
    channel: Channel
    settings: Settings
    events: Recorder
    hosts_of: Callable[[Object, str], str]
    """Returns the text of a pod's hosts file, from the pod and its address."""
    devices: Devices
    registered: Callable[[], None]
    """Called when the node is in the API."""
    clock: LogClock
    kept: KeptLogs


class PodRunner:
    """Runs a pod, identified by its uid, from the moment at which this node sees it until its object is gone."""

    def __init__(self, pod: Object, folder: PodFolder, around: Surroundings) -> None:
        self._pod = pod
        self._folder = folder
        self._around = around
        self._wake = asyncio.Event()
        self._ip = ""
        self._deleted = False
        self._stale = False
        self._problem = ""
        self._problems: dict[str, str] = {}
        self._terminating: dict[str, float] = {}
        self._pushed: Object | None = None
        self._cleared = False
        self._stopping: set[asyncio.Task[None]] = set()
        self._care = Care(self._wake.set, self._unwell, watches_memory=not around.settings.limits_memory)
        self._preparation = Preparation(folder, around.kube, around.settings, around.devices)
        note = folder.note()
        self._started_at = note.started_at if note else time.time()

    @property
    def pod(self) -> Object:
        return self._pod

    @property
    def ip(self) -> str:
        return self._ip

    @property
    def folder(self) -> PodFolder:
        return self._folder

    def container(self, name: str) -> Object | None:
        return next((container for container in self._containers() if container["name"] == name), None)

    def _containers(self) -> list[Object]:
        return [*lifecycle.init_containers(self._pod), *lifecycle.main_containers(self._pod)]

    def running(self) -> list[tuple[str, Record]]:
        """Return the running containers, by name."""
        names = [container["name"] for container in self._containers()]
        return [(name, record) for name in names if (record := self._folder.running(name)) is not None]

    def runs_now(self, name: str, attempt: int) -> bool:
        container = self.container(name)
        return container is not None and any(run.running and run.attempt == attempt for run in self._folder.runs(container))

    def why_waiting(self, name: str) -> str:
        return self._problems.get(name) or self._problem or "ContainerCreating"

    async def launch_beside(self, container: Object, *, run_id: str) -> Launch:
        """Return a launch like the running container's, for another program in it."""
        return await self._preparation.launch(self._pod, container, run_id=run_id, attempt=int(run_id.rpartition("/")[2]))

    def update(self, pod: Object) -> None:
        self._pod = pod
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def refresh(self) -> None:
        """Note that the objects behind volumes, or objects that the pod waits for, may have changed."""
        self._stale = True
        self._wake.set()

    def delete(self) -> None:
        """Note that the object is gone already, so nothing of the pod may stay."""
        self._deleted = True
        self._wake.set()

    async def run(self) -> None:
        """Run until nothing of the pod is left on this node."""
        try:
            while True:
                self._wake.clear()
                look_again_at = await self._round()
                if look_again_at is None:
                    return
                timeout = None if look_again_at == NO_DEADLINE else max(0.0, look_again_at - time.time())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._wake.wait()
        finally:
            self._care.close()
            self._around.clock.forget_below(self._folder.path)
            for task in self._stopping:
                task.cancel()

    def _unwell(self, name: str, words: str) -> None:
        self._around.events.pod(self._pod, reason="Unhealthy", message=words, warning=True, container=name)

    async def _round(self) -> float | None:
        """Look once and act. Return the time of the next look, or None if the pod has left this node."""
        try:
            return await self._advance()
        except (KubeError, HolderGone, aiohttp.ClientError, TimeoutError, OSError) as error:
            log.warning("pod %s: %s; trying again", self._pod["metadata"]["name"], error)
        except Exception:
            # An unexpected error must not stop the work on this pod for good.
            log.exception("pod %s: trying again", self._pod["metadata"]["name"])
        return time.time() + RETRY_S

    async def _advance(self) -> float | None:
        if lifecycle.phase_in_object(self._pod).final and not self._folder.path.exists():
            # The pod ended before this agent knew it, and nothing of it is here.
            return await self._leave() if self._deleted or self._deleting() else NO_DEADLINE
        now = time.time()
        seen = self._look(now)
        if not self._ip and seen.ending is None and not lifecycle.phase_in_object(self._pod).final:
            await self._surround()
            seen = self._look(now)
        decision = lifecycle.decide(self._pod, seen, now=now, back_off=self._around.settings.back_off)
        for stop in decision.stop:
            await self._stop(stop)
        if decision.start:
            begun = [await self._start(name) for name in decision.start]
            if any(begun):
                # The next round watches and reports a started container.
                return now
            seen = self._look(now)
        await self._tell(status(self._pod, decision, seen, now=now))
        if decision.over:
            return await self._over()
        return await self._next_look(decision, seen, now)

    async def _next_look(self, decision: lifecycle.Decision, seen: Seen, now: float) -> float:
        times = [NO_DEADLINE]
        if decision.look_again_at is not None:
            times.append(decision.look_again_at)
        if self._problem or self._problems:
            times.append(now + RETRY_S)
        deadline = self._deadline()
        if deadline is not None and seen.ending is None:
            times.append(deadline)
        if await self._refresh(now):
            times.append(now + VOLUME_REFRESH_S)
        return min(times)

    def _watch(self, runs: Mapping[str, tuple[Run, ...]]) -> None:
        """Let probes follow the runs of their containers, so that a new run is never judged by findings about the run before."""
        for container in self._containers():
            of_container = runs[container["name"]]
            for run in of_container[-1:]:
                (self._around.clock.follow if run.running else self._around.clock.forget)(self._folder.log(container["name"], run.attempt))
            if of_container and of_container[-1].running and not self._deleting():
                self._care.begin(of_container[-1].id, self._target(container, of_container[-1].id))
            else:
                self._care.end(container["name"])

    def _target(self, container: Object, run_id: str) -> Target:
        async def launch() -> Launch:
            return await self.launch_beside(container, run_id=run_id)

        return Target(self._around.channel, self._pod["metadata"]["uid"], self._ip, container, launch)

    def _look(self, now: float) -> Seen:
        runs = {container["name"]: self._folder.runs(container) for container in self._containers()}
        for name, of_container in runs.items():
            if not of_container or not of_container[-1].running:
                self._terminating.pop(name, None)
        self._watch(runs)
        return Seen(
            runs=runs,
            ip=self._ip,
            host_ip=self._around.settings.host_ip,
            started_at=self._started_at,
            problem=self._problem,
            problems=dict(self._problems),
            health=self._care.health(),
            terminating=dict(self._terminating),
            ending=self._ending(now),
        )

    def _ending(self, now: float) -> Ending | None:
        if self._deleted:
            return Ending(kill_at=now)
        if self._deleting():
            return Ending(kill_at=_seconds(self._pod["metadata"]["deletionTimestamp"]))
        deadline = self._deadline()
        if deadline is not None and deadline <= now:
            grace = lifecycle.grace_s(self._pod)
            message = "Pod was active on the node longer than the specified deadline"
            return Ending(kill_at=deadline + grace, reason="DeadlineExceeded", message=message)
        return None

    def _deleting(self) -> bool:
        return "deletionTimestamp" in self._pod["metadata"]

    def _deadline(self) -> float | None:
        seconds = self._pod["spec"].get("activeDeadlineSeconds")
        return None if seconds is None else self._started_at + float(seconds)

    async def _surround(self) -> None:
        """Give the pod its folder, volumes, address and names."""
        metadata = self._pod["metadata"]
        if self._folder.note() is None:
            self._folder.write_note(note_of(self._pod, self._started_at))
        try:
            await self._preparation.make_volumes(self._pod)
            ip = await self._around.channel.create(metadata["uid"], hostname=hostname_of(self._pod))
        except (ConfigError, SandboxError) as error:
            self._complain(str(error), reason="FailedMount")
            return
        self._problem = ""
        self._ip = ip
        self._pod = {**self._pod, "status": {**(self._pod.get("status") or {}), "podIP": ip, "hostIP": self._around.settings.host_ip}}
        self.write_hosts()

    def _complain(self, words: str, *, reason: str) -> None:
        if words != self._problem:
            self._around.events.pod(self._pod, reason=reason, message=words, warning=True)
        self._problem = words

    def write_hosts(self) -> None:
        if self._ip:
            self._folder.write_hosts(self._around.hosts_of(self._pod, self._ip))

    async def _refresh(self, now: float) -> bool:
        """Update config maps and secrets in volumes while the pod runs. Return false if there is nothing to follow."""
        if not self._ip or self._problem or not self._preparation.follows(self._pod):
            return False
        not_before = NO_DEADLINE if self._stale else now - VOLUME_REFRESH_S
        self._stale = False
        with contextlib.suppress(ConfigError):
            await self._preparation.make_volumes(self._pod, not_before=not_before)
        return True

    async def _start(self, name: str) -> bool:
        """Start a container, and return whether its run has begun. If not, its status will say why."""
        container = next(container for container in self._containers() if container["name"] == name)
        attempt = len(self._folder.runs(container))
        run_id = f"{self._pod['metadata']['uid']}/{name}/{attempt}"
        try:
            launch = await self._preparation.launch(self._pod, container, run_id=run_id, attempt=attempt)
            await self._around.channel.run(launch)
        except (ConfigError, SandboxError) as error:
            if self._problems.get(name) != str(error):
                self._around.events.pod(self._pod, reason="Failed", message=f"Error: {error}", warning=True, container=name)
            self._problems[name] = str(error)
            return False
        self._problems.pop(name, None)
        self._folder.keep_old_logs(self._around.kept, name, attempt=attempt)
        self._around.events.pod(self._pod, reason="Started", message=f"Started container {name}", container=name)
        return True

    async def _stop(self, stop: lifecycle.Stop) -> None:
        container = next(container for container in self._containers() if container["name"] == stop.container)
        run = self._folder.runs(container)[-1]
        if stop.kill_at is None:
            if not await self._around.channel.signal(run.id, signal.SIGKILL):
                self._lose(container, run.id)
            return
        message = stop.why or f"Stopping container {stop.container}"
        self._around.events.pod(self._pod, reason="Killing", message=message, container=stop.container)
        self._terminating[stop.container] = stop.kill_at
        task = asyncio.create_task(self._ask_to_end(container, run.id, stop.kill_at))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _ask_to_end(self, container: Object, run_id: str, kill_at: float) -> None:
        """Run the container's hook, within its grace period, and then send the signal."""
        hook = (container.get("lifecycle") or {}).get("preStop")
        if hook:
            words = await handlers.ask(self._target(container, run_id), hook, timeout_s=max(0.0, kill_at - time.time()))
            if words:
                message = f"PreStopHook failed: {words}"
                self._around.events.pod(self._pod, reason="FailedPreStopHook", message=message, warning=True, container=container["name"])
        try:
            if not await self._around.channel.signal(run_id, signal.SIGTERM):
                self._lose(container, run_id)
        except HolderGone as error:
            log.warning("pod %s did not get SIGTERM: %s", self._pod["metadata"]["name"], error)

    def find_lost(self, running: set[str]) -> None:
        """Close the records of runs that the holder does not know. They ended with an earlier holder."""
        for container in self._containers():
            runs = self._folder.runs(container)
            if runs and runs[-1].id not in running:
                self._lose(container, runs[-1].id)

    def _lose(self, container: Object, run_id: str) -> None:
        """Close the open record of a run that the holder does not know. The holder writes the end before it forgets a run."""
        runs = self._folder.runs(container)
        if runs and runs[-1].running and runs[-1].id == run_id:
            self._folder.lose(runs[-1], container["name"], now=time.time())
        self._wake.set()

    async def _over(self) -> float | None:
        self._care.close()
        if not self._cleared:
            await self._around.channel.destroy(self._pod["metadata"]["uid"])
            self._around.devices.take_back(self._pod["metadata"]["uid"])
            self._folder.clear()
            self._cleared = True
        return await self._leave() if self._deleted or self._deleting() else NO_DEADLINE

    async def _leave(self) -> float | None:
        metadata = self._pod["metadata"]
        if not self._deleted:
            try:
                await self._around.kube.delete(PODS, metadata["name"], namespace=metadata["namespace"], grace_s=0, uid=metadata["uid"])
            except KubeError as error:
                # The pod is gone, or another pod has its name now. After other errors we try again, because nobody else deletes the object.
                if error.code not in (404, 409):
                    raise
        self._folder.remove(self._around.kept)
        return None

    async def _tell(self, told: Object) -> None:
        if told == self._pushed or self._deleted:
            return
        metadata = self._pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": told | {name: _whole(told[name]) for name in ADDRESSES if name in told}}
        try:
            answer = await self._around.kube.patch(
                PODS, metadata["name"], body, namespace=metadata["namespace"], kind=Patch.STRATEGIC, subresource="status"
            )
        except KubeError as error:
            if error.code not in (404, 409):
                raise
            # The pod is gone, or another pod has its name now.
            self._deleted = True
            self._wake.set()
            return
        self._pushed = told
        if int(answer["metadata"]["resourceVersion"]) > int(self._pod["metadata"].get("resourceVersion", "0")):
            self._pod = answer


def _whole(addresses: list[Object]) -> list[Object]:
    """Return a patch that replaces the addresses of an earlier agent. Otherwise the server would merge both, and refuse them."""
    return [*addresses, {"$patch": "replace"}]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
