"""Laws of the budget against any order of failures, losses, steps, pauses and restarts of the server.

Each thing that happened is charged once, and the world is closed exactly when the charges exceed the budget.
"""

from hypothesis import given
from hypothesis import strategies as st
from rendezvous_controller import Controller
from rendezvous_group import Group

from elastic.membership.wire import Budget
from elastic_training.rendezvous.engine.events import Stepped
from elastic_training.rendezvous.engine.views import summary
from elastic_training.rendezvous.engine.window import PARTS

WINDOW_S, MOST, FRUITLESS = 200.0, 2, 3
BUDGET = Budget(max_restarts=MOST, window_s=WINDOW_S, without_progress=FRUITLESS)


class Life:
    """A job of two, what happened to it, and the controller's half of it."""

    def __init__(self) -> None:
        self.group = Group()
        self.controller = Controller(self.group, BUDGET)
        self.crashes: list[float] = []
        self.losses = self.fruitless = self.step = 0
        self.controller.speak()
        for name in ("w0", "w1"):
            self.group.start(name)
        self.it_steps()

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
        self.controller.pods = {"w0", f"pod-{self.losses}"}
        self.group.start("w1", pod=f"pod-{self.losses}")
        self.group.come_all()

    def it_steps(self) -> None:
        self.step += 1
        self.fruitless = 0
        self.group.apply(Stepped(self.group.job.membership.generation, self.step))

    def time_passes(self) -> None:
        self.group.advance(60)

    def the_server_restarts(self) -> None:
        self.group.start_server()
        for name in self.group.agents:
            self.group.link(name)
        self.controller.speak()
        self.group.advance(20)
        self.group.come_all()

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
def test_the_charges_are_the_failures_and_too_many_close_the_world(deeds: list[object]) -> None:
    life = Life()
    for deed in deeds:
        deed(life)  # type: ignore[operator]
        if summary(life.group.job).closed:
            break
        life.controller.hear()
        life.check()
        life.controller.speak()
    if summary(life.group.job).closed:
        life.check()
        life.the_server_restarts()  # before anybody has heard of it
        life.check()
        assert summary(life.group.job).closed
        life.controller.hear()
        life.the_server_restarts()
        assert summary(life.group.job).closed == life.controller.status.closed != ""
