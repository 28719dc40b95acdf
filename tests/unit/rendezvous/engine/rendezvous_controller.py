"""The controller's half of a group in virtual time: what it has written down of what the server told it, and what it says then."""

from dataclasses import replace

from msgspec import structs
from rendezvous_group import Group

from elastic.api.job import ElasticStatus
from elastic.membership.wire import Budget, Charge, Ended, Expectation
from elastic_training.controller.deciding.lifecycle import restart_accounting
from elastic_training.controller.deciding.lifecycle.stored_restarts import log_of
from elastic_training.controller.facts.snapshot import Pod, WorldSeen
from elastic_training.rendezvous.engine.views import summary


class Controller:
    """The controller of a job of two, w0 and w1. It keeps its book as the real one does; `ended`: container ends that it has seen."""

    def __init__(self, group: Group, budget: Budget) -> None:
        self.status = ElasticStatus()
        self.ended: list[Ended] = []
        self.pods = {"w0", "w1"}
        """by uid, those that exist"""
        self._group = group
        self._charged: list[tuple[str, float]] = []
        self._progress: tuple[int, int | None] = (0, None)
        group.expectation = Expectation(members=("w0", "w1"), min=1, max=2, budget=budget)

    def speak(self) -> None:
        """Say again what its status says."""
        group, status = self._group, self.status
        assert group.expectation is not None
        fruitless, step = self._progress
        group.expectation = replace(
            group.expectation,
            restarts=status.restarts,
            unsettled=log_of(status).unsettled,
            settled_to=status.generation,
            floor=status.generation,
            closed=status.closed,
            ended=tuple(e for e in self.ended if f"{e.pod_uid}/{e.run}" not in status.counted and e.pod_uid in self.pods),
            charged=tuple(Charge(cause=cause, age_s=group.now - at) for cause, at in self._charged),
            fruitless=fruitless,
            step=step,
        )
        group.retell()

    def hear(self) -> None:
        """Write down in one piece what the server tells now."""
        told, known = summary(self._group.job), self.status
        world = WorldSeen(
            generation=told.generation, members=frozenset(), unacknowledged_restarts=told.unacknowledged_restarts, explained=told.explained
        )
        status = restart_accounting.with_reported_restarts(known, world)
        for cause, count in status.restarts.items():
            self._charged += [(cause, self._group.now)] * (count - known.restarts.get(cause, 0))
        if told.phase == "running":
            status = structs.replace(status, generation=max(known.generation, told.generation))
        pods = [Pod(uid, uid, "worker", 0) for uid in self.pods]
        self.status = restart_accounting.settled(structs.replace(status, closed=told.closed or known.closed), pods, before=known)
        if told.fruitless is not None:
            self._progress = told.fruitless, told.step
