"""Look after the running containers of one pod: run their probes in time, and enforce their memory limits."""

import asyncio
import logging
import signal
from collections.abc import Callable

from elastic.local.agent import handlers, memory
from elastic.local.agent.environment import Object
from elastic.local.agent.handlers import Target
from elastic.local.agent.probes import Probe, Tally, at_start, judge, probes
from elastic.local.agent.runs import Health
from elastic.local.sandbox import SandboxError
from elastic.local.sandbox.channel import HolderGone

log = logging.getLogger(__name__)


class Care:
    """Health by container; every change calls `changed`, every failed finding calls `complain`."""

    def __init__(self, changed: Callable[[], None], complain: Callable[[str, str], None], *, watches_memory: bool) -> None:
        self._watches_memory = watches_memory
        self._changed = changed
        self._complain = complain
        self._health: dict[str, tuple[str, Health]] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    def health(self) -> dict[str, Health]:
        return {name: health for name, (_, health) in self._health.items()}

    def begin(self, run_id: str, target: Target) -> None:
        """Watch a run of a container from now on. If it is watched already, nothing changes."""
        name = target.container["name"]
        if self._health.get(name, ("", None))[0] == run_id:
            return
        self.end(name)
        self._health[name] = (run_id, at_start(target.container))
        work = [self._follow(run_id, target, probe) for probe in probes(target.container)]
        limit = memory.limit_of(target.container)
        if limit is not None and self._watches_memory:
            work.append(_watch_memory(run_id, target, limit))
        self._tasks[name] = [asyncio.create_task(each) for each in work]
        for task in self._tasks[name]:
            task.add_done_callback(_tell_defect)

    def end(self, name: str) -> None:
        for task in self._tasks.pop(name, []):
            task.cancel()
        self._health.pop(name, None)

    def close(self) -> None:
        for name in list(self._tasks):
            self.end(name)

    async def _follow(self, run_id: str, target: Target, probe: Probe) -> None:
        container: Object = target.container
        name = container["name"]
        await asyncio.sleep(probe.initial_delay_s)
        tally = Tally()
        while True:
            known, health = self._health.get(name, ("", Health()))
            if known != run_id:
                return
            waits_for_start = probe.kind != "startupProbe" and not health.started
            if not waits_for_start:
                words = await handlers.ask(target, probe.handler, timeout_s=probe.timeout_s)
                tally = tally.counting(not words)
                if words:
                    self._complain(name, f"{probe.kind.removesuffix('Probe').capitalize()} probe failed: {words}")
                self._settle(name, run_id, probe, tally, container, words)
                if probe.kind == "startupProbe" and tally.good >= probe.successes:
                    return
            await asyncio.sleep(probe.period_s)

    def _settle(self, name: str, run_id: str, probe: Probe, tally: Tally, container: Object, words: str) -> None:
        known, before = self._health.get(name, ("", Health()))
        if known != run_id:
            return
        after = judge(before, probe, tally, container, words)
        if after != before:
            self._health[name] = (run_id, after)
            self._changed()


async def _watch_memory(run_id: str, target: Target, limit: int) -> None:
    async def pids() -> list[int]:
        return await target.channel.tree(run_id)

    async def kill() -> None:
        await target.channel.signal(run_id, signal.SIGKILL, out_of_memory=True)

    try:
        await memory.watch(limit, pids=pids, kill=kill)
    except (HolderGone, SandboxError) as error:
        log.warning("the memory of %s is no longer watched: %s", run_id, error)


def _tell_defect(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the task that watches a container failed", exc_info=error)
