"""Simulate elastic MPIJobs with their launchers under faults. Hosts come and go, and a host with the training state always stays."""

import random

import pytest
from sim_jobs import job_of
from sim_storm import play

from elastic.api.job import Object
from elastic.api.kinds import KINDS


def launched(draw: random.Random) -> Object:
    least = draw.randint(1, 3)
    most = draw.randint(least, 6)
    policy = {
        "minReplicas": least,
        "maxReplicas": most,
        "scaleInGraceSeconds": draw.choice([0, 5, 30]),
        "maxRestarts": draw.choice([3, 1000]),
    }
    types = {"Launcher": 1, "Worker": draw.randint(least, most)}
    run_policy = {"cleanPodPolicy": draw.choice(["None", "Running", "All"])}
    job = job_of(KINDS["MPIJob"], types, restart=draw.choice(["OnFailure", "Never"]), policy=policy, run_policy=run_policy)
    if draw.random() < 0.4:
        job["spec"]["mpiTransport"] = "SSH"
    return job


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_a_launcher_can_go_on_through_every_change_of_its_hosts(seed: int) -> None:
    """A new server did not know the driver's assignments. In seeds 0 and 3 it took the last host with the state off the list."""
    play(seed, manifest=launched(random.Random(f"mpi {seed}")))
