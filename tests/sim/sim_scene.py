"""The parts of one simulated life.

API server, nodes, rendezvous server, and controllers, which die when the seed says so and are started again.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from sim_api import Api
from sim_autoscaler import Autoscaler
from sim_client import CALM, Sky, Weather
from sim_cluster import Cluster
from sim_hpa import HpaController
from sim_jobs import NAME, be_autoscaled, meet_in_etcd, random_job
from sim_launcher import Launchers
from sim_laws import Laws
from sim_process import Controller
from sim_rendezvous import SimServer
from sim_worlds import LivingWorlds

from elastic.api.job import Object
from elastic_training.controller.facts.keys import JOBS

TICK_S = 0.5
STEPS = 60
LIVING_SHARE = 1 / 3
"""The share of lives whose workers use the training library, if they meet at the rendezvous server."""
GANGS = ("", "", "", "", "volcano", "scheduler-plugins-scheduler")


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
    """Kind of storm in a simulated life.

    `kills`: the controller dies at random requests; `twins`: two work at once, without an election; `programs_fail`: containers and
    training processes crash by themselves; `living`: whether workers use the training library, if the seed does not decide it.
    """

    steps: int = STEPS
    kills: bool = True
    twins: bool = False
    elects: bool = False
    programs_fail: bool = True
    living: bool | None = None
    weather: Weather = STORMY


class Scene:
    def __init__(self, seed: int, options: Options, manifest: Object | None = None) -> None:
        self.seed, self.options = seed, options
        self.draw = random.Random(f"story {seed}")
        self.manifest = manifest if manifest is not None else random_job(self.draw)
        self.etcd_draw = random.Random(f"etcd {seed}")
        self.usage_draw = random.Random(f"usage {seed}")
        self.has_wrong_commands = options.programs_fail and self.usage_draw.random() < 0.3
        self.cut_draw = random.Random(f"cut {seed}")
        self.signal_draw = random.Random(f"signals {seed}")
        self.has_signals = self.signal_draw.random() < 0.3
        self.autoscaler_draw = random.Random(f"autoscaler {seed}")
        if manifest is None and not options.twins:
            meet_in_etcd(self.manifest, self.etcd_draw)
            be_autoscaled(self.manifest, self.autoscaler_draw)
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
        living_draw = random.Random(f"living {seed}")
        if options.living if options.living is not None else manifest is None and living_draw.random() < LIVING_SHARE:
            self.server.living = LivingWorlds(self.server, living_draw)
        self.launchers = Launchers(self.api, self.server, random.Random(f"launchers {seed}"))
        self.controllers: list[Controller] = []
        self.laws = Laws(self.api, self.cluster, self.server, self.controllers, self.sky, kind=self.kind, can_overshoot=options.twins)
        self.autoscaler: Autoscaler | None = None
        self.hpas = HpaController(self.api)
        self.was_deleted = False
        self._started = 0
        self._fatal_call: tuple[int, str] | None = None

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

    def start_autoscaler(self) -> None:
        self._started += 1
        draw = random.Random(f"autoscaler-{self._started} {self.seed}")
        self.autoscaler = Autoscaler(self.api, self.sky, self.server, draw, kind=self.kind)
        self.autoscaler.start()

    def _fate(self, draw: random.Random) -> Callable[[str], bool]:
        """Decide when this controller dies: before or after one of its next requests."""
        if not self.options.kills or draw.random() < 0.3:
            return lambda moment: False
        left, when = draw.randint(1, 40), draw.choice(["before", "after"])

        def dies(moment: str) -> bool:
            nonlocal left
            left -= moment == when
            return left == 0 and moment == when and self.sky.weather is not CALM

        return dies

    def keep_controllers(self) -> None:
        """Replace dead controllers, as a Deployment does."""
        for gone in [c for c in self.controllers if not c.is_alive]:
            self.note(f"{gone.name} is dead")
            if gone.broken is not None:
                raise AssertionError(f"{gone.name} broke down") from gone.broken
            self.controllers.remove(gone)
        if self.autoscaler is not None and self.autoscaler.broken is not None:
            raise AssertionError("the autoscaler broke down") from self.autoscaler.broken
        while len(self.controllers) < (2 if self.options.twins or self.options.elects else 1):
            self.start_controller()

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.cluster.tick()
            self.server.etcds.tick(TICK_S)
            if self.autoscaler is not None:
                self.hpas.tick(self.autoscaler)
            self.launchers.tick()
            self.api.collect()

    def note(self, words: str) -> None:
        self.history.append(f"[{asyncio.get_running_loop().time():.1f} s] {words}")

    @property
    def job(self) -> Object | None:
        return self.api.find(self.resource, NAME)

    def check(self) -> None:
        self.laws.judge()
        if self.server.living is not None:
            self.server.living.judge()
            self.laws.breaches += self.server.living.breaches
        if self.server.faults:
            raise AssertionError("\n".join(["the rendezvous engine keeps its invariants:", *self.server.faults]))
        if self.laws.breaches or (self.launchers.wrongs and not self.options.twins):
            raise AssertionError("\n".join([*self.laws.breaches, *self.launchers.wrongs]))
