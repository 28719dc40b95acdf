"""Laws of the budget against any order of failures, losses, steps, pauses and restarts of the server: what is charged is what happened,
once, and the world is closed exactly when it is too much.
"""

from hypothesis import given
from hypothesis import strategies as st
from rendezvous_group import Group

from rendezvous.machine import Stepped, summary
from rendezvous.machine.window import PARTS
from rendezvous.wire import Budget, Charge

WINDOW_S, MOST, FRUITLESS = 200.0, 2, 3
BUDGET = Budget(max_restarts=MOST, window_s=WINDOW_S, without_progress=FRUITLESS)


class Life:
    """A job of two, what happened to it, and what the controller remembers of what the server told it."""

    def __init__(self) -> None:
        self.group = Group()
        self.crashes: list[float] = []
        self.losses = self.fruitless = self.step = 0
        self.restarts: dict[str, int] = {}
        self.charged: list[tuple[str, float]] = []
        self.told: tuple[int, int | None] = (0, None)
        self.speak()
        for name in ("w0", "w1"):
            self.group.start(name)
        self.it_steps()

    def speak(self) -> None:
        charged = tuple(Charge(cause=cause, age_s=self.group.now - at) for cause, at in self.charged)
        fruitless, step = self.told
        memory = {"restarts": self.restarts, "charged": charged, "fruitless": fruitless, "step": step}
        self.group.expect("w0", "w1", budget=BUDGET, **memory)

    def hear(self) -> None:
        world = summary(self.group.job)
        for cause, count in world.restarts.items():
            self.charged += [(cause, self.group.now)] * (count - self.restarts.get(cause, 0))
        self.restarts = {**self.restarts, **world.restarts}
        if world.fruitless is not None:
            self.told = world.fruitless, world.step

    # --- what may happen ---

    def a_worker_crashes(self) -> None:
        self.group.fail("w1", 1)
        self.group.advance(1.1)
        self.group.come_all()
        self.crashes.append(self.group.now)
        self.fruitless += 1

    def a_worker_is_lost(self) -> None:
        self.group.kill("w1")
        self.group.advance(1.1)
        self.group.come_all()
        self.losses += 1
        self.fruitless += 1
        self.group.start("w1", pod=f"pod-{self.losses}")
        self.group.come_all()

    def it_steps(self) -> None:
        self.step += 1
        self.fruitless = 0
        self.group.apply(Stepped(self.group.job.generation, self.step))

    def time_passes(self) -> None:
        self.group.advance(60)

    def the_server_restarts(self) -> None:
        self.group.start_server()
        for name in self.group.agents:
            self.group.link(name)
        self.speak()
        self.group.advance(20)

    # --- what must hold ---

    def check(self) -> None:
        world = summary(self.group.job)
        charged = {cause: count for cause, count in world.restarts.items() if cause in ("user", "disruption")}
        happened = {"user": len(self.crashes), "disruption": self.losses}
        assert charged == {cause: count for cause, count in happened.items() if count}
        at = self.crashes[-1] if self.crashes else self.group.now
        surely = sum(at - crash < WINDOW_S - WINDOW_S / PARTS for crash in self.crashes)
        perhaps = sum(at - crash < WINDOW_S for crash in self.crashes)
        if surely > MOST or self.fruitless > FRUITLESS:
            assert world.closed
        if world.closed:
            assert perhaps > MOST or self.fruitless > FRUITLESS
        else:
            assert world.fruitless == self.fruitless
            assert len(self.group.world()) == 2


DEEDS = (Life.a_worker_crashes, Life.a_worker_is_lost, Life.it_steps, Life.time_passes, Life.the_server_restarts)


@given(st.lists(st.sampled_from(DEEDS), max_size=25))
def test_what_is_charged_is_what_happened_and_the_world_closes_when_that_is_too_much(deeds: list[object]) -> None:
    life = Life()
    for deed in deeds:
        deed(life)  # type: ignore[operator]
        life.hear()
        life.check()
        if summary(life.group.job).closed:
            return
        life.speak()
