"""A failure is charged once, under one cause, whatever dies in between: server and controller in virtual time, against all that happened.

Each side may be away at any moment. The controller's status is written in one piece, and what it has not heard is only in the server and in
what members hold; the server may die at any point, also just after it has let the group end.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from rendezvous_controller import Controller
from rendezvous_group import Group

from elastic.membership.wire import Budget, Ended
from elastic_training.rendezvous.engine.views import summary


class Life:
    """A job of two whose w1 has bad luck; `happened` counts what that really was."""

    def __init__(self, budget: Budget) -> None:
        self.group = Group()
        self.controller = Controller(self.group, budget)
        self.happened: Counter[str] = Counter()
        self.runs = self.pods = 0
        self.pod = "w1"
        self.is_away = False
        self.controller.speak()
        for name in ("w0", "w1"):
            self.group.start(name)
        self.listen()

    def listen(self) -> None:
        if not self.is_away:
            self.controller.hear()
            self.controller.speak()
            self.controller.hear()

    @property
    def is_only_witness(self) -> bool:
        """Return whether only w1's agent knows why it is at the barrier. The server that it told may be dead, so it must not die too."""
        agent = self.group.agents["w1"]
        return agent.failed and agent.is_ready

    def goes_on(self) -> None:
        self.group.advance(1.1)
        self.group.come_all()
        self.group.advance(0.1)

    def a_process_fails(self) -> None:
        if self.group.agents["w1"].is_working:
            self.group.fail("w1", 1)
            self.happened["user"] += 1
        self.goes_on()

    def a_process_fails_and_the_server_dies_before_it_can_judge(self) -> None:
        if self.group.agents["w1"].is_working:
            self.group.fail("w1", 1)
            self.group.come("w1")
            self.happened["user"] += 1
        self.the_server_dies()
        self.goes_on()

    def _container_ends(self, cause: str) -> None:
        """Let the kubelet start the container again in the same pod; the controller hears of its end a little later."""
        if self.is_only_witness:
            return
        is_working = self.group.agents["w1"].is_working
        self.group.kill("w1")
        self.goes_on()
        self.listen()
        end = Ended(member="w1", pod_uid=self.pod, cause=cause, run=self.runs)
        self.controller.ended = [] if cause == "disruption" else [end]  # a pod shows only how its container ended last
        self.runs += 1
        if is_working:
            self.happened[cause] += 1
        self.group.start("w1", pod=self.pod)
        self.goes_on()

    def a_container_crashes(self) -> None:
        self._container_ends("user")

    def a_container_runs_out_of_memory(self) -> None:
        self._container_ends("outOfMemory")

    def a_container_is_killed(self) -> None:
        self._container_ends("disruption")

    def a_container_is_told_to_end_and_torchrun_calls_that_an_error(self) -> None:
        if self.is_only_witness:
            return
        if self.group.agents["w1"].is_working:
            self.happened["disruption"] += 1
        self.group.leave("w1")
        self.controller.ended = [Ended(member="w1", pod_uid=self.pod, cause="user", run=self.runs)]
        self.runs += 1
        self.group.start("w1", pod=self.pod)
        self.goes_on()

    def a_pod_is_lost(self) -> None:
        if self.is_only_witness:
            return
        if self.group.agents["w1"].is_working:
            self.happened["disruption"] += 1
        self.group.kill("w1")
        self.goes_on()
        self.listen()
        self.pods += 1
        self.runs, self.pod = 0, f"w1-{self.pods}"
        self.controller.pods = {"w0", self.pod}
        self.group.start("w1", pod=self.pod)
        self.goes_on()

    def the_server_dies(self) -> None:
        """Restart the server, but not while the controller is away too. Then the server knows only what survivors have seen."""
        if self.is_away:
            return
        self.group.start_server()
        for name in self.group.agents:
            self.group.link(name)
        self.controller.speak()
        self.group.advance(20)
        self.goes_on()

    def the_controller_goes(self) -> None:
        self.is_away = True

    def the_controller_comes_back(self) -> None:
        self.is_away = False
        self.controller.speak()
        self.goes_on()

    def rest(self) -> None:
        """Let the group come to rest with all its parts there."""
        self.the_controller_comes_back()
        for _ in range(3):
            self.listen()
            self.group.advance(20)
            self.goes_on()


DEEDS = (
    Life.a_process_fails,
    Life.a_process_fails_and_the_server_dies_before_it_can_judge,
    Life.a_container_crashes,
    Life.a_container_runs_out_of_memory,
    Life.a_container_is_killed,
    Life.a_container_is_told_to_end_and_torchrun_calls_that_an_error,
    Life.a_pod_is_lost,
    Life.the_server_dies,
)
AWAY = (Life.the_controller_goes, Life.the_controller_comes_back)


def counted(life: Life) -> Counter[str]:
    return Counter({cause: count for cause, count in life.controller.status.restarts.items() if cause != "collateral"})


def lived(deeds: list[object]) -> Life:
    life = Life(Budget())
    for deed in deeds:
        deed(life)  # type: ignore[operator]
        life.listen()
        assert counted(life).total() <= life.happened.total()
    life.rest()
    assert summary(life.group.job).restarts == life.controller.status.restarts
    assert len(life.controller.status.open) <= 4
    return life


@given(st.lists(st.sampled_from(DEEDS), max_size=12))
def test_every_failure_is_charged_once_under_its_own_cause(deeds: list[object]) -> None:
    life = lived(deeds)
    assert counted(life) == life.happened


@given(st.lists(st.sampled_from(DEEDS + AWAY), max_size=12))
def test_failures_while_the_controller_is_away_are_charged_once_too(deeds: list[object]) -> None:
    """A pod shows only the newer one of two ends of a container that the controller had no chance to see: the older stays a disruption."""
    life = lived(deeds)
    counts, happened = counted(life), life.happened
    assert counts.total() == happened.total()
    assert counts["user"] + counts["outOfMemory"] <= happened["user"] + happened["outOfMemory"]
