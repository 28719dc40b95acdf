"""Lives of jobs that meet in an etcd.

Agents with the real presence and decision in them, the real follower in the controller, and an etcd that is away, compacts its history, and
that some agents do not reach. `make sim` draws them among all others.
"""

import pytest
from sim_scene import Options
from sim_storm import Storm, play


def in_etcd(storm: Storm) -> int:
    """Return the number of worlds that the job's agents have sealed in the etcd."""
    assert storm.manifest["spec"]["elasticPolicy"]["rdzvBackend"] == "etcd"
    return sum(max((generation for agent in etcd.met for generation in agent.entered), default=0) for etcd in storm.server.etcds.all())


@pytest.mark.parametrize("seed", [24, 79])
def test_a_job_in_an_etcd_keeps_every_law_through_faults_and_becomes_right(seed: int) -> None:
    assert in_etcd(play(seed)) > 1


def test_the_lease_passes_on_while_a_job_meets_in_an_etcd() -> None:
    assert in_etcd(play(37, Options(elects=True))) > 1


def test_the_same_seed_tells_the_same_story_of_a_job_in_an_etcd() -> None:
    first, second = play(28), play(28)
    assert first.history == second.history
    assert first.api.objects == second.api.objects
