"""Change worlds in process in an etcd: the engine's stages, as they go through the records."""

from collections.abc import Iterator

import pytest
from etcd_living import LivingJob

from elastic_worker.etcd.records import Leaving


@pytest.fixture
def job() -> Iterator[LivingJob]:
    made = LivingJob(max=4, grace_s=5.0)
    made.hosts.are_there = True
    yield made
    made.close()


def trained(job: LivingJob, *names: str) -> None:
    """Let these members form a world in process, and make a step."""
    job.start(*names)
    job.expect(*names)
    job.live(10)
    job.train()
    job.turn()


def test_the_first_world_is_formed_in_process_once_all_workers_wait_at_their_first_boundary(job: LivingJob) -> None:
    trained(job, "w0", "w1", "w2")
    assert job.in_world() == {"w0", "w1", "w2"}
    assert (job.change().stage, job.starts()) == ("run", {"w0": 1, "w1": 1, "w2": 1})


def test_a_leaver_goes_without_a_restart_of_the_others(job: LivingJob) -> None:
    trained(job, "w0", "w1", "w2")
    job.expect("w0", "w1", leaving=(Leaving("w2", "plan", 30.0),))
    job.live(10)
    world = job.world()
    assert world is not None
    assert (job.names(), job.change().stage, world.restarts, world.cause) == (("w0", "w1"), "run", {}, "plan")
    assert (job.starts()["w0"], job.starts()["w1"]) == (1, 1)
