"""One simulated life of a job: a storm of user actions, mishaps and faults, all drawn from one seed; then calm, in which everything
must become right; then its end. The same seed gives the same life.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import sim_time
from sim_api import Api
from sim_client import CALM, Sky, Weather
from sim_cluster import Cluster
from sim_jobs import NAME, random_job, replicas
from sim_launcher import Launchers
from sim_laws import Laws
from sim_memory import remembered
from sim_process import Controller
from sim_rendezvous import SimServer
from sim_right import silences, wrongs
from sim_time import now

from controller.watching.keys import JOBS, Key
from elastic.api.job import Object
from elastic.api.kinds import WORKER
from elastic.kube.errors import KubeError
from elastic.kube.resources import EVENTS, LEASES, NODES, PODS

TICK_S = 0.5
STEPS = 60
QUIET_S = 75.0
GANGS = ("", "", "", "", "volcano", "scheduler-plugins-scheduler")
PATIENCE_S = 2400.0


STORMY = Weather(
    refused=0.04,
    unreachable=0.03,
    answer_lost=0.03,
    late=0.005,
    watch_breaks=0.02,
    watch_gone=0.01,
    watch_stalls=0.05,
    doubled=0.05,
)


@dataclass(frozen=True, slots=True)
class Options:
    """What kind of storm. `kills`: the controller dies at random requests; `twins`: two work at once, without an election."""

    steps: int = STEPS
    kills: bool = True
    twins: bool = False
    elects: bool = False
    weather: Weather = STORMY


class Storm:
    def __init__(self, seed: int, options: Options, manifest: Object | None = None) -> None:
        self.seed, self.options = seed, options
        self.draw = random.Random(f"story {seed}")
        self.manifest = manifest if manifest is not None else random_job(self.draw)
        self.kind = self.manifest["kind"]
        self.resource = JOBS[self.kind]
        self.gang = self.draw.choice(GANGS)
        self.history: list[str] = [f"{self.kind} {self.manifest['metadata']} {self.manifest['spec']} {self.gang}"]
        self._after = random.Random(f"afterwards {seed}")
        self.api, self.sky = Api(), Sky(options.weather)
        self.server = SimServer(
            dies_when_closing=options.kills and random.Random(f"server {seed}").random() < 0.5,
            hears_steps=random.Random(f"steps {seed}").random() < 0.5,
        )
        self.cluster = Cluster(self.api, self.server, random.Random(f"cluster {seed}"))
        self.launchers = Launchers(self.api, self.server, random.Random(f"launchers {seed}"))
        self.laws = Laws(self.api, self.cluster, self.server, kind=self.kind, can_overshoot=options.twins)
        self.controllers: list[Controller] = []
        self.was_deleted = False
        self._started = 0
        self._fatal_call: tuple[int, str] | None = None

    # --- the parts' lives ---

    def start_controller(self) -> None:
        self._started += 1
        name = f"controller-{self._started}"
        draw = random.Random(f"{name} {self.seed}")
        controller = Controller(
            self.api,
            self.sky,
            self.server,
            draw,
            name=name,
            kinds=[self.kind],
            gang_scheduler=self.gang,
            elects=self.options.elects,
            on_call=self._fate(draw),
        )
        controller.start()
        self.controllers.append(controller)
        self.note(f"{name} starts")

    def _fate(self, draw: random.Random) -> Callable[[str], bool]:
        """When this controller dies: before or after one of its next requests."""
        if not self.options.kills or draw.random() < 0.3:
            return lambda moment: False
        left, when = draw.randint(1, 40), draw.choice(["before", "after"])

        def dies(moment: str) -> bool:
            nonlocal left
            left -= moment == when
            return left == 0 and moment == when and self.sky.weather is not CALM

        return dies

    def keep_controllers(self) -> None:
        """As a Deployment does."""
        for gone in [c for c in self.controllers if not c.is_alive]:
            self.note(f"{gone.name} is dead")
            if gone.broken is not None:
                raise AssertionError(f"{gone.name} broke down") from gone.broken
            self.controllers.remove(gone)
        while len(self.controllers) < (2 if self.options.twins or self.options.elects else 1):
            self.start_controller()

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.cluster.tick()
            self.launchers.tick()
            self.api.collect()

    def note(self, words: str) -> None:
        self.history.append(f"[{asyncio.get_running_loop().time():.1f} s] {words}")

    @property
    def job(self) -> Object | None:
        return self.api.find(self.resource, NAME)

    def check(self) -> None:
        self.laws.judge()
        if self.laws.breaches or (self.launchers.wrongs and not self.options.twins):
            raise AssertionError("\n".join([*self.laws.breaches, *self.launchers.wrongs]))

    # --- the story ---

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

    async def _storm(self) -> None:
        self.keep_controllers()
        await asyncio.sleep(self.draw.choice([0.0, 1.0]))
        self.api.create(self.resource, self.manifest, actor="user")
        self.cluster.may_stick = True
        for _ in range(self.options.steps):
            await asyncio.sleep(self.draw.choice([0.0, 0.2, 1.0, 5.0, 20.0]))
            self._something()
            self.keep_controllers()
            self.check()

    def _something(self) -> None:
        deeds = [*self._users(), *self._mishaps(), *self._outages()]
        chances = [chance for chance, _, _ in deeds]
        _, name, deed = self.draw.choices(deeds, chances)[0]
        if name:
            self.note(name)
        deed()

    def _users(self) -> list[tuple[float, str, Callable[[], object]]]:
        return [
            (10, "", lambda: None),
            (6, "scale", self._scale),
            (2, "suspend or resume", self._suspend),
            (1, "another template", self._edit),
            (0.7, "delete", self._user_deletes),
            (3, "", self._create_again),
        ]

    def _mishaps(self) -> list[tuple[float, str, Callable[[], object]]]:
        cluster, draw = self.cluster, self.draw
        return [
            (3, "a worker fails", lambda: self._befalls(cluster.fail_worker)),
            (2, "a container crashes", lambda: self._befalls(lambda pod: cluster.crash(pod, code=draw.choice([1, 137])))),
            (1, "out of memory", lambda: self._befalls(lambda pod: cluster.crash(pod, code=137, reason="OOMKilled"))),
            (2, "a pod is evicted", lambda: self._befalls(cluster.evict)),
            (2, "a pod is preempted", lambda: self._befalls(cluster.preempt)),
            (1, "a pod vanishes", lambda: self._befalls(cluster.vanish)),
            (0.7, "a node is lost", lambda: cluster.lose_node(draw.choice(cluster.nodes()))),
            (1, "a node is reclaimed", lambda: cluster.reclaim_node(draw.choice(cluster.nodes()))),
            (1, "a node may be reclaimed", lambda: cluster.warn_node(draw.choice(cluster.nodes()))),
            (0.7, "signals are taken back", lambda: cluster.take_back(draw.choice(cluster.nodes()))),
            (1, "a node is cordoned", lambda: cluster.cordon(draw.choice(cluster.nodes()))),
            (1, "a node is drained", lambda: cluster.cordon(draw.choice(cluster.nodes()), drain=True)),
            (1, "a node is uncordoned", lambda: cluster.cordon(draw.choice(cluster.nodes()), is_cordoned=False)),
            (0.7, "a node refuses pods", lambda: cluster.refuse(draw.choice(cluster.nodes()), for_s=draw.uniform(2, 40))),
            (0.3, "machines are repaired", cluster.heal),
        ]

    def _outages(self) -> list[tuple[float, str, Callable[[], object]]]:
        return [
            (1, "the API server restarts", self._restart_api),
            (1, "the history is compacted", self.api.compact),
            (1, "the rendezvous server restarts", self.server.restart),
            (1, "the rendezvous server is cut off", self.server.go_down),
            (2, "the rendezvous server is back", self.server.come_up),
            (1, "the rendezvous server is stopped and goes on", lambda: self.server.stand_still(self.draw.choice([3.0, 15.0, 40.0]))),
            (1, "the rendezvous server's node is cut off", lambda: self.server.isolate(self.draw.choice([8.0, 15.0, 18.0, 50.0]))),
            (1, "a member falls silent", self._silence),
            (1, "a clock steps", self._step_clock),
            (1 if self.options.kills else 0, "a controller is killed", lambda: self.draw.choice(self.controllers).kill()),
            (0.5 if self.options.kills else 0, "a controller is stopped in good order", lambda: self.draw.choice(self.controllers).stop()),
            (1, "a controller stands still", lambda: self.draw.choice(self.controllers).stand_still(self.draw.choice([3, 15, 40]))),
        ]

    def _silence(self) -> None:
        if self.server.links:
            self.server.silence(self.draw.choice(self.server.links), self.draw.choice([5.0, 15.0, 40.0]))

    def _befalls(self, mishap: Callable[[Object], object]) -> None:
        running = self.cluster.running()
        if running:
            pod = self.draw.choice(running)
            self.note(f"  {pod['metadata']['name']}")
            mishap(pod)

    def _change(self, change: Callable[[Object], object]) -> None:
        self.api.change(self.resource, NAME, change, actor="user")

    def _scale(self) -> None:
        def change(job: Object) -> None:
            policy = job["spec"].get("elasticPolicy")
            if WORKER in replicas(job):
                bounds = (policy["minReplicas"], policy["maxReplicas"]) if policy else (1, 4)
                replicas(job)[WORKER]["replicas"] = self.draw.randint(*bounds)
                self.note(f"  to {replicas(job)[WORKER]['replicas']}")

        self._change(change)

    def _suspend(self) -> None:
        self._change(lambda job: job["spec"]["runPolicy"].update({"suspend": not job["spec"]["runPolicy"].get("suspend", False)}))

    def _edit(self) -> None:
        def change(job: Object) -> None:
            for spec in replicas(job).values():
                spec["template"]["spec"]["containers"][0]["image"] = f"example/train:{self.draw.randint(1, 9)}"

        self._change(change)

    def _user_deletes(self) -> None:
        if self.job is not None:
            self.api.remove(self.resource, NAME, actor="user")

    def _create_again(self) -> None:
        if self.job is None:
            self.note("create again")
            self.api.create(self.resource, self.manifest, actor="user")

    def _restart_api(self) -> None:
        self.sky.down_until = asyncio.get_running_loop().time() + self.draw.choice([1.0, 5.0, 20.0])
        self.api.compact()

    def _step_clock(self) -> None:
        self.draw.choice(self.controllers).skew = timedelta(seconds=self.draw.randint(-90, 90))

    # --- afterwards ---

    async def _calm(self) -> None:
        """No more faults: everything must become right, and then nothing more may be written."""
        self.note("calm")
        self.sky.weather, self.sky.down_until = CALM, 0.0
        self.server.come_up()
        self.cluster.heal(leave_dead=self.draw.random() < 0.5)
        if self._after.random() < 0.3:
            self.note("one more node is drained")
            self.cluster.add_node()
            self.cluster.cordon(self._after.choice(self.cluster.nodes()), drain=True)
        self._bury()
        for controller in self.controllers:
            controller.skew = timedelta()
        if self.job is not None and self.job["spec"]["runPolicy"].get("suspend") and self.draw.random() < 0.8:
            self._suspend()
        await self._settled()

    async def _settled(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() < max(began, self.laws.last_write) + QUIET_S or self.cluster.has_forsaken() or self._waits_after_losses():
            await asyncio.sleep(5.0)
            self.keep_controllers()
            self._bury()
            self.check()
            if loop.time() > began + PATIENCE_S:
                forsaken = " and pods wait on a node that is lost" if self.cluster.has_forsaken() else ""
                raise AssertionError(f"it converges: writes go on and on{forsaken}")
        if found := [*wrongs(self.api, self.server, self.job), *silences(self.api, self.job), *self.cluster.undrained()]:
            raise AssertionError("\n".join(["status and cluster become right:", *found]))
        before, due = self.laws.writes, self._due()
        for controller in self.controllers:
            controller.look_again(Key(self.kind, "team", NAME))
        await asyncio.sleep(3.0)
        if self.laws.writes > before and not any(at <= now() for at in due):
            raise AssertionError(f"a plan for a right world is empty: {self.laws.newest} was written")

    def _waits_after_losses(self) -> bool:
        """Is a place empty because its pods were lost again and again? It is filled when the pause is over."""
        conditions = ((self.job or {}).get("status") or {}).get("conditions") or ()
        return any(
            "in a row were lost soon after they were created" in c["message"]
            for c in conditions
            if c["type"] not in ("Succeeded", "Failed")
        )

    def _due(self) -> list[datetime]:
        """When time alone will change something about the job."""
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
        """What a job that is gone has left on a dead node stays there until somebody takes the node away."""
        if self.job is None:
            self.cluster.heal()

    async def _finish(self) -> None:
        """The training programs end with 0."""
        if self.job is None or self.job["spec"]["runPolicy"].get("suspend"):
            return
        if any(spec["restartPolicy"] == "Always" for spec in replicas(self.job).values()):
            return  # what has ended is started again, for ever
        self.note("the programs end")
        self.laws.has_finished = self.cluster.is_finishing = True
        if self._after.random() < 0.6:
            await self._lose_some_at_the_end()
        await self._settled()
        ends = [c["type"] for c in (self.job or {}).get("status", {}).get("conditions") or () if c["status"] == "True"]
        if self.job is not None and not {"Succeeded", "Failed"} & set(ends):
            raise AssertionError(f"a job whose programs have ended is over: {ends}")

    async def _lose_some_at_the_end(self) -> None:
        """Workers are lost while others of their world have finished already, and come back when there is nothing left to do."""
        cluster, draw = self.cluster, self._after
        deeds: list[tuple[str, Callable[[], object]]] = [
            ("a container is killed", lambda: self._befalls(lambda pod: cluster.crash(pod, code=137))),
            ("a container crashes", lambda: self._befalls(lambda pod: cluster.crash(pod, code=1))),
            ("a worker fails", lambda: self._befalls(cluster.fail_worker)),
            ("a pod is evicted", lambda: self._befalls(cluster.evict)),
            ("a pod vanishes", lambda: self._befalls(cluster.vanish)),
            ("the rendezvous server restarts", self.server.restart),
            ("scale", self._scale),
            ("a pod that has ended is removed", self._remove_ended),
        ]
        for _ in range(draw.choice([1, 2, 4])):
            await asyncio.sleep(draw.choice([0.1, 0.6, 1.2, 3.0]))
            name, deed = draw.choice(deeds)
            self.note(f"at the end: {name}")
            deed()
            self.keep_controllers()

    def _remove_ended(self) -> None:
        ended = [pod for pod in self.cluster.pods() if pod["status"]["phase"] == "Succeeded"]
        if ended:
            self.api.remove(PODS, self._after.choice(ended)["metadata"]["name"], actor="user")

    async def _delete(self) -> None:
        """Nothing is left of a job that is gone."""
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
    """Plays one life to its end and returns it; whatever is wrong names the seed and tells the story."""
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
    """A round that breaks off is survived and logged by the controller; here it is a defect."""
    found: list[str] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    handler = Collecting(logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("controller", "elastic", "rendezvous")]
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
