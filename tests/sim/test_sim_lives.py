"""Whole lives of jobs under faults, by seed.

A failure names its seed: `SEED=17 make sim` plays that one again, `SEEDS=1000` many, `FROM=5000 SEEDS=1000` others.
"""

import os
import random

import pytest
from sim_jobs import living_job
from sim_scene import Options
from sim_storm import play

SEED = os.environ.get("SEED")
FIRST = int(os.environ.get("FROM", "0"))
SEEDS = [int(SEED)] if SEED else list(range(FIRST, FIRST + int(os.environ.get("SEEDS", "6"))))
CALM_SEEDS = SEEDS[: max(1, len(SEEDS) // 4)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_keeps_every_law_through_faults_and_becomes_right(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("options", [Options(), Options(twins=True), Options(elects=True)], ids=["one", "twins", "elects"])
def test_the_same_seed_tells_the_same_story(options: Options) -> None:
    """Also the Lease: it kept the true time of its renewals."""
    first, second = play(SEEDS[0], options), play(SEEDS[0], options)
    assert first.history == second.history
    assert first.api.objects == second.api.objects
    assert first.api.version == second.api.version


@pytest.mark.parametrize("seed", CALM_SEEDS)
def test_two_controllers_at_once_do_no_lasting_harm(seed: int) -> None:
    play(seed, Options(twins=True))


@pytest.mark.parametrize("seed", CALM_SEEDS)
def test_the_lease_passes_from_controller_to_controller_in_the_storm(seed: int) -> None:
    play(seed, Options(elects=True))


@pytest.mark.parametrize("seed", CALM_SEEDS)
@pytest.mark.parametrize("elects", [False, True], ids=["one", "elects"])
def test_processes_that_live_on_keep_every_law_through_faults_and_become_right(seed: int, *, elects: bool) -> None:
    play(seed, Options(living=True, elects=elects), living_job(random.Random(f"living job {seed}")))
