"""One simulated life of a job: a storm of user actions, mishaps and faults, all drawn from one seed.

Then calm, in which everything must become right; then its end. The same seed gives the same life.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import sim_time
from sim_client import CALM
from sim_deeds import Deeds
from sim_jobs import NAME, replicas, scaling_of
from sim_memory import remembered
from sim_right import silences, wrongs
from sim_scene import Options
from sim_time import now

from elastic.api.job import Object
from elastic.kube.errors import KubeError
from elastic.kube.resources import EVENTS, LEASES, NODES
from elastic_training.controller.facts.keys import Key

QUIET_S = 75.0
PATIENCE_S = 2400.0
PAUSES = ("in a row were lost soon after they were created", "UTC to create all pods again")
MOST_TURNS = 2
"""Changes of the autoscaler's mind once nothing else changes: one for what the storm left, and one if there is no room after all."""


class Storm(Deeds):
    async def play(self) -> None:
        ticking = asyncio.create_task(self.tick())
        try:
            await self._storm()
            await self._calm()
            await self._finish()
            await self._delete()
        finally:
            ticking.cancel()
            for controller in self.controllers:
                controller.kill()
            self.server.etcds.close()
            if self.autoscaler is not None:
                self.autoscaler.kill()

    async def _storm(self) -> None:
        self.keep_controllers()
        if scaling_of(self.manifest) is not None:
            self.start_autoscaler()
        await asyncio.sleep(self.draw.choice([0.0, 1.0]))
        self.api.create(self.resource, self.manifest, actor="user")
        self.cluster.kubelets.may_stick = True
        for _ in range(self.options.steps):
            await asyncio.sleep(self.draw.choice([0.0, 0.2, 1.0, 5.0, 20.0]))
            self._something()
            self._signal()
            self._trouble_etcd()
            self._break_command()
            self._trouble_autoscaler()
            self.keep_controllers()
            self.check()

    async def _calm(self) -> None:
        """End all faults. Everything must become right, and then nothing more may be written."""
        self.note("calm")
        self.sky.weather, self.sky.down_until = CALM, 0.0
        self.server.come_up()
        self.cluster.kubelets.is_command_wrong = False
        self.server.etcds.is_away = False
        self.cluster.heal(leave_dead=self.draw.random() < 0.5)
        if self._after.random() < 0.3:
            self.note("one more node is drained")
            self.cluster.add_node()
            self.cluster.cordon(self._after.choice(self.cluster.nodes()), drain=True)
        self._bury()
        # Times that a wrong clock has written come due later by as much as that clock is set right now.
        late_s = max((abs(controller.skew.total_seconds()) for controller in self.controllers), default=0.0)
        for controller in self.controllers:
            controller.skew = timedelta()
        if self.job is not None and self.job["spec"]["runPolicy"].get("suspend") and self.draw.random() < 0.8:
            self._suspend()
        await asyncio.sleep(late_s)
        await self._settled()

    async def _settled(self) -> None:
        loop = asyncio.get_running_loop()
        began = busy = loop.time()
        while loop.time() < max(busy, self.laws.last_write) + QUIET_S:
            await asyncio.sleep(5.0)
            if self.cluster.has_forsaken() or self._pauses():
                busy = loop.time()
            self.keep_controllers()
            self._bury()
            self.check()
            if loop.time() > began + PATIENCE_S:
                forsaken = " and pods wait on a node that is lost" if self.cluster.has_forsaken() else ""
                raise AssertionError(f"it converges: writes go on and on{forsaken}")
        if self.laws.turns_since(began) > MOST_TURNS:
            raise AssertionError(f"the autoscaler does not swing: {self.laws.scaled}")
        if found := [*wrongs(self.api, self.server, self.job), *silences(self.api, self.job), *self.cluster.undrained()]:
            raise AssertionError("\n".join(["status and cluster become right:", *found]))
        before, due, looked_at, worlds = self.laws.writes, self._due(), loop.time(), self._generations()
        for controller in self.controllers:
            controller.look_again(Key(self.kind, "team", NAME))
        await asyncio.sleep(3.0)
        has_scaled = self.laws.scaler_wrote_at >= looked_at  # time alone changes its mind, and the controller copies what it says
        has_news = has_scaled or worlds != self._generations()  # the communication of living processes breaks at any time
        if self.laws.writes > before and not has_news and not any(at <= now() for at in due):
            raise AssertionError(f"a plan for a right world is empty: {self.laws.newest} was written")

    def _pauses(self) -> bool:
        """Return whether missing pods come after a pause, because one place lost its pods again and again or the whole job failed."""
        conditions = ((self.job or {}).get("status") or {}).get("conditions") or ()
        if any(c["type"] in ("Succeeded", "Failed") and c["status"] == "True" for c in conditions):
            return False
        return any(words in c["message"] for words in PAUSES for c in conditions)

    def _generations(self) -> list[int]:
        return [world.generation for world in self.server.hub.since(0)]

    def _due(self) -> list[datetime]:
        """Return the times at which time alone will change something about the job."""
        if self.job is None:
            return []
        policy, status = self.job["spec"]["runPolicy"], self.job.get("status") or {}
        limits = (("ttlSecondsAfterFinished", "completionTime"), ("activeDeadlineSeconds", "startTime"))
        return [
            datetime.fromisoformat(status[since]) + timedelta(seconds=policy[limit])
            for limit, since in limits
            if limit in policy and since in status
        ]

    def _bury(self) -> None:
        """Take away the nodes on which a job that is gone has left pods: these stay there until somebody does so."""
        if self.job is None:
            self.cluster.heal()

    async def _finish(self) -> None:
        """Let the training programs end with 0."""
        if self.job is None or self.job["spec"]["runPolicy"].get("suspend"):
            return
        if any(spec["restartPolicy"] == "Always" for spec in replicas(self.job).values()):
            return  # what has ended is started again, for ever
        self.note("the programs end")
        self.laws.has_finished = self.cluster.kubelets.is_finishing = True
        if self._after.random() < 0.6:
            await self._lose_some_at_the_end()
        await self._settled()
        ends = [c["type"] for c in (self.job or {}).get("status", {}).get("conditions") or () if c["status"] == "True"]
        if self.job is not None and not {"Succeeded", "Failed"} & set(ends):
            raise AssertionError(f"a job whose programs have ended is over: {ends}")

    async def _delete(self) -> None:
        """Delete the job, and check that nothing is left of it."""
        if self.job is not None:
            self.note("delete")
            self.api.remove(self.resource, NAME, actor="user")
        self._bury()
        await asyncio.sleep(60.0)
        self.check()
        left = [f"{resource.plural} {name}" for resource, name in self.api.objects if resource not in (NODES, LEASES, EVENTS)]
        left += [f"the rendezvous server's job {world.job}" for world in self.server.hub.since(0) if not world.forgotten]
        words = {NAME, *self.laws.lives}
        left += [f"{controller.name} remembers {place}" for controller in self.controllers for place in remembered(controller, words)]
        if left:
            raise AssertionError(f"nothing is left of a deleted job: {left}")


def play(seed: int, options: Options | None = None, manifest: Object | None = None) -> Storm:
    """Play one life to its end, and return it. An error names the seed and tells the story."""
    storms: list[Storm] = []

    async def life() -> None:
        storms.append(Storm(seed, options or Options(), manifest))
        await storms[0].play()

    try:
        with no_errors_logged():
            sim_time.run(life())
    except (AssertionError, KubeError, KeyError) as error:
        story = "\n".join(storms[0].history) if storms else ""
        raise AssertionError(f"seed {seed}: {error!r}\n{error}\n{story}") from error
    return storms[0]


@contextmanager
def no_errors_logged() -> Iterator[None]:
    """Raise if an error is logged: the controller survives a reconcile that breaks off, and here it is a defect."""
    found: list[str] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    handler = Collecting(logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("elastic", "elastic_training")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
    broken = [text for text in found if "is lost" not in text]
    if broken:
        raise AssertionError(f"no round breaks off: {broken[0]}")
