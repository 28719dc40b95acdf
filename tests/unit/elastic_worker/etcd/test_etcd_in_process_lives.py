"""Check the laws of changes in process in an etcd: agents come, go, fail and lose etcd in any order."""

from typing import Any

import pytest
from etcd_living import LivingJob
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from test_etcd_laws import LAWS, Membership

pytestmark = pytest.mark.timeout(600)  # many examples, which a busy machine makes slow


class Living(Membership):
    """The laws of all jobs in an etcd, with workers that use the library. The workers themselves check that no promise is broken."""

    job: Any

    def make_job(self, **rules: Any) -> LivingJob:
        return LivingJob(**rules)

    def teardown(self) -> None:
        if hasattr(self, "job"):
            self.job.close()
        super().teardown()

    @precondition(lambda self: self.job.agents)
    @rule(data=st.data(), what=st.sampled_from(["complain", "cannot form", "can form", "begins a step", "trains"]))
    def something_happens_to_a_worker(self, data: st.DataObject, what: str) -> None:
        agent = self.job.agents[data.draw(st.sampled_from(sorted(self.job.agents)))]
        worker = agent.worker
        if worker is None:
            return
        match what:
            case "complain" if worker.is_training:
                agent.complain()
            case "cannot form" | "can form":
                worker.forms = what == "can form"
            case "begins a step" if worker.is_training:
                worker.is_inside = True
            case "trains" if worker.is_training:
                worker.train()

    @rule()
    def calm_follows(self) -> None:
        for agent in self.job.agents.values():
            if agent.worker is not None:
                agent.worker.forms = True
        super().calm_follows()

    @invariant()
    def workers_that_train_together_are_of_one_world(self) -> None:
        """Check that all workers which train in the world of one round believe in one size of it."""
        if not hasattr(self, "job"):
            return
        seen: dict[int, int] = {}
        for agent in self.job.agents.values():
            if agent.worker is not None and agent.worker.is_training:
                assert seen.setdefault(agent.worker.entered, agent.worker.size) == agent.worker.size


TestLiving = Living.TestCase
TestLiving.settings = LAWS
